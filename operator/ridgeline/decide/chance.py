"""Probabilities that the what-if model is made of. Whatever goes in, what comes out lies between 0 and 1."""

from __future__ import annotations

from math import erfc, exp, floor, hypot, log, pi, sqrt

STEP_SPREAD = 0.05
"""A step is never exactly as long as modelled: relative width of the normal tail."""
LATE_GAPS_SHARE = 0.05
"""A request misses its objective when more than this share of its own gaps is late."""
MOST_SUMMED, LARGEST_MEAN = 60, 200.0
"""A Poisson variable with more terms to add, or of a larger mean, is taken for a normal one."""
LOG_OF_NOTHING = -40.0
NOTHING = exp(LOG_OF_NOTHING)
"""A probability that `either` does not tell from 0: it is below 2⁻⁵⁴, and no float lies between 1 - 2⁻⁵³ and 1."""


def late(seconds: float, objective: float, spread_seconds: float = 0.0) -> float:
    """Probability that something modelled as `seconds` takes longer than the objective.

    `spread_seconds` is a standard deviation beside that of the model itself.
    """
    if seconds <= 0.0:
        return 0.0
    spread = STEP_SPREAD * seconds
    if spread_seconds:
        spread = hypot(spread, spread_seconds)
    return 0.5 * erfc((objective - seconds) / spread / sqrt(2.0))


def late_rows(gaps: float, share_late: float, row: float) -> float:
    """Probability that a request with so many gaps meets more late ones than it may."""
    if gaps < 1.0 or share_late <= 0.0:
        return 0.0
    row = min(row, gaps)
    needed = floor(LATE_GAPS_SHARE * gaps / row) + 1
    mean = gaps * share_late / row
    as_many, more = _poisson_tails(needed, mean)
    return share_late * as_many + (1.0 - share_late) * more


def _poisson_tails(at_least: int, mean: float) -> tuple[float, float]:
    """P[N ≥ at_least - 1] and P[N ≥ at_least] for a Poisson variable of a mean above 0; `at_least` from 1 on."""
    if at_least - 1 > MOST_SUMMED or mean > LARGEST_MEAN:
        return _normal_tail(at_least - 1, mean), _normal_tail(at_least, mean)
    before, term = 0.0, exp(-mean)
    total = term
    for n in range(1, at_least):
        before = total
        term *= mean / n
        total += term
    more = max(0.0, 1.0 - total) if at_least <= MOST_SUMMED else _normal_tail(at_least, mean)
    return max(0.0, 1.0 - before), more


def _normal_tail(at_least: int, mean: float) -> float:
    """The same where there are too many terms to add: normal, with the correction for whole numbers."""
    return 0.5 * erfc((at_least - 0.5 - mean) / sqrt(2.0 * mean))


def either(*parts: float) -> float:
    """Probability of any of several independent things."""
    kept = 1.0
    for part in parts:
        if part > 0.0:
            kept *= 1.0 - min(1.0, part)
    return 1.0 - kept


def waiting(servers: int, utilization: float) -> float:
    """Probability that all servers of a common queue are busy: Erlang's second formula; 1 from full use on."""
    if utilization >= 1.0:
        return 1.0
    offered, blocked = servers * utilization, 1.0
    for n in range(1, servers + 1):
        blocked = offered * blocked / (n + offered * blocked)
    return blocked / (1.0 - utilization * (1.0 - blocked))


def longer_wait(seconds: float, drift: float, variance: float, horizon_seconds: float) -> float:
    """Probability that a queue which was empty at first is longer than this at a moment within the horizon.

    The queue as a Brownian motion reflected at zero (Harrison 1985, section 1.8), at three moments of the horizon.

    Args:
        seconds: of waiting.
        drift: seconds by which the queue grows in a second; below 0 where there is capacity left.
        variance: of that, in s²/s.
        horizon_seconds: from the empty queue to the last moment.

    Returns:
        0 where it is surely below `NOTHING`.
    """
    if seconds <= 0.0:
        return 1.0
    # Only from below it comes to its steady state, in which it is longer with probability exp(2·drift·seconds/variance).
    if 2.0 * drift * seconds < LOG_OF_NOTHING * variance:
        return 0.0
    total = 0.0
    for part in (1 / 6, 1 / 2, 5 / 6):
        passed = part * horizon_seconds
        if variance <= 0.0:
            total += float(drift * passed > seconds)
            continue
        spread = sqrt(variance * passed)
        total += 0.5 * erfc((seconds - drift * passed) / spread / sqrt(2.0))
        reflected = (seconds + drift * passed) / spread
        total += exp(min(0.0, 2.0 * drift * seconds / variance + _log_tail(reflected)))
    return min(1.0, total / 3.0)


def _log_tail(deviations: float) -> float:
    """Logarithm of the probability that a normal variable lies so many deviations above its mean."""
    if deviations < 10.0:
        return log(0.5 * erfc(deviations / sqrt(2.0)))
    return -deviations * deviations / 2.0 - log(deviations * sqrt(2.0 * pi))
