"""The what-if model held against what today's topology shows; all candidates are then scored with what was learned.

**The shape of the arrivals.** Rates and lengths come from the recording rules; how bursty arrivals are does not. Two
parameters stand for it: the burst factor of late gaps and the variability of arrivals in the prefill queue. Each is
raised, never lowered, until the model explains the share of requests that miss today; late gaps count while gaps are
late now, since a long answer is counted long after. In a split late gaps tell nothing about it: what was learned before
it is kept, so that a fleet is not merged into the misses that it was split for.

**Steps and work.** Near the limit of a topology a few per cent of rate, length or step time lie between no request and
all that miss. So where the model expects misses that do not come, steps are taken to be a little shorter and the load a
little lighter, as little as explains what is seen. How far that may go is bounded, so that a load that outgrows the
fleet is still noticed before requests are late; and in a split no further than explains the decodes that run, which
tell of long answers before these end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isfinite

from ridgeline.api.fleet import Mode
from ridgeline.decide.candidates import forecast
from ridgeline.decide.guards import tuned_lately
from ridgeline.decide.observed import decodes_held
from ridgeline.decide.question import Question
from ridgeline.decide.snapshot import Signals
from ridgeline.decide.whatif import Forecast, Load, MixedEngines, mixed, mixed_engines

LEAST_PACE = 0.9
"""Of the modelled length of a step: what efficiencies and rooflines are off by at most."""
LEAST_WORK = 0.8
"""Of the measured rate."""
QUEUE_SHARE = 0.5
"""First tokens this late, of the objective, tell of a queue: then the load is more than is done, late or not."""
MOST_BURST = 8.0
MOST_VARIABILITY = 30.0
ROUNDS = 8


def bursty(question: Question, load: Load) -> Load:
    """The load with arrivals as bursty as today's misses say."""
    signals = question.signals
    load = replace(load, burst=max(1.0, question.history.burst, (question.status.arrivalBurstPercent or 0) / 100.0))
    if question.today.mode is not Mode.MIXED or signals is None or load.requests_per_second <= 0.0:
        return load
    if tuned_lately(question):  # these misses are still those of the budget before
        return load
    load = replace(load, burst=1.0)
    budget = question.today.tokenBudget or question.budget
    today = mixed_engines(load, question.today.mixed, budget)
    if not isinstance(today, MixedEngines):  # overloaded, however requests arrive
        return load
    expected, least = mixed(load, question.today.mixed, budget), load.arrival_variability
    burst = _raised(today.gaps_late, load.burst, MOST_BURST, expected.gaps_late, _gaps_late_now(question, signals))
    variability = _raised(
        today.first_token_late, least, MOST_VARIABILITY, expected.first_token_late, signals.first_token_late_ratio
    )
    return replace(load, burst=burst, arrival_variability=variability)


def _gaps_late_now(question: Question, signals: Signals) -> float | None:
    """Share of requests with too many late gaps; none where gaps are no longer late.

    A request is counted when it ends, and long answers end minutes after the topology in which their gaps were late.
    """
    gap, objective = signals.inter_token_p99_seconds, question.spec.objectives.interTokenLatencyMilliseconds / 1000.0
    return 0.0 if gap is not None and gap <= objective else signals.gaps_late_ratio


def no_more_than_seen(question: Question, load: Load) -> Load:
    """The load as today's topology takes it: steps as short and work as little as explains that requests are in time."""
    return _no_more_work(question, _as_fast(question, load))


def _as_fast(question: Question, load: Load) -> Load:
    """Gaps are seen at once: where more are late than may be, steps are still no longer than explains how many.

    Not in a split: while its decode engines are full, slower prefill engines hold back what would make more of them late.
    """
    seen = question.signals.gaps_late_ratio if question.signals else None
    if seen is None or not isfinite(seen) or tuned_lately(question):
        return load
    if seen > question.modelled_limit and question.split:
        return load
    return _least_taken_off(question, load, LEAST_PACE, seen, lambda forecast: forecast.gaps_late, _with_pace)


def _no_more_work(question: Question, load: Load) -> Load:
    """Requests that wait are missed later: where a queue is there, nothing is taken off.

    Where a few more miss than may, within what forecasts are off by, the work is no more than explains how many, if less
    work explains it; but not in a split, as for its steps.
    """
    seen = question.signals.missed_ratio if question.signals else None
    first = question.signals.time_to_first_token_p95_seconds if question.signals else None
    if seen is None or not isfinite(seen) or tuned_lately(question):
        return load
    limit, tolerance = question.modelled_limit, question.spec.rules.tolerancePercent / 100.0
    if seen > (limit if question.split else max(limit, tolerance)):
        return load
    if first is None or first > QUEUE_SHARE * load.first_token_objective_seconds:
        return load
    return _least_taken_off(question, load, LEAST_WORK, seen, lambda forecast: forecast.missed, _with_work)


def _with_pace(load: Load, part: float) -> Load:
    return replace(load, steps=load.steps.scaled(part, part))


def _with_work(load: Load, part: float) -> Load:
    return replace(load, requests_per_second=part * load.requests_per_second)


def _least_taken_off(
    question: Question,
    load: Load,
    least: float,
    seen: float,
    of: Callable[[Forecast], float],
    reduced: Callable[[Load, float], Load],
) -> Load:
    """The load reduced as little as makes the model expect no more misses than are seen or may be. By bisection.

    Where more are seen than may be, nothing is taken off that does not explain them.
    """
    held = decodes_held(question.snapshot) or 0.0
    limit = max(seen, question.modelled_limit)

    def explains(load: Load) -> bool:
        expected = forecast(load, question.today, question.budget)
        in_time = of(expected) <= limit
        return in_time or (expected.decode_batch <= held and expected.first_token_late <= limit)

    if explains(load):
        return load
    low, high = least, 1.0
    for _ in range(ROUNDS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if explains(reduced(load, middle)) else (low, middle)
    less = reduced(load, low)
    explained = seen <= question.modelled_limit or of(forecast(less, question.today, question.budget)) <= limit
    return less if explained else load


def _raised(
    model: Callable[[float], float], least: float, most: float, expected: float, observed: float | None
) -> float:
    """The least parameter with which the model reaches what was observed, by bisection; `expected` is the least's."""
    if not observed or not isfinite(observed) or expected >= observed:  # any reaches none
        return least
    if model(most) <= observed:
        return most
    low, high = least, most
    for _ in range(ROUNDS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if model(middle) >= observed else (middle, high)
    return high
