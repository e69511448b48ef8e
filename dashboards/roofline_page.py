"""The plots and tables of docs/roofline.md, made from the roofline model.

python -m dashboards.roofline_page       # from the root of the repository
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path

from dashboards.markdown import filled, table
from ridgeline import roofline_command
from ridgeline.roofline_plot import plot_svg
from ridgeline_exporters.roofline.bounds import Bound, Roof
from ridgeline_exporters.roofline.catalogue import find_model
from ridgeline_exporters.roofline.hardware import find
from ridgeline_exporters.roofline.mixers import LatentAttention
from ridgeline_exporters.roofline.model import ModelShape
from ridgeline_exporters.roofline.parallelism import Parallelism
from ridgeline_exporters.roofline.work import PhaseWork, Sequence, step_work

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "roofline.md"
PLOTS: Mapping[str, str] = {
    "roofline-dense.svg": "--model llama-3.1-70b --tensor-parallel 4 --prefill 512 2048 8192 --decode-batch 1 32 256",
    "roofline-experts.svg": "--model deepseek-v3 --tensor-parallel 16 --gpu H200-SXM-141GB --weights fp8 "
    "--prefill 2048 --decode-batch 1 32 256",
}
GPU, CONTEXT = "H100-SXM5-80GB", 2048

Row = tuple[str, str, str, str, str]


def plots() -> dict[str, str]:
    """File name → picture."""
    return {name: _plot(command.split()) for name, command in PLOTS.items()}


def _plot(command: list[str]) -> str:
    parser = argparse.ArgumentParser()
    args = roofline_command.add_parser(parser.add_subparsers()).parse_args(command)
    shape = ModelShape.from_config(
        roofline_command.load_config(args.model), args.weights, parallelism=Parallelism(args.tensor_parallel)
    )
    machine = roofline_command.machine_of(args, shape.weights.activations)
    rows = roofline_command.rows_of(shape, machine.roof, args.prefill, args.decode_batch, args.context)
    return plot_svg(f"{args.model}, {shape.weights.name}", machine, rows)


# ---------------------------------------------------------------- what a technique is worth


class Engine:
    """A model on some H100s."""

    def __init__(self, model: str, gpus: int, weights: str | None = None, **changes: object) -> None:
        self.shape = ModelShape.from_config({**find_model(model), **changes}, weights, parallelism=Parallelism(gpus))
        self.roof = Roof.of(find(GPU), gpus, self.shape.weights.activations)

    def prefill(self, tokens: int, cached: int = 0) -> PhaseWork:
        """A prompt of which so many tokens are cached."""
        return step_work(self.shape, [Sequence(tokens - cached, tokens)], [])[0]

    def decode(self, batch: int, context: int = CONTEXT, tokens: int = 1) -> PhaseWork:
        """A step in which each sequence computes so many tokens."""
        return step_work(self.shape, [], [Sequence(tokens, context)] * batch)[1]

    def bound(self, work: PhaseWork) -> Bound:
        """The least time of it."""
        return self.roof.bound(work)


def techniques() -> list[Row]:
    """Technique, phase, what is compared, without, with."""
    dense = Engine("llama-3.1-70b", 4)
    return [
        _kv_cache(dense),
        _grouped_heads(dense),
        _latent_attention(),
        _flash_attention(dense),
        _fewer_bits("fp8"),
        _fewer_bits("int4"),
        _continuous_batching(dense),
        _chunked_prefill(dense),
        _speculation("Speculative decoding, 4 drafts", dense, 5),
        _prefix_cache(dense),
        *_experts(),
        _speculation(
            "Multi-token prediction, 1 token ahead (DeepSeek-V3 in FP8, 16 H100)", Engine("deepseek-v3", 16, "fp8"), 2
        ),
    ]


def _kv_cache(engine: Engine) -> Row:
    without, with_cache = engine.prefill(CONTEXT), engine.decode(1)
    compared = f"TFLOP for one more token after {CONTEXT:,}"
    return "KV cache", "decode", compared, _tera(without.flops), _tera(with_cache.flops)


def _grouped_heads(engine: Engine) -> Row:
    plain = Engine("llama-3.1-70b", 4, num_key_value_heads=engine.shape.query_heads)
    compared = f"KV per token, {engine.shape.query_heads} or {engine.shape.kv_heads} KV heads"
    kib = [f"{e.shape.kv_bytes_per_token / 1024:,.0f} KiB" for e in (plain, engine)]
    return "Grouped-query attention (GQA)", "decode", compared, kib[0], kib[1]


def _latent_attention() -> Row:
    shape = Engine("deepseek-v3", 1, "fp8").shape
    mixer = shape.groups[0][0].mixer
    assert isinstance(mixer, LatentAttention)
    per_layer = mixer.query_heads * (mixer.nope_size + mixer.rope_size + mixer.value_size) * shape.kv_bytes_per_element
    plain = per_layer * len(shape.decoder.layers)
    compared = f"KV per token of DeepSeek-V3, {mixer.query_heads} heads or one latent"
    return (
        "Latent attention (MLA)", "decode", compared,
        f"{plain / 1024:,.0f} KiB", f"{shape.kv_bytes_per_token / 1024:,.0f} KiB",
    )  # fmt: skip


def _flash_attention(engine: Engine) -> Row:
    tokens = 8192
    work = engine.prefill(tokens)
    # Scores and weights of every pair and head, at 16 bit, written once and read once.
    scores = 2 * 2 * 2 * engine.shape.query_heads * len(engine.shape.decoder.layers) * tokens * tokens
    compared = f"memory traffic of a prompt of {tokens:,}"
    return (
        "FlashAttention", "prefill", compared,
        f"{(work.memory_bytes + scores) / 1e9:,.0f} GB", f"{work.memory_bytes / 1e9:,.0f} GB",
    )  # fmt: skip


def _fewer_bits(weights: str) -> Row:
    before, after = (Engine("llama-3.1-70b", 4, name) for name in ("bf16", weights))
    compared = "least step of one sequence"
    return (
        f"{weights.upper()} weights", "decode" if weights == "int4" else "both", compared,
        _milliseconds(before.bound(before.decode(1))), _milliseconds(after.bound(after.decode(1))),
    )  # fmt: skip


def _continuous_batching(engine: Engine) -> Row:
    compared = "tokens/s at most, 1 or 128 sequences"
    rates = [f"{batch / engine.bound(engine.decode(batch)).seconds:,.0f}" for batch in (1, 128)]
    return "Continuous batching", "decode", compared, rates[0], rates[1]


def _chunked_prefill(engine: Engine) -> Row:
    tokens, size = 8192, 512
    whole = engine.bound(engine.prefill(tokens)).seconds
    # The last chunk attends to all the others, so it is the longest.
    chunk = max(engine.bound(engine.prefill(end, end - size)).seconds for end in range(size, tokens + 1, size))
    compared = f"least time of the longest step of a prompt of {tokens:,}, whole or in chunks of {size}"
    return "Chunked prefill", "decode, beside prompts", compared, f"{whole * 1e3:,.0f} ms", f"{chunk * 1e3:,.0f} ms"


def _speculation(name: str, engine: Engine, tokens: int) -> Row:
    plain, verified = engine.bound(engine.decode(8)).seconds, engine.bound(engine.decode(8, tokens=tokens)).seconds
    compared = f"least time per token of 8 sequences, if all {tokens} tokens of a step are kept"
    return name, "decode", compared, f"{plain * 1e3:.1f} ms", f"{verified / tokens * 1e3:.1f} ms"


def _prefix_cache(engine: Engine) -> Row:
    whole, rest = engine.bound(engine.prefill(8192)), engine.bound(engine.prefill(8192, cached=6144))
    compared = "least time of a prompt of 8,192, none or 6,144 tokens of it cached"
    return "Prefix caching", "prefill", compared, _milliseconds(whole), _milliseconds(rest)


def _experts() -> Iterable[Row]:
    shape = Engine("qwen3-235b-a22b", 8).shape
    name = "Mixture of experts (Qwen3-235B-A22B)"
    yield (
        name, "both", "GFLOP a token in its matrices, if all parameters or the chosen ones compute",
        f"{2 * shape.parameters / 1e9:,.0f}", f"{(shape.linear_flops_per_token + shape.lm_head_flops) / 1e9:,.0f}",
    )  # fmt: skip
    everything = shape.step_weight_bytes(0, float("inf"))
    for batch in (1, 8, 128):
        read = shape.step_weight_bytes(0, batch)
        compared = f"weights that a step of {batch} reads, if all experts or those it hits"
        yield name, "decode", compared, f"{everything / 1e9:,.1f} GB", f"{read / 1e9:,.1f} GB"


def _tera(flops: float) -> str:
    return f"{flops / 1e12:,.2f}"


def _milliseconds(bound: Bound) -> str:
    return f"{bound.seconds * 1e3:,.1f} ms"


# ---------------------------------------------------------------- writing


def page(before: str) -> str:
    """The page with its table made anew.

    Raises:
        ValueError: the page has no place for it.
    """
    head = ("technique", "helps", "what is compared", "without", "with")
    return filled(before, "techniques", table(head, techniques()), PAGE.name)


def main() -> None:
    """Write plots and page."""
    for name, picture in plots().items():
        (DOCS / "images" / name).write_text(picture)
    PAGE.write_text(page(PAGE.read_text()))


if __name__ == "__main__":
    main()
