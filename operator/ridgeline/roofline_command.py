"""`ridgeline roofline`: what a model can do at best on a GPU, phase by phase, before anything is bought or started.

Every time printed is a lower bound: real steps add launches, collectives and imperfect kernels.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ridgeline_exporters.roofline import catalogue, hardware, work
from ridgeline_exporters.roofline.bounds import Bound, Roof, decode_batch_at_ridge
from ridgeline_exporters.roofline.hardware import GIGA, TERA, Accelerator
from ridgeline_exporters.roofline.model import ModelShape, UnsupportedModel
from ridgeline_exporters.roofline.parallelism import Parallelism
from ridgeline_exporters.roofline.windows import PhaseSums
from ridgeline_exporters.roofline.work import PhaseWork

DEFAULT_MODEL = "llama-3.1-8b"
DEFAULT_GPU = "H100-SXM5-80GB"
FORMATS = ("bf16", "fp8", "int8", "int4", "mxfp4", "nvfp4")
FLOOR_FORMATS = ("bf16", "fp8", "int4")
FLOOR_CONTEXT_TOKENS = 2048
"""Context of the single sequence for which the decode floors are given, whatever the table shows."""
USABLE_MEMORY = 0.9
"""Part of the memory that vLLM takes for weights and cache unless told otherwise."""


class WrongInput(ValueError):  # noqa: N818 - names what is wrong
    """The command line asks for something impossible; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The GPUs of one engine."""

    name: str
    gpus: int
    roof: Roof
    accelerator: Accelerator | None
    """None when only peaks were given: memory and link are unknown then."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    phase: str
    sequences: int
    context_tokens: int
    work: PhaseWork
    bound: Bound


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
    parser.add_argument("--tensor-parallel", type=_whole, default=1, metavar="N", help="GPUs of one engine [1]")
    parser.add_argument("--compute-teraflops", type=_number, metavar="X", help="peak per GPU, instead of the GPU's own")
    parser.add_argument(
        "--memory-bandwidth-terabytes-per-second",
        type=_number,
        metavar="X",
        help="peak per GPU, instead of the GPU's own",
    )
    parser.add_argument(
        "--prefill", type=_whole, nargs="+", default=[2048], metavar="N", help="tokens of one prompt [2048]"
    )
    parser.add_argument(
        "--decode-batch",
        type=_whole,
        nargs="+",
        default=[1, 32, 256],
        metavar="B",
        help="sequences decoded together [1 32 256]",
    )
    parser.add_argument("--context", type=_whole, default=2048, metavar="C", help="tokens in each one's cache [2048]")
    parser.add_argument("--list", action="store_true", help="list the models and GPUs known by name")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Prints the answer; 0, or 2 with the cause and the cure on standard error."""
    if args.list:
        print(json.dumps(_listing_json(), indent=2) if args.json else _listing_text())
        return 0
    try:
        config = load_config(args.model)
        shape = _shape(config, args.weights, args)
        machine = machine_of(args, shape.weights.activations)
        _check_heads(shape, machine.gpus)
    except (UnsupportedModel, catalogue.UnknownModel, hardware.UnknownAccelerator, WrongInput) as problem:
        print(f"ridgeline roofline: {problem}", file=sys.stderr)
        return 2
    rows = rows_of(shape, machine.roof, args.prefill, args.decode_batch, args.context)
    floors = {name: _floor(config, name, args) for name in FLOOR_FORMATS}
    if args.json:
        print(json.dumps(_answer_json(args.model, shape, machine, rows, floors), indent=2))
    else:
        print(_answer_text(args.model, shape, machine, rows, floors))
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
        sums.add_decodes([context] * batch)
        decode = work.phase_work(shape, "decode", sums, batch)
        rows.append(Row("decode", batch, context, decode, roof.bound(decode)))
    return rows


def _check_heads(shape: ModelShape, gpus: int) -> None:
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


# --- for people


def _answer_text(
    model: str, shape: ModelShape, machine: Machine, rows: Sequence[Row], floors: Mapping[str, Bound]
) -> str:
    roof = machine.roof
    lines = [
        f"Model     {model}: {_parameters(shape)} ({shape.architecture})",
        *_layers(shape),
        f"Memory    {shape.weights.name} weights, {_weights_read(shape)} read per step; "
        f"KV cache of {shape.kv_bytes_per_token / 1024:.0f} KiB a token",
        f"Hardware  {machine.gpus} x {machine.name}: {roof.flops_per_second / TERA:,.0f} TFLOPS, "
        f"{roof.memory_bytes_per_second / TERA:.2f} TB/s, ridge {roof.ridge:.0f} FLOP/byte",
        "",
    ]
    head = ("phase", "requests", "context", "TFLOP", "GB", "FLOP/byte", "bound by", "ms at least", "tokens/s at most")
    table = [head, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(head))]
    for line in table:
        first, *others = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        lines.append("  ".join([first.strip().ljust(widths[0]), *others]))
    lines += ["", *_notes(shape, machine, rows, floors)]
    return "\n".join(lines)


def _parameters(shape: ModelShape) -> str:
    total = f"{shape.parameters / GIGA:.2f} billion parameters"
    return f"{total}, {shape.active_parameters / GIGA:.2f} of a token" if shape.experts else total


def _layers(shape: ModelShape) -> list[str]:
    """One line where layers differ, or are not plain ones."""
    groups: dict[str, int] = {}
    for layer, count in shape.groups:
        name = f"{layer.attention}, {layer.feeding}"
        groups[name] = groups.get(name, 0) + count
    if list(groups) == ["full attention, dense"]:
        return []
    return ["Layers    " + "; ".join(f"{count} x {name}" for name, count in groups.items())]


def _weights_read(shape: ModelShape) -> str:
    most = shape.weight_bytes / GIGA
    return f"{shape.step_weight_bytes(0, 1) / GIGA:.1f} to {most:.1f} GB" if shape.experts else f"{most:.1f} GB"


def assumptions(shape: ModelShape) -> list[str]:
    """What the numbers rest on beside the model's sizes, and what they leave out."""
    found = []
    if shape.experts:
        found.append(
            "Experts are taken to be chosen uniformly: a step of T tokens reads E x (1 - (1 - k/E)^T) of E experts, "
            "real routers fewer."
        )
    if shape.uncounted:
        found.append(f"PARTIAL: not counted are: {', '.join(shape.uncounted)}.")
    return found


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.phase,
        f"{row.sequences:,}",
        f"{row.context_tokens:,}",
        f"{row.work.flops / TERA:,.2f}",
        f"{row.work.memory_bytes / GIGA:,.2f}",
        f"{row.work.intensity:,.0f}" if row.work.intensity >= 10 else f"{row.work.intensity:.1f}",
        row.bound.limit,
        _milliseconds(row.bound.seconds),
        f"{row.work.tokens / row.bound.seconds:,.0f}",
    )


def _notes(shape: ModelShape, machine: Machine, rows: Sequence[Row], floors: Mapping[str, Bound]) -> list[str]:
    each = ", ".join(
        f"{name} {_milliseconds(bound.seconds)} ms ({1 / bound.seconds:,.0f} tokens/s)"
        for name, bound in floors.items()
    )
    notes = [f"Decode floor, one sequence of {FLOOR_CONTEXT_TOKENS:,} tokens: {each}"]
    batch = decode_batch_at_ridge(shape, machine.roof.ridge)
    notes.append(f"Decode is memory-bound up to a batch of about {batch:,}, and at every batch once caches are long.")
    if machine.gpus > shape.kv_heads:
        notes.append(f"Each KV head is kept {machine.gpus / shape.kv_heads:g} times (counted).")
    notes += assumptions(shape)
    if machine.accelerator is None:
        return notes
    prompts = [row.context_tokens for row in rows if row.phase == "prefill"]
    link = machine.gpus * machine.accelerator.link_bytes_per_second
    for tokens in prompts:
        kv = shape.sequence_bytes(tokens)
        notes.append(
            f"A split moves {kv / 1e6:,.0f} MB of KV for a prompt of {tokens:,} tokens: "
            f"{_milliseconds(kv / link)} ms at {link / GIGA:g} GB/s."
        )
    room = machine.gpus * machine.accelerator.memory_bytes * USABLE_MEMORY - shape.resident_bytes
    where = f"{USABLE_MEMORY * 100:.0f} % of {machine.gpus} x {machine.accelerator.memory_bytes / GIGA:.0f} GB"
    if room <= 0:
        notes.append(
            f"DOES NOT FIT: {shape.resident_bytes / GIGA:.0f} GB of weights in {where}; use more GPUs "
            "(--tensor-parallel), smaller weights (--weights) or a GPU with more memory (--gpu)."
        )
    else:
        contexts = dict.fromkeys(row.context_tokens for row in rows if row.phase == "decode")
        for context in contexts or [FLOOR_CONTEXT_TOKENS]:
            fitting = int(room / shape.sequence_bytes(context))
            notes.append(
                f"Room for {fitting:,} sequences of {context:,} tokens "
                f"({fitting * context / 1000:,.0f} thousand KV tokens) in {where}."
            )
            notes += [
                f"{row.sequences:,} sequences of {context:,} tokens do not fit into it."
                for row in rows
                if row.phase == "decode" and row.context_tokens == context and row.sequences > fitting
            ]
    return notes


def _milliseconds(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:,.0f}" if value >= 10 else f"{value:.2f}"


def _listing_text() -> str:
    lines = ["Models"]
    for name, config in catalogue.MODELS.items():
        shape = ModelShape.from_config(config)
        kv = shape.kv_bytes_per_token / 1024
        active = f", {shape.active_parameters / GIGA:.1f} of a token" if shape.experts else ""
        lines.append(f"  {name:21} {shape.parameters / GIGA:7.2f} billion  {kv:4.0f} KiB of KV a token{active}")
    lines += ["", "GPUs (dense peaks)"]
    for gpu in hardware.ACCELERATORS.values():
        fp8 = f"{gpu.fp8_flops / TERA:,.0f}" if gpu.fp8_flops else "-"
        lines.append(
            f"  {gpu.name:16} {gpu.bf16_flops / TERA:5,.0f} TFLOPS bf16  {fp8:>5} fp8  "
            f"{gpu.memory_bytes_per_second / TERA:5.2f} TB/s  ridge {Roof.of(gpu).ridge:3.0f}  "
            f"{gpu.memory_bytes / GIGA:4.0f} GB  {', '.join(gpu.product_labels)}"
        )
    return "\n".join(lines)


# --- for programs


def _answer_json(
    model: str, shape: ModelShape, machine: Machine, rows: Sequence[Row], floors: Mapping[str, Bound]
) -> dict[str, object]:
    return {
        "model": {
            "name": model,
            "architecture": shape.architecture,
            "coverage": "partial" if shape.uncounted else "full",
            "uncounted": list(shape.uncounted),
            "assumptions": assumptions(shape),
            "parameters": shape.parameters,
            "active_parameters": shape.active_parameters,
            "layers": [
                {"count": count, "attention": layer.attention, "feed_forward": layer.feeding}
                for layer, count in shape.groups
            ],
            "weights": shape.weights.name,
            "weight_bytes_per_step": shape.weight_bytes,
            "resident_bytes": shape.resident_bytes,
            "kv_bytes_per_token": shape.kv_bytes_per_token,
            "linear_flops_per_token": shape.linear_flops_per_token,
            "decode_flops_per_token": shape.decode.flops_per_token,
            "attention_flops_per_pair": shape.prefill.flops_per_pair,
            "decode_attention_flops_per_pair": shape.decode.flops_per_pair,
            "windows": [
                {
                    "tokens": window.tokens,
                    "chunked": window.chunked,
                    "kv_bytes_per_token": shape.window_kv_bytes_per_token[i],
                    "attention_flops_per_pair": shape.prefill.flops_per_window_pair[i],
                }
                for i, window in enumerate(shape.windows)
            ],
            "state_bytes_per_sequence": shape.state_bytes_per_sequence,
            "lm_head_flops": shape.lm_head_flops,
        },
        "hardware": {
            "name": machine.name,
            "gpus": machine.gpus,
            "flops_per_second": machine.roof.flops_per_second,
            "memory_bytes_per_second": machine.roof.memory_bytes_per_second,
            "ridge_flops_per_byte": machine.roof.ridge,
        },
        "phases": [_row_json(row) for row in rows],
        "decode_floor_seconds": {name: bound.seconds for name, bound in floors.items()},
        "decode_floor_context_tokens": FLOOR_CONTEXT_TOKENS,
    }


def _row_json(row: Row) -> dict[str, object]:
    return {
        "phase": row.phase,
        "requests": row.sequences,
        "context_tokens": row.context_tokens,
        "tokens": row.work.tokens,
        "flops": row.work.flops,
        "memory_bytes": row.work.memory_bytes,
        "weight_bytes": row.work.weight_bytes,
        "kv_read_bytes": row.work.kv_read_bytes,
        "kv_write_bytes": row.work.kv_write_bytes,
        "activation_bytes": row.work.activation_bytes,
        "intensity_flops_per_byte": row.work.intensity,
        "bound": row.bound.limit,
        "compute_seconds": row.bound.compute_seconds,
        "memory_seconds": row.bound.memory_seconds,
        "seconds": row.bound.seconds,
        "tokens_per_second": row.work.tokens / row.bound.seconds,
    }


def _listing_json() -> dict[str, object]:
    return {
        "models": {name: ModelShape.from_config(config).parameters for name, config in catalogue.MODELS.items()},
        "gpus": {
            gpu.name: {
                "bf16_flops_per_second": gpu.bf16_flops,
                "fp8_flops_per_second": gpu.fp8_flops,
                "memory_bytes_per_second": gpu.memory_bytes_per_second,
                "memory_bytes": gpu.memory_bytes,
                "link_bytes_per_second": gpu.link_bytes_per_second,
                "product_labels": list(gpu.product_labels),
            }
            for gpu in hardware.ACCELERATORS.values()
        },
    }


# --- reading the command line


def _whole(text: str) -> int:
    try:
        value = int(text.replace(",", "").replace("_", ""))
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number above 0")
    return value


def _number(text: str) -> float:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0")
    return value
