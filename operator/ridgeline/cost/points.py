"""Measured points: what somebody's engines took, read from a CSV file.

A row is one of two kinds. With `requests_per_second` it is a *serving run*: requests of `prompt_tokens` and
`output_tokens` (means) at a constant rate on one engine, and latencies as its clients saw them. With `batch` it is a
*batch*: that many prompts of `prompt_tokens` in one step (`prompt_time_ms`), and one decode step of all of them
(`token_time_ms`). Empty cells are unknown, and unknown columns are left alone.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite

BATCH_METRICS = ("prompt_time_ms", "token_time_ms")
SERVING_METRICS = ("ttft_mean_ms", "ttft_p90_ms", "ttft_p99_ms", "itl_mean_ms", "e2e_mean_ms", "e2e_p99_ms")
_NEEDED = ("id", "model", "weights", "gpu", "tensor_parallel", "prompt_tokens", "output_tokens")


class WrongPoints(ValueError):  # noqa: N818 - names what is wrong
    """The file cannot be read as measured points; the message names the line and the cure."""


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """One row."""

    id: str
    source: str
    model: str
    weights: str
    gpu: str
    tensor_parallel: int
    prompt_tokens: int
    output_tokens: int
    batch: int | None
    requests_per_second: float | None
    max_num_batched_tokens: int | None
    measured: Mapping[str, float]
    """Milliseconds by column, the known ones only."""

    @property
    def serving(self) -> bool:
        """Whether requests came and went, rather than one batch from its start to its end."""
        return self.requests_per_second is not None


def read_points(lines: Iterable[str]) -> list[MeasuredPoint]:
    """The points of a CSV file with a header.

    Raises:
        WrongPoints: naming the line, the cause and the cure.
    """
    reader = csv.DictReader(lines)
    missing = [name for name in _NEEDED if name not in (reader.fieldnames or ())]
    if missing:
        raise WrongPoints(f"the header has no {', '.join(missing)}; give a CSV file with these columns")
    return [_point(row, reader.line_num) for row in reader]


def _point(row: Mapping[str, str | None], line: int) -> MeasuredPoint:
    def text(name: str) -> str:
        value = row.get(name)
        return value.strip() if value else ""

    def number(name: str) -> float | None:
        cell = text(name)
        if not cell:
            return None
        try:
            value = float(cell)
        except ValueError:
            value = float("nan")
        if not isfinite(value) or value <= 0.0:
            raise WrongPoints(f"line {line}: {name} is {cell!r}; write a number above 0, or nothing if it is unknown")
        return value

    def whole(name: str) -> int:
        value = number(name)
        if value is None or value != int(value):
            raise WrongPoints(f"line {line}: {name} is {text(name)!r}; write a whole number above 0")
        return int(value)

    def optional(name: str) -> int | None:
        return whole(name) if text(name) else None

    batch, rate = optional("batch"), number("requests_per_second")
    if (batch is None) == (rate is None):
        raise WrongPoints(f"line {line}: give either batch or requests_per_second")
    columns = BATCH_METRICS if rate is None else SERVING_METRICS
    found = {name: number(name) for name in columns}
    return MeasuredPoint(
        id=text("id"),
        source=text("source"),
        model=text("model"),
        weights=text("weights"),
        gpu=text("gpu"),
        tensor_parallel=whole("tensor_parallel"),
        prompt_tokens=whole("prompt_tokens"),
        output_tokens=whole("output_tokens"),
        batch=batch,
        requests_per_second=rate,
        max_num_batched_tokens=optional("max_num_batched_tokens"),
        measured={name: value for name, value in found.items() if value is not None},
    )
