"""The shape of the arrivals, learned from what mixed engines show today.

Rates and lengths come from the recording rules; how bursty arrivals are does not. Two parameters stand for it: the
burst factor of late gaps and the variability of arrivals in the prefill queue. Each is raised, never lowered, until
the what-if model explains the share of requests that the engines report for today's topology; then all candidates
are scored with it. In a split late gaps tell nothing about it: what was learned before it is kept, so that a fleet
is not merged into the misses that it was split for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isfinite

from ridgeline.api.fleet import Mode
from ridgeline.decide.candidates import forecast
from ridgeline.decide.question import Question
from ridgeline.decide.whatif import Load

MOST_BURST = 8.0
MOST_VARIABILITY = 30.0
ROUNDS = 8


def calibrated(question: Question, load: Load) -> Load:
    """The load with arrivals as bursty as today's misses say."""
    signals = question.signals
    load = replace(load, burst=max(1.0, question.history.burst, (question.status.arrivalBurstPercent or 0) / 100.0))
    if question.today.mode is not Mode.MIXED or signals is None or load.requests_per_second <= 0.0:
        return load
    load = replace(load, burst=1.0)

    def gaps_late(burst: float) -> float:
        return forecast(replace(load, burst=burst), question.today, question.budget).gaps_late

    burst = _raised(gaps_late, load.burst, MOST_BURST, signals.gaps_late_ratio)
    load = replace(load, burst=burst)

    def first_token_late(variability: float) -> float:
        shaped = replace(load, arrival_variability=variability)
        return forecast(shaped, question.today, question.budget).first_token_late

    variability = _raised(first_token_late, load.arrival_variability, MOST_VARIABILITY, signals.first_token_late_ratio)
    return replace(load, arrival_variability=variability)


def _raised(model: Callable[[float], float], least: float, most: float, observed: float | None) -> float:
    """The least parameter with which the model reaches what was observed, by bisection."""
    if observed is None or not isfinite(observed) or model(least) >= observed:
        return least
    if model(most) <= observed:
        return most
    low, high = least, most
    for _ in range(ROUNDS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if model(middle) >= observed else (middle, high)
    return high
