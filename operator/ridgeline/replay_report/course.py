"""The course of each policy, as plots need it: few enough points, shares and rates instead of sums, missing as None."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_POINTS = 1000
"""Of a line. A longer timeline has neighbouring intervals merged, so that a report of any trace stays small."""


@dataclass(frozen=True, slots=True)
class Point:
    """One interval of the timeline, or several that were merged."""

    start_seconds: float
    end_seconds: float
    mixed: int
    """Engines by role, at the end."""
    prefill: int
    decode: int
    token_budget: int | None
    met_per_second: float | None
    """None where no request arrived."""
    stall_ratio: float | None
    """Like the quantiles: the worst of what was merged."""
    first_token_p50_seconds: float | None
    first_token_p95_seconds: float | None
    gap_p50_seconds: float | None
    gap_p95_seconds: float | None
    gap_p99_seconds: float | None
    prefill_intensity: float | None
    """FLOP/byte."""
    decode_intensity: float | None
    prefill_flops_per_second: float | None
    """While an engine is busy with the phase: where its work stands under the roof."""
    decode_flops_per_second: float | None
    prefill_busy: float | None
    """Share of time busy with the phase, of the engines that take it: those of its pool, and mixed ones."""
    decode_busy: float | None
    prefill_pressure: float | None
    """Work offered to the phase over what its engines can do, at modelled step times; the worst of what was merged."""
    decode_pressure: float | None


@dataclass(frozen=True, slots=True)
class Course:
    """One policy."""

    name: str
    """As it was asked for."""
    place: int
    """Among the policies, from 0: its colour."""
    summary: Mapping[str, Any]
    gpu_hours: float
    most_engines_needed: int | None
    """The policy's own estimate for the busiest window; None where it makes none."""
    decisions: Sequence[Mapping[str, Any]]
    points: Sequence[Point]
    merged: int
    """Intervals in a point; 1 where nothing was merged."""

    @property
    def end_seconds(self) -> float:
        """Of the last point."""
        return self.points[-1].end_seconds if self.points else 0.0


def courses(policies: Iterable[Mapping[str, Any]]) -> list[Course]:
    """The policies of an answer (`replay.play`), in their order."""
    return [_course(place, each) for place, each in enumerate(policies)]


def _course(place: int, each: Mapping[str, Any]) -> Course:
    timeline = each["timeline"]
    merged = max(1, -(-len(timeline) // MOST_POINTS))
    groups = (timeline[start : start + merged] for start in range(0, len(timeline), merged))
    points = [_point(group) for group in groups if group[-1]["end_seconds"] > group[0]["start_seconds"]]
    needed = each["most_engines_needed"]
    return Course(each["policy"], place, each["summary"], each["gpu_hours"], needed, each["decisions"], points, merged)


def _point(group: Sequence[Mapping[str, Any]]) -> Point:
    start, end, last = group[0]["start_seconds"], group[-1]["end_seconds"], group[-1]
    prefill, decode = _phase(group, "prefill"), _phase(group, "decode")
    met = sum(interval["outcomes"]["met"] for interval in group)
    return Point(
        start_seconds=start,
        end_seconds=end,
        mixed=last["mixed"],
        prefill=last["prefill"],
        decode=last["decode"],
        token_budget=last["token_budget"],
        met_per_second=met / (end - start) if any(interval["arrived"] for interval in group) else None,
        stall_ratio=_worst(group, "stall_ratio"),
        first_token_p50_seconds=_worst(group, "first_token_p50_seconds"),
        first_token_p95_seconds=_worst(group, "first_token_p95_seconds"),
        gap_p50_seconds=_worst(group, "gap_p50_seconds"),
        gap_p95_seconds=_worst(group, "gap_p95_seconds"),
        gap_p99_seconds=_worst(group, "gap_p99_seconds"),
        prefill_intensity=prefill[0],
        decode_intensity=decode[0],
        prefill_flops_per_second=prefill[1],
        decode_flops_per_second=decode[1],
        prefill_busy=prefill[2],
        decode_busy=decode[2],
        prefill_pressure=_worst(group, "prefill_pressure"),
        decode_pressure=_worst(group, "decode_pressure"),
    )


def _phase(group: Sequence[Mapping[str, Any]], phase: str) -> tuple[float | None, float | None, float | None]:
    """Intensity, FLOP/s while busy, and the share of time that is busy."""
    uses = [interval[f"{phase}_use"] for interval in group]
    if not all(uses):
        return None, None, None
    busy, flops, moved = (sum(use[name] for use in uses) for name in ("busy_seconds", "flops", "memory_bytes"))
    engines = sum(interval["engine_seconds"][role] for interval in group for role in ("mixed", phase))
    return (
        flops / moved if moved > 0.0 else None,
        flops / busy if busy > 0.0 else None,
        busy / engines if engines > 0.0 else None,
    )


def _worst(group: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [interval[name] for interval in group if interval[name] is not None]
    return max(values) if values else None
