"""Bucket rates of a histogram → lengths with weights.

A bucket says how many requests fell between two bounds, not where. The mean of the same histogram
is known exactly, so one number t in [0, 1] places every bucket's requests at `lower + t * (upper - lower)`
such that the distribution has that mean: sum(w * lower) + t * sum(w * (upper - lower)) = mean. Without a
mean each bucket is placed at the geometric middle of its bounds, as lengths spread over orders of magnitude.

Worked example: all requests fall in (500, 1000] and their mean is 1000. Then t = 1 and the length is 1000,
where the middle alone would say 707.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ridgeline.decide.snapshot import Distribution

SHORTEST_TOKENS = 1.0
"""No request is shorter."""

OVERFLOW_FACTOR = 2.0
"""Requests above the largest finite bound are taken to lie below this many times that bound."""


def distribution(cumulative: Mapping[float, float], mean: float | None = None) -> Distribution | None:
    """Lengths with their weights from cumulative bucket rates.

    Args:
        cumulative: upper bound in tokens (`math.inf` for the last) → rate of requests at or below it.
        mean: mean length in tokens over the same window, where known.

    Returns:
        (tokens, weight) by rising tokens, weights summing to 1; None when no request was observed or a rate is unknown.
    """
    if not cumulative or not all(math.isfinite(rate) for rate in cumulative.values()):
        return None
    buckets = _buckets(cumulative)
    total = math.fsum(rate for _, _, rate in buckets)
    if total <= 0:
        return None
    weighted = [(lower, upper, rate / total) for lower, upper, rate in buckets]
    if mean is None or not math.isfinite(mean):
        return tuple((math.sqrt(lower * upper), weight) for lower, upper, weight in weighted)
    lowest = math.fsum(lower * weight for lower, _, weight in weighted)
    spread = math.fsum((upper - lower) * weight for lower, upper, weight in weighted)
    place = min(1.0, max(0.0, (mean - lowest) / spread)) if spread > 0 else 0.0
    return tuple((lower + place * (upper - lower), weight) for lower, upper, weight in weighted)


def _buckets(cumulative: Mapping[float, float]) -> list[tuple[float, float, float]]:
    """Non-empty buckets as (lower, upper, rate); a sum that falls with the bound is float noise and counts as flat."""
    result = []
    lower, below = SHORTEST_TOKENS, 0.0
    for bound in sorted(cumulative):
        upper = max(lower, bound if math.isfinite(bound) else lower * OVERFLOW_FACTOR)
        rate = cumulative[bound] - below
        if rate > 0:
            result.append((lower, upper, rate))
            below = cumulative[bound]
        lower = upper
    return result
