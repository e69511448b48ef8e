"""The best of the choices that never change, picked in hindsight: the fair rival of a policy that adapts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

Played = Mapping[str, Any]
"""What `replay.play` answers."""


class BestStatic(NamedTuple):
    """The best of what was played; None where nothing of the kind was."""

    mixed: Played | None
    """Mixed engines at their best token budget."""
    choice: Played | None
    """The better of that and the best split."""


def best_static(played: Iterable[Played]) -> BestStatic:
    """Pick by attainment, then by the 95th percentile of the time to first token, then by place.

    Args:
        played: of one trace; policies that are neither `mixed:TOKENS` nor `split:PREFILL` are passed over.
    """
    static = [each for each in played if each["policy"].partition(":")[0] in ("mixed", "split")]
    mixed = [each for each in static if each["policy"].startswith("mixed:")]
    return BestStatic(min(mixed, key=_rank, default=None), min(static, key=_rank, default=None))


def _rank(played: Played) -> tuple[float, float]:
    summary = played["summary"]
    attainment, first = summary["attainment"], summary["time_to_first_token_seconds"]["p95"]
    return -(attainment or 0.0), float("inf") if first is None else first
