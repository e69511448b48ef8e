"""A fleet whose peaks are not what the operator was told, and whose engines do not tell its step times either."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from ridgeline.cost.step_cost import EngineCost
from ridgeline.decide.snapshot import MetricsProblem, Signals
from ridgeline.simulate.controller import steer
from ridgeline.simulate.fleet import Fleet
from ridgeline.simulate.load import CHAT, Stream, poisson
from ridgeline.simulate.observer import Observer
from ridgeline.simulate.replay import Plant
from ridgeline.simulate.results import Results
from ridgeline.simulate.ridgeline_policy import RidgelinePolicy
from ridgeline.simulate.router import least_load
from ridgeline.simulate.traces import Arrival
from ridgeline_exporters.roofline import catalogue, hardware
from ridgeline_exporters.roofline.model import ModelShape
from ridgeline_exporters.roofline.parallelism import Parallelism

SECONDS, SETTLED_SECONDS = 300.0, 120.0
PER_SECOND = 15.0


class ByTheRoofline(Observer):
    """Sees a fleet whose engines have not told the terms of their steps apart.

    Args:
        steps: whether it sees what steps hold and take.
    """

    def __init__(self, fleet: Fleet, facts: Signals, steps: bool) -> None:
        super().__init__(fleet, facts)
        self._steps = steps

    def signals(self, now: float) -> Signals | MetricsProblem:
        seen = super().signals(now)
        if not isinstance(seen, Signals):
            return seen
        seen = replace(seen, measured_steps=None)
        return seen if self._steps else replace(seen, decode_steps=None, prefill_steps=None)


def arrivals() -> Iterator[Arrival]:
    return poisson([Stream(lambda _: PER_SECOND, CHAT.draw)], SECONDS, PER_SECOND, random.Random(1))


@cache
def attainment(peaks: float, steps: bool) -> float:
    """Share of the requests after the first two minutes that met their objectives, with peaks so many times too high."""
    shape = ModelShape.from_config(catalogue.find_model("llama-3.1-70b"), "fp8", parallelism=Parallelism(4))
    plant = Plant(shape, hardware.find("H100-SXM5-80GB"), 2, 10_000, 50)
    facts = plant.facts()
    assert facts.peak_flops is not None
    assert facts.peak_memory_bytes_per_second is not None
    told = replace(
        facts,
        peak_flops=peaks * facts.peak_flops,
        peak_memory_bytes_per_second=peaks * facts.peak_memory_bytes_per_second,
    )
    results = Results()
    fleet = Fleet(plant.settings(), EngineCost(shape, plant.accelerator), least_load(), results.done)
    results.watch(fleet)
    steer(fleet, RidgelinePolicy(plant.spec()), ByTheRoofline(fleet, told, steps))
    fleet.run(arrivals())
    late = [interval for interval in results.timeline() if interval.start_seconds >= SETTLED_SECONDS]
    return sum(each.outcomes["met"] for each in late) / sum(each.arrived for each in late)


def test_peaks_that_are_too_high_ruin_a_fleet_that_does_not_look_at_its_steps() -> None:
    assert attainment(1.3, steps=False) < 0.5 * attainment(1.0, steps=False)


@pytest.mark.parametrize("peaks", [0.7, 1.0, 1.3])
def test_whatever_the_peaks_its_own_steps_set_it_right(peaks: float) -> None:
    assert attainment(peaks, steps=True) > attainment(1.0, steps=False) - 0.02
