"""First tokens of mixed engines: as late in the simulator as the what-if model says, with what it says of their queues."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from statistics import fmean

import pytest

from ridgeline.api.fleet import FleetStatus
from ridgeline.cost.step_cost import EngineCost
from ridgeline.decide import whatif
from ridgeline.decide.candidates import forecast
from ridgeline.decide.plan import History
from ridgeline.decide.question import Question
from ridgeline.decide.snapshot import Snapshot
from ridgeline.simulate.controller import Orders, StaticMixed, steer
from ridgeline.simulate.fleet import Fleet
from ridgeline.simulate.load import LONG_PROMPTS, Stream, poisson
from ridgeline.simulate.observer import EPOCH_SECONDS, Observer
from ridgeline.simulate.replay import Plant
from ridgeline.simulate.results import Results
from ridgeline.simulate.router import least_load
from ridgeline.simulate.traces import Arrival
from ridgeline_exporters.roofline import catalogue, hardware
from ridgeline_exporters.roofline.model import ModelShape
from ridgeline_exporters.roofline.parallelism import Parallelism

SECONDS, BUDGET_TOKENS = 900.0, 256
PER_SECOND = 0.6
"""Requests to an engine: prompts keep it busy for about four fifths of the time."""


class Watching:
    """All engines mixed, for good; keeps the questions that an operator would have."""

    name = "watching"

    def __init__(self, plant: Plant) -> None:
        self._spec = plant.spec()
        self.questions: list[Question] = []

    def begin(self, engines: tuple[str, ...]) -> Orders:
        return StaticMixed(BUDGET_TOKENS).begin(engines)

    def decide(self, now: float, snapshot: Snapshot) -> Orders:
        self.questions.append(Question(snapshot, self._spec, FleetStatus(), History(), EPOCH_SECONDS + now))
        return Orders()


def arrivals(engines: int) -> Iterator[Arrival]:
    rate = engines * PER_SECOND
    return poisson([Stream(lambda _: rate, LONG_PROMPTS.draw)], SECONDS, rate, random.Random(engines))


@cache
def played(engines: int) -> tuple[float, list[Question]]:
    """Share of first tokens that came late, and what there was to see, once a window of the rules was full."""
    shape = ModelShape.from_config(catalogue.find_model("llama-3.1-70b"), "fp8", parallelism=Parallelism(4))
    plant = Plant(shape, hardware.find("H100-SXM5-80GB"), engines, 10_000, 50)
    results, watching = Results(), Watching(plant)
    fleet = Fleet(plant.settings(), EngineCost(shape, plant.accelerator), least_load(), results.done)
    results.watch(fleet)
    steer(fleet, watching, Observer(fleet, plant.facts()))
    fleet.run(arrivals(engines))
    ended = sum(each.arrived for each in results.timeline())
    late = sum(each.outcomes["first_token_late"] for each in results.timeline())
    return late / ended, [q for q in watching.questions if 60.0 < q.now - EPOCH_SECONDS < SECONDS]


def forecast_late(questions: list[Question]) -> float:
    """What the model expects, on average over the questions."""
    _forget()
    loads = [(question, question.load()) for question in questions]
    return fmean(forecast(load, q.today, q.budget).first_token_late for q, load in loads if load is not None)


def _forget() -> None:
    for remembered in (whatif.mixed, whatif.mixed_engines):
        remembered.cache_clear()


@pytest.mark.parametrize("engines", [4, 8, 16])
def test_first_tokens_of_mixed_engines_are_as_late_as_forecast(engines: int) -> None:
    late, questions = played(engines)
    assert 0.01 < late < 0.5, "a load at which some are late"
    assert forecast_late(questions) == pytest.approx(late, rel=0.5)


def test_mixed_engines_do_not_share_one_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    late, questions = played(16)
    monkeypatch.setattr(whatif, "MIXED_SHARE_A_QUEUE", 16)
    try:
        assert forecast_late(questions) < 0.5 * late
    finally:
        _forget()
