"""Fits the constants of the cost model to measurements, and leaves one model out at a time.

    python -m tests.bench.fit_cost_model --points FILE.csv

Four fits, each with few constants (`ridgeline.cost.hardware` holds the results, rounded):

1. *Kernels*: measured times of single kernels on an H100, published with ai-dynamo/aiconfigurator (Apache-2.0, kernels
   of vLLM 0.24), give the shares of the peaks. They are listed below.
2. *Serving runs* of the file: seconds per layer, seconds per request, and the shared prefix, which is a property of the
   runs. A steady state stands for the queue: the runs are far from saturation. The judge of it is the error on the
   models that were left out.
3. *Serving runs of models with experts*: what a layer of experts takes, the rest as fitted before.
4. *Batches* of the file (vLLM of 2023): constants of that engine, leaving out one row at a time: all are one
   model's.

Every fit minimises the sum of |log(modelled / measured)|: one row that no model explains does not bend the rest.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from statistics import median

from ridgeline.cost.efficiency import MICRO, AllReduce, Efficiency
from ridgeline.cost.hardware import H100, REQUEST_SECONDS, VLLM_2023
from ridgeline.cost.points import MeasuredPoint, read_points
from ridgeline.cost.step_cost import StepCost
from ridgeline.cost.validation import SHARED_PREFIX_TOKENS, batch_milliseconds, cost_of, shape_of
from ridgeline_exporters.roofline.windows import attended_pairs

Loss = Callable[[Sequence[float]], float]


def descend(loss: Loss, start: Sequence[float], step: float = 0.3, smallest_step: float = 0.002) -> list[float]:
    """Coordinate descent over positive constants, by factors that get closer to 1."""
    best, least = list(start), loss(start)
    while step > smallest_step:
        moved = False
        for index in range(len(best)):
            for factor in (1.0 + step, 1.0 / (1.0 + step)):
                trial = [*best[:index], best[index] * factor, *best[index + 1 :]]
                value = loss(trial)
                if value < least - 1e-9:
                    best, least, moved = trial, value, True
        if not moved:
            step /= 2.0
    return best


# ---------------------------------------------------------------- kernels

PEAK_16_BIT, PEAK_FP8, BANDWIDTH = 989.4e12, 1979e12, 3.35e12
TOKENS = (1, 32, 128, 256, 512, 1024, 2048, 8192)
# (columns, rows) of the matrix → by tokens, microseconds above 1 and shares of the peak below
GEMM_16_BIT = {
    (6144, 4096): (20, 24, 0.27, 0.49, 0.73, 0.80, 0.81, 0.78),
    (7168, 8192): (50, 42, 0.36, 0.65, 0.77, 0.80, 0.85, 0.76),
    (8192, 3584): (22, 23, 0.32, 0.57, 0.77, 0.83, 0.82, 0.75),
}
GEMM_FP8 = {(7168, 8192): (26, 28, 0.26, 0.43, 0.54, 0.53, 0.56, 0.66)}
# microseconds of one layer with 32 query and 8 KV heads of 128, KV of 16 bit
PREFILL_ATTENTION = {1024: 36, 2048: 89, 4096: 264, 8192: 912, 16384: 3310}
DECODE_ATTENTION = {
    (1, 1024): 14, (1, 4096): 17, (1, 32768): 68, (8, 1024): 18, (8, 4096): 58, (8, 32768): 368,
    (32, 1024): 60, (32, 4096): 186, (32, 16384): 689, (128, 1024): 190, (128, 4096): 690,
}  # fmt: skip


def kernel_errors(
    peak: float, weight_bytes: float, table: Mapping[tuple[int, int], Sequence[float]]
) -> Callable[[Sequence[float]], list[float]]:
    """Of GEMMs as max(FLOPs / (c · peak), bytes / (b · bandwidth)) + start."""
    rows = []
    for (columns, depth), cells in table.items():
        for tokens, cell in zip(TOKENS, cells, strict=True):
            flops = 2.0 * tokens * columns * depth
            moved = weight_bytes * depth * (columns + tokens) + 2.0 * tokens * columns
            rows.append((flops, moved, cell * MICRO if cell > 1 else flops / (cell * peak)))

    def errors(constants: Sequence[float]) -> list[float]:
        compute, bandwidth, start = constants
        if compute > 1.0 or bandwidth > 1.0:
            return [float("inf")]
        return [
            log((max(flops / (compute * peak), moved / (bandwidth * BANDWIDTH)) + start * MICRO) / seconds)
            for flops, moved, seconds in rows
        ]

    return errors


def prefill_attention_errors(constants: Sequence[float]) -> list[float]:
    """As (pairs + ramp · tokens) · FLOPs / (c · peak)."""
    compute, ramp = constants
    return [
        log(4 * 32 * 128 * (attended_pairs(tokens, 0) + ramp * tokens) / (compute * PEAK_16_BIT) / (micros * MICRO))
        for tokens, micros in PREFILL_ATTENTION.items()
    ]


def decode_attention_errors(constants: Sequence[float]) -> list[float]:
    """As bytes / (b · bandwidth) + start."""
    bandwidth, start = constants
    return [
        log((batch * context * 4096 / (bandwidth * BANDWIDTH) + start * MICRO) / (micros * MICRO))
        for (batch, context), micros in DECODE_ATTENTION.items()
    ]


def fit_kernels() -> None:
    """Prints the fit of each kernel."""
    print("Kernels on an H100: shares of the peaks, microseconds of a start, mean error")
    fits: list[tuple[str, Callable[[Sequence[float]], list[float]], list[float]]] = [
        ("GEMM, 16 bit: compute, bandwidth, start", kernel_errors(PEAK_16_BIT, 2.0, GEMM_16_BIT), [0.8, 0.9, 4.0]),
        ("GEMM, FP8: compute, bandwidth, start", kernel_errors(PEAK_FP8, 1.0, GEMM_FP8), [0.6, 0.8, 4.0]),
        ("Prefill attention: compute, ramp in keys", prefill_attention_errors, [0.7, 750.0]),
        ("Decode attention: bandwidth, start", decode_attention_errors, [0.9, 11.0]),
    ]
    for name, errors, start in fits:
        constants = descend(lambda trial, errors=errors: sum(map(abs, errors(trial))), start)  # type: ignore[misc]
        found = errors(constants)
        values = ", ".join(f"{value:.3g}" for value in constants)
        print(f"  {name:42} {values:18} {100 * sum(map(abs, found)) / len(found):.1f} %")


# ---------------------------------------------------------------- points

Fit = Callable[[MeasuredPoint, Sequence[float]], Mapping[str, float]]
"""Milliseconds by column of a point, with these constants."""


def serving_milliseconds(point: MeasuredPoint, constants: Sequence[float]) -> dict[str, float]:
    """A serving run. Constants: microseconds per layer, milliseconds per request, shared prefix in tokens."""
    layer, request, prefix = constants
    return steady_state(point, cost_of(point, replace(H100, layer_seconds=layer * MICRO)), request, prefix)


def steady_state(point: MeasuredPoint, cost: StepCost, request: float, prefix: float) -> dict[str, float]:
    """A serving run's steady state: mean batch by Little's law, waiting for half a step, prompts alone in their steps.

    `request` is milliseconds, `prefix` tokens.
    """
    rate, budget = point.requests_per_second or 0.0, point.max_num_batched_tokens or 8192
    context = point.prompt_tokens + point.output_tokens / 2
    cached = round(min(prefix, point.prompt_tokens - 1))
    batch, gap, first = 1.0, 0.0, 0.0
    for _ in range(30):
        lower = max(1, int(batch))
        (start, slope), (above, _) = cost.decode_run(lower), cost.decode_run(lower + 1)
        step = start + max(0.0, batch - lower) * (above - start) + slope * batch * context
        sequences, first, added, done = max(1, round(batch)), 0.0, 0.0, cached
        while done < point.prompt_tokens:
            chunk = min(point.prompt_tokens - done, budget - sequences)
            ends = done + chunk == point.prompt_tokens
            pairs, kv_tokens = attended_pairs(chunk, done), round(sequences * context)
            seconds = cost.seconds(chunk, pairs, done, sequences, kv_tokens, sequences + ends)
            first, added, done = first + seconds, added + seconds - step, done + chunk
        gap = step / max(0.05, 1.0 - rate * added)
        batch = min(1024.0, rate * point.output_tokens * gap)
    first += request * 1e-3 + gap / 2.0
    return {
        "ttft_mean_ms": 1e3 * first,
        "itl_mean_ms": 1e3 * gap,
        "e2e_mean_ms": 1e3 * (first + (point.output_tokens - 1) * gap),
    }


def expert_milliseconds(point: MeasuredPoint, constants: Sequence[float]) -> dict[str, float]:
    """A serving run of a model with experts. Constant: microseconds per layer of experts."""
    reached = replace(H100, expert_layer_seconds=constants[0] * MICRO)
    return steady_state(point, cost_of(point, reached), 1e3 * REQUEST_SECONDS, SHARED_PREFIX_TOKENS)


def efficiency_2023(constants: Sequence[float]) -> Efficiency:
    """Constants: shares of GEMM, weights and attention; ring in GB/s; microseconds per launch and sequence."""
    gemm, weights, attention, ring, launch, sequence = constants
    return replace(
        VLLM_2023,
        gemm_compute=min(1.0, gemm),
        weight_bandwidth=min(1.0, weights),
        attention_compute=min(1.0, attention),
        all_reduce=AllReduce.ring(ring * 1e9, 10 * MICRO),
        launch_seconds=launch * MICRO,
        sequence_seconds=sequence * MICRO,
    )


def batch_milliseconds_2023(point: MeasuredPoint, constants: Sequence[float]) -> Mapping[str, float]:
    """A batch under vLLM of 2023."""
    return batch_milliseconds(point, cost_of(point, efficiency_2023(constants)))


def errors_of(fit: Fit, constants: Sequence[float], points: Sequence[MeasuredPoint]) -> Iterator[tuple[str, float]]:
    """(column, modelled / measured - 1) of each value that both have."""
    for point in points:
        modelled = fit(point, constants)
        for name, measured in point.measured.items():
            if name in modelled:
                yield name, modelled[name] / measured - 1.0


def fitted(fit: Fit, points: Sequence[MeasuredPoint], start: Sequence[float]) -> list[float]:
    """The constants that fit these points best."""

    def loss(constants: Sequence[float]) -> float:
        return sum(abs(log(1.0 + error)) for _, error in errors_of(fit, constants, points))

    return descend(loss, start)


@dataclass(frozen=True, slots=True)
class Family:
    """Points whose constants are fitted together."""

    title: str
    """With the constants and their units."""
    holds: Callable[[MeasuredPoint], bool]
    fit: Fit
    start: Sequence[float]
    """Constants from which the fit begins."""
    group: Callable[[MeasuredPoint], str]
    """What is left out together."""

    def of(self, points: Iterable[MeasuredPoint]) -> list[MeasuredPoint]:
        """Those that belong to it."""
        return [point for point in points if self.holds(point)]


SERVING = Family(
    "Serving runs: microseconds per layer, milliseconds per request, shared prefix in tokens; median errors",
    lambda point: point.serving and not shape_of(point).experts,
    serving_milliseconds, (32.0, 8.0, 150.0), lambda point: point.model,
)  # fmt: skip
EXPERTS = Family(
    "Serving runs with experts: microseconds per layer of experts",
    lambda point: point.serving and bool(shape_of(point).experts),
    expert_milliseconds, (100.0,), lambda point: f"row {point.id}",
)  # fmt: skip
BATCHES = Family(
    "Batches under vLLM of 2023: GEMM, weights, attention, ring GB/s, microseconds per launch, sequence",
    lambda point: not point.serving,
    batch_milliseconds_2023, (0.6, 0.8, 0.4, 80.0, 350.0, 280.0), lambda point: f"row {point.id}",
)  # fmt: skip


def left_out(family: Family, points: Iterable[MeasuredPoint]) -> Iterator[tuple[str, list[float], list[MeasuredPoint]]]:
    """Each group of a family, the constants that fit its other points best, and the group's own points.

    Nothing where there is only one group: what is left would be no points at all.
    """
    members = family.of(points)
    groups = sorted({family.group(point) for point in members})
    for name in groups if len(groups) > 1 else ():
        others = [point for point in members if family.group(point) != name]
        constants = fitted(family.fit, others, family.start)
        yield name, constants, [point for point in members if family.group(point) == name]


def report(family: Family, points: Sequence[MeasuredPoint]) -> None:
    """Prints the constants, in-sample errors, and the errors of each group with constants fitted without it."""

    def line(what: str, constants: Sequence[float], errors: Sequence[tuple[str, float]]) -> None:
        columns = sorted({name for name, _ in errors})
        medians = (f"{name} {100 * median(abs(e) for n, e in errors if n == name):5.1f} %" for name in columns)
        print(f"  {what:24} {', '.join(f'{value:.4g}' for value in constants):44} {'  '.join(medians)}")

    print(f"\n{family.title}")
    members = family.of(points)
    constants = fitted(family.fit, members, family.start)
    line("all", constants, list(errors_of(family.fit, constants, members)))
    unseen: list[tuple[str, float]] = []
    for name, constants, group in left_out(family, points):
        errors = list(errors_of(family.fit, constants, group))
        line(f"without {name}", constants, errors)
        unseen += errors
    line("on what was left out", (), unseen)


def main() -> int:
    """Prints all fits."""
    parser = argparse.ArgumentParser(description="Fits the constants of the cost model to measurements.")
    parser.add_argument("--points", type=Path, required=True, metavar="FILE.csv", help="measured points")
    points = read_points(parser.parse_args().points.read_text(encoding="utf-8").splitlines())
    fit_kernels()
    for family in (SERVING, EXPERTS, BATCHES):
        report(family, points)
    return 0


if __name__ == "__main__":
    sys.exit(main())
