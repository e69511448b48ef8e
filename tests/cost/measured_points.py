"""Measured points for tests: those beside the repository where there are any, else generated ones.

Generated points come from the cost model itself with other constants and some scatter: they test the way from a file to
its errors and to fitted constants, not whether the model is right about real engines.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from pathlib import Path

from ridgeline.cost.efficiency import MICRO
from ridgeline.cost.hardware import H100, VLLM_2023
from ridgeline.cost.points import MeasuredPoint, read_points
from ridgeline.cost.validation import batch_milliseconds, cost_of
from tests.bench.fit_cost_model import serving_milliseconds

MEASURED = Path(__file__).resolve().parents[3] / "shared" / "validation" / "h100-measured.csv"
"""Beside the repository in some workplaces; not part of it."""

LAYER_MICROSECONDS, REQUEST_MILLISECONDS, PREFIX_TOKENS = 45.0, 9.0, 120.0
SCATTER = 0.02
_SERVING = [
    ("Llama-3.1-8B", 1, 5.0), ("Llama-3.1-8B", 2, 10.0), ("Llama-3.1-70B", 4, 2.0), ("Qwen2.5-14B", 1, 4.0),
    ("Qwen2.5-14B", 2, 8.0), ("Mistral-7B", 1, 8.0),
]  # fmt: skip
_BATCHES = [
    (2, 1024, 1),
    (2, 512, 16),
    (4, 512, 1),
    (4, 4096, 1),
    (4, 512, 32),
    (8, 1024, 1),
    (8, 8192, 1),
    (8, 512, 64),
]


@cache
def generated_points() -> tuple[MeasuredPoint, ...]:
    """Points of engines whose constants differ a little from the model's, the same in every run."""
    dice = random.Random(7)

    def scattered(values: dict[str, float]) -> dict[str, float]:
        return {name: value * dice.uniform(1.0 - SCATTER, 1.0 + SCATTER) for name, value in values.items()}

    points: list[MeasuredPoint] = []
    for model, gpus, rate in _SERVING:
        point = MeasuredPoint(
            f"s{len(points)}", "generated", model, "fp16", "H100-SXM", gpus, 800, 200, None, rate, 2048, {}
        )
        constants = (LAYER_MICROSECONDS, REQUEST_MILLISECONDS, PREFIX_TOKENS)
        points.append(replace(point, measured=scattered(serving_milliseconds(point, constants))))
    for gpus, prompt, batch in _BATCHES:
        point = MeasuredPoint(
            f"b{len(points)}", "splitwise", "Llama-2-70B", "fp16", "H100-SXM", gpus, prompt, 128, batch, None, None, {}
        )
        cost = cost_of(point, replace(VLLM_2023, gemm_compute=0.62, launch_seconds=380 * MICRO))
        points.append(replace(point, measured=scattered(batch_milliseconds(point, cost))))
    assert H100.layer_seconds != LAYER_MICROSECONDS * MICRO
    return tuple(points)


def csv_of(points: tuple[MeasuredPoint, ...]) -> str:
    """The points as a file."""
    columns = "prompt_time_ms,token_time_ms,ttft_mean_ms,itl_mean_ms,e2e_mean_ms"
    lines = [
        "id,source,model,weights,gpu,tensor_parallel,prompt_tokens,output_tokens,batch,requests_per_second,"
        f"max_num_batched_tokens,{columns}"
    ]
    for point in points:
        fixed = (
            point.id, point.source, point.model, point.weights, point.gpu, point.tensor_parallel, point.prompt_tokens,
            point.output_tokens, point.batch, point.requests_per_second, point.max_num_batched_tokens,
        )  # fmt: skip
        cells = (*fixed, *(point.measured.get(name) for name in columns.split(",")))
        lines.append(",".join("" if cell is None else str(cell) for cell in cells))
    return "\n".join(lines) + "\n"


def measured_points() -> tuple[list[MeasuredPoint], str]:
    """The points, and where they come from."""
    if MEASURED.is_file():
        return read_points(MEASURED.read_text(encoding="utf-8").splitlines()), "measured on H100"
    return list(generated_points()), "generated: no measured points beside the repository"
