"""Probabilities that the what-if model is made of. Whatever goes in, what comes out lies between 0 and 1."""

from __future__ import annotations

from math import erfc, exp, floor, hypot, sqrt

STEP_SPREAD = 0.10
"""A step is never exactly as long as modelled: relative width of the normal tail."""
LATE_GAPS_SHARE = 0.05
"""A request misses its objective when more than this share of its own gaps is late."""


def late(seconds: float, objective: float, spread_seconds: float = 0.0) -> float:
    """Probability that something modelled as `seconds` takes longer than the objective.

    `spread_seconds` is a standard deviation beside that of the model itself.
    """
    if seconds <= 0.0:
        return 0.0
    spread = hypot(STEP_SPREAD * seconds, spread_seconds)
    return 0.5 * erfc((objective - seconds) / spread / sqrt(2.0))


def late_rows(gaps: float, share_late: float, row: float) -> float:
    """Probability that a request with so many gaps meets more late ones than it may."""
    if gaps < 1.0 or share_late <= 0.0:
        return 0.0
    row = min(row, max(1.0, gaps))
    needed = floor(LATE_GAPS_SHARE * gaps / row) + 1
    mean = gaps * share_late / row
    return share_late * _poisson_tail(needed - 1, mean) + (1.0 - share_late) * _poisson_tail(needed, mean)


def _poisson_tail(at_least: int, mean: float) -> float:
    """P[N ≥ at_least] for a Poisson variable."""
    if at_least <= 0:
        return 1.0
    if mean <= 0.0:
        return 0.0
    if at_least > 60 or mean > 200.0:  # normal, with the correction for whole numbers
        return 0.5 * erfc((at_least - 0.5 - mean) / sqrt(2.0 * mean))
    term = total = exp(-mean)
    for n in range(1, at_least):
        term *= mean / n
        total += term
    return min(1.0, max(0.0, 1.0 - total))


def either(*parts: float) -> float:
    """Probability of any of several independent things."""
    kept = 1.0
    for part in parts:
        kept *= 1.0 - min(1.0, max(0.0, part))
    return min(1.0, max(0.0, 1.0 - kept))
