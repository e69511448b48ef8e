"""`ridgeline roofline`: what a model can do at best on a GPU, phase by phase, before anything is bought or started.

Every time printed is a lower bound: real steps add launches, collectives and imperfect kernels.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ridgeline.arguments import number, whole_number
from ridgeline.roofline_plot import plot_svg
from ridgeline.roofline_report import (
    FLOOR_CONTEXT_TOKENS,
    Machine,
    Row,
    answer_json,
    answer_text,
    listing_json,
    listing_text,
)
from ridgeline_exporters.roofline import catalogue, hardware, work
from ridgeline_exporters.roofline.bounds import Bound, Roof
from ridgeline_exporters.roofline.hardware import TERA
from ridgeline_exporters.roofline.model import ModelShape, UnsupportedModel
from ridgeline_exporters.roofline.parallelism import Parallelism
from ridgeline_exporters.roofline.windows import PhaseSums

DEFAULT_MODEL = "llama-3.1-8b"
DEFAULT_GPU = "H100-SXM5-80GB"
FORMATS = ("bf16", "fp8", "int8", "int4", "mxfp4", "nvfp4")
FLOOR_FORMATS = ("bf16", "fp8", "int4")


class WrongInput(ValueError):  # noqa: N818 - names what is wrong
    """The command line asks for something impossible; the message says what to do."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds the command's options; `run` answers them."""
    parser = subparsers.add_parser(
        "roofline",
        help="say what a model can do at best on a GPU, phase by phase",
        description="Says what bounds prefill and decode of a model on a GPU, and the least time each can take.",
        epilog="Example: ridgeline roofline --model llama-3.1-70b --weights fp8 --gpu h200 --tensor-parallel 2",
    )
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, help="name (see --list), or folder or file with a config.json [%(default)s]"
    )
    parser.add_argument("--weights", choices=FORMATS, help="format of the weights [as in config.json, else bf16]")
    parser.add_argument(
        "--kv-cache", choices=("bf16", "fp8"), help="format of the KV cache [as in config.json, else bf16]"
    )
    parser.add_argument("--gpu", help=f"name (see --list) or node label nvidia.com/gpu.product [{DEFAULT_GPU}]")
    parser.add_argument("--tensor-parallel", type=whole_number, default=1, metavar="N", help="GPUs of one engine [1]")
    parser.add_argument("--compute-teraflops", type=number, metavar="X", help="peak per GPU, instead of the GPU's own")
    parser.add_argument(
        "--memory-bandwidth-terabytes-per-second",
        type=number,
        metavar="X",
        help="peak per GPU, instead of the GPU's own",
    )
    parser.add_argument(
        "--prefill", type=whole_number, nargs="+", default=[2048], metavar="N", help="tokens of one prompt [2048]"
    )
    parser.add_argument(
        "--decode-batch",
        type=whole_number,
        nargs="+",
        default=[1, 32, 256],
        metavar="B",
        help="sequences decoded together [1 32 256]",
    )
    parser.add_argument(
        "--context", type=whole_number, default=2048, metavar="C", help="tokens in each one's cache [2048]"
    )
    parser.add_argument("--list", action="store_true", help="list the models and GPUs known by name")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="also draw the roofline with these points")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Prints the answer; 0, or 2 with the cause and the cure on standard error."""
    if args.list:
        print(json.dumps(listing_json(), indent=2) if args.json else listing_text())
        return 0
    try:
        config = load_config(args.model)
        shape = _shape(config, args.weights, args)
        machine = machine_of(args, shape.weights.activations)
        check_heads(shape)
    except (UnsupportedModel, catalogue.UnknownModel, hardware.UnknownAccelerator, WrongInput) as problem:
        print(f"ridgeline roofline: {problem}", file=sys.stderr)
        return 2
    rows = rows_of(shape, machine.roof, args.prefill, args.decode_batch, args.context)
    floors = {name: _floor(config, name, args) for name in FLOOR_FORMATS}
    if args.plot is not None:
        try:
            args.plot.write_text(plot_svg(f"{args.model}, {shape.weights.name}", machine, rows), encoding="utf-8")
        except OSError as problem:
            print(
                f"ridgeline roofline: {args.plot} cannot be written ({problem.strerror}); name a file in a folder"
                " that exists and is yours",
                file=sys.stderr,
            )
            return 2
    if args.json:
        print(json.dumps(answer_json(args.model, shape, machine, rows, floors), indent=2))
    else:
        print(answer_text(args.model, shape, machine, rows, floors))
    return 0


def load_config(model: str) -> Mapping[str, object]:
    """The config of a model by name, or from its folder or file.

    Raises:
        WrongInput: for a path without a readable config.json.
        catalogue.UnknownModel: for a name that is neither.
    """
    path = Path(model)
    if path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise WrongInput(f"no config.json in {model}; give the folder that holds the model's config.json")
    if not path.is_file():
        if path.suffix == ".json":
            raise WrongInput(f"{model} does not exist; give the path of the model's config.json")
        return catalogue.find_model(model)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise WrongInput(f"{path} cannot be read ({problem}); give a Hugging Face config.json") from problem
    if not isinstance(config, dict):
        raise WrongInput(f"{path} holds no JSON object; give a Hugging Face config.json")
    return config


def machine_of(args: argparse.Namespace, activations: str) -> Machine:
    """The engine's GPUs, with the peaks from the command line where it gives them.

    Args:
        args: The command line.
        activations: What the tensor cores multiply with (`NumberFormat.activations`).
    """
    flops = args.compute_teraflops and args.compute_teraflops * TERA
    memory = args.memory_bandwidth_terabytes_per_second and args.memory_bandwidth_terabytes_per_second * TERA
    try:
        accelerator = None if flops and memory and args.gpu is None else hardware.find(args.gpu or DEFAULT_GPU)
    except hardware.UnknownAccelerator as problem:
        if not (flops and memory):
            raise WrongInput(
                f"{problem} (--compute-teraflops and --memory-bandwidth-terabytes-per-second)"
            ) from problem
        accelerator = None
    if accelerator is None:
        roof = Roof(args.tensor_parallel * flops, args.tensor_parallel * memory)
        return Machine(f"{args.gpu or 'GPU'} with the given peaks", args.tensor_parallel, roof, None)
    name = accelerator.name
    if flops or memory:
        name += " with the given peaks"
        accelerator = replace(
            accelerator,
            bf16_flops=flops or accelerator.bf16_flops,
            fp8_flops=flops or accelerator.fp8_flops,
            fp4_flops=flops or accelerator.fp4_flops,
            memory_bytes_per_second=memory or accelerator.memory_bytes_per_second,
        )
    return Machine(name, args.tensor_parallel, Roof.of(accelerator, args.tensor_parallel, activations), accelerator)


def rows_of(shape: ModelShape, roof: Roof, prompts: Sequence[int], batches: Sequence[int], context: int) -> list[Row]:
    """One row per prompt length, alone in its step, then one per decode batch."""
    rows = []
    for tokens in prompts:
        prefill, _ = work.step_work(shape, [work.Sequence(tokens, tokens)], [])
        rows.append(Row("prefill", 1, tokens, prefill, roof.bound(prefill)))
    for batch in batches:
        sums = PhaseSums(shape.windows)
        sums.add_decodes([context - 1] * batch)
        decode = work.phase_work(shape, "decode", sums, batch)
        rows.append(Row("decode", batch, context, decode, roof.bound(decode)))
    return rows


def check_heads(shape: ModelShape) -> None:
    """Refuse a model whose attention heads the GPUs of an engine cannot share evenly.

    Raises:
        WrongInput: they cannot; the message names a cure.
    """
    gpus = shape.parallelism.gpus
    if shape.query_heads % gpus:
        raise WrongInput(
            f"{shape.query_heads} attention heads cannot be shared by --tensor-parallel {gpus}; "
            f"use a divisor of {shape.query_heads}"
        )


def _shape(config: Mapping[str, object], weights: str | None, args: argparse.Namespace) -> ModelShape:
    return ModelShape.from_config(config, weights, args.kv_cache, parallelism=Parallelism(args.tensor_parallel))


def _floor(config: Mapping[str, object], weights: str, args: argparse.Namespace) -> Bound:
    shape = _shape(config, weights, args)
    return rows_of(shape, machine_of(args, shape.weights.activations).roof, [], [1], FLOOR_CONTEXT_TOKENS)[0].bound
