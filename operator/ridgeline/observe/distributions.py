"""Bucket rates of a histogram → lengths with weights.

A bucket says how many requests fell between two bounds, not where. The mean of the same histogram
is known exactly, so one number t in [0, 1] places every bucket's requests at `lower + t * (upper - lower)`
such that the distribution has that mean: sum(w * lower) + t * sum(w * (upper - lower)) = mean. Without a
mean each bucket is placed at the geometric middle of its bounds, as lengths spread over orders of magnitude.

Worked example: all requests fall in (500, 1000] and their mean is 1000. Then t = 1 and the length is 1000,
where the middle alone would say 707.

Outputs that have ended say late how long outputs are: when long ones take over, those that end first are the short
ones. Where it is also known how many outputs grow beyond each bound, ended or not, weights are estimated as Kaplan and
Meier do (1958, "Nonparametric estimation from incomplete observations"), on flows. An output leaves the bucket (a, b]
by ending in it, with rate e, or by growing beyond b, with rate g. Of those that come to the bucket, e / (e + g) end in
it, whether or not the others have ended since. On a steady load g is the rate of all that end beyond b, and the
weights are those of the histogram. Outputs that were cut are in neither e nor g of the bucket that they were cut in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import mul, sub

from ridgeline.decide.snapshot import Distribution

SHORTEST_TOKENS = 1.0
"""No request is shorter."""

OVERFLOW_FACTOR = 2.0
"""Requests above the largest finite bound are taken to lie below this many times that bound."""

FLOAT_NOISE = 1e-9
"""Part of the largest rate below which a rate is taken for the rounding of a difference."""


def distribution(
    cumulative: Mapping[float, float], mean: float | None = None, longer: Mapping[float, float] | None = None
) -> Distribution | None:
    """Lengths with their weights from cumulative bucket rates.

    Args:
        cumulative: upper bound in tokens (`math.inf` for the last) → rate of requests at or below it.
        mean: mean length in tokens over the same window, where known.
        longer: bound in tokens → rate at which lengths grow beyond it; unless it is known for every finite bound, the
            weights are those of the requests that have ended.

    Returns:
        (tokens, weight) by rising tokens, weights summing to 1; None when no request was observed or a rate is unknown.
    """
    if not cumulative or not all(map(math.isfinite, cumulative.values())):
        return None
    bounds = sorted(cumulative)
    lowers, uppers, rates = _buckets(bounds, cumulative)
    total = math.fsum(rates)
    if total <= 0:
        return None
    weights = [rate / total for rate in rates]
    place = _place(lowers, uppers, weights, mean)
    if longer:
        growing = [longer.get(bound, 0.0 if bound == math.inf else math.nan) for bound in bounds]
        if all(map(math.isfinite, growing)):
            weights = _weights_with_running(rates, growing)
    return tuple(
        (math.sqrt(lower * upper) if place is None else lower + place * (upper - lower), weight)
        for lower, upper, weight in zip(lowers, uppers, weights, strict=True)
        if weight > 0
    )


def _buckets(
    bounds: Sequence[float], cumulative: Mapping[float, float]
) -> tuple[list[float], list[float], list[float]]:
    """Lower and upper ends of all buckets in tokens, and the rates of requests in them.

    A sum that falls with the bound is float noise and counts as flat.
    """
    lowers, uppers, rates = [], [], []
    lower, below = SHORTEST_TOKENS, 0.0
    for bound in bounds:
        lowers.append(lower)
        if bound > lower:
            lower = bound if bound < math.inf else lower * OVERFLOW_FACTOR
        uppers.append(lower)
        up_to = cumulative[bound]
        if up_to > below:
            rates.append(up_to - below)
            below = up_to
        else:
            rates.append(0.0)
    return lowers, uppers, rates


def _place(
    lowers: Sequence[float], uppers: Sequence[float], weights: Sequence[float], mean: float | None
) -> float | None:
    """Where in their buckets lengths lie, from 0 to 1; None where the mean is not known."""
    if mean is None or not math.isfinite(mean):
        return None
    widths = map(sub, uppers, lowers)
    lowest, spread = math.fsum(map(mul, lowers, weights)), math.fsum(map(mul, widths, weights))
    return min(1.0, max(0.0, (mean - lowest) / spread)) if spread > 0 else 0.0


def _weights_with_running(ending: Sequence[float], growing: Sequence[float]) -> list[float]:
    """Weights of buckets that count what has not ended yet, too.

    Args:
        ending: rates of what ended in each.
        growing: rate of what grew beyond the upper end of each; nothing grows beyond the last.

    What came to a bucket that nothing has left is still in it: nobody knows how long it will be, so it gets the weight
    of all that is longer. A bucket that nothing came to either was passed before the window, and says nothing.
    """
    noise = FLOAT_NOISE * max(*ending, *growing)
    weights = []
    left, coming = 1.0, 0.0
    for ends, grows in zip(ending, growing, strict=True):
        ended, grown = ends if ends > noise else 0.0, grows if grows > noise else 0.0
        if ended + grown > 0.0:
            weight = left * ended / (ended + grown)
        elif coming > 0.0:
            weight = left
        else:
            weight = 0.0
        weights.append(weight)
        left -= weight
        coming = grown
    return weights
