"""What `ridgeline roofline` prints: a table for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ridgeline.cost.memory import USABLE_MEMORY, cache_bytes
from ridgeline.text_table import aligned
from ridgeline_exporters.roofline import catalogue, hardware
from ridgeline_exporters.roofline.bounds import Bound, Roof, decode_batch_at_ridge
from ridgeline_exporters.roofline.hardware import GIGA, TERA, Accelerator
from ridgeline_exporters.roofline.mixers import LatentAttention
from ridgeline_exporters.roofline.model import ModelShape
from ridgeline_exporters.roofline.work import PhaseWork

FLOOR_CONTEXT_TOKENS = 2048
"""Context of the single sequence for which the decode floors are given, whatever the table shows."""


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


# --- for people


def answer_text(
    model: str, shape: ModelShape, machine: Machine, rows: Sequence[Row], floors: Mapping[str, Bound]
) -> str:
    """The answer as a table with notes."""
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
    lines += [*aligned(table), "", *_notes(shape, machine, rows, floors)]
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


def _assumptions(shape: ModelShape) -> list[str]:
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
    latent = any(isinstance(layer.mixer, LatentAttention) for layer, _ in shape.groups)
    # Reading a latent cache for all heads at once comes near the ridge; that of grouped heads never does.
    always = "" if latent else ", and at every batch once caches are long"
    notes.append(f"Decode is memory-bound up to a batch of about {batch:,}{always}.")
    if machine.gpus > shape.kv_heads:
        kept = "The latent KV cache" if latent else "Each KV head"
        notes.append(f"{kept} is kept {machine.gpus / shape.kv_heads:g} times (counted).")
    notes += _assumptions(shape)
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
    room = cache_bytes(shape, machine.accelerator)
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


def listing_text() -> str:
    """Models and GPUs known by name, as a table."""
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


def answer_json(
    model: str, shape: ModelShape, machine: Machine, rows: Sequence[Row], floors: Mapping[str, Bound]
) -> dict[str, object]:
    """The answer for programs; bytes and FLOPs over all GPUs of the engine."""
    return {
        "model": {
            "name": model,
            "architecture": shape.architecture,
            "coverage": "partial" if shape.uncounted else "full",
            "uncounted": list(shape.uncounted),
            "assumptions": _assumptions(shape),
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


def listing_json() -> dict[str, object]:
    """Models and GPUs known by name, for programs."""
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
