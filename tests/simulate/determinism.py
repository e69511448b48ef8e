"""One replay under Ridgeline, with every number that its passes rest on: for a comparison between Pythons.

    python -m tests.simulate.determinism > replay.json

Needs the product alone, so that any interpreter with its requirements can run it (`make check-determinism`). The load
is heavy at first and light later: Ridgeline splits the fleet and merges it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ridgeline.cost.step_cost import EngineCost
from ridgeline.decide.calibration import bursty, no_more_than_seen
from ridgeline.decide.candidates import Assessment
from ridgeline.decide.plan import History
from ridgeline.decide.question import Question
from ridgeline.decide.snapshot import Snapshot
from ridgeline.simulate.controller import Orders, steer
from ridgeline.simulate.fleet import Fleet
from ridgeline.simulate.observer import Observer
from ridgeline.simulate.replay import Plant
from ridgeline.simulate.results import Results
from ridgeline.simulate.ridgeline_policy import RidgelinePolicy
from ridgeline.simulate.router import least_load
from ridgeline.simulate.traces import Arrival
from ridgeline_exporters.roofline import catalogue, hardware
from ridgeline_exporters.roofline.model import ModelShape
from ridgeline_exporters.roofline.parallelism import Parallelism

HEAVY_SECONDS, SECONDS = 400.0, 1300.0


class Recorder(RidgelinePolicy):
    """Ridgeline, which also writes down what it saw and how each candidate was scored."""

    def __init__(self, plant: Plant) -> None:
        super().__init__(plant.spec())
        self.passes: list[dict[str, Any]] = []
        self._spec = plant.spec()

    def decide(self, now: float, snapshot: Snapshot) -> Orders:
        question = Question(snapshot, self._spec, self.status, History(), now)
        load = question.load()
        if load is not None:
            scores = Assessment(question, no_more_than_seen(question, bursty(question, load)))
            candidates = [*scores.mixed, *scores.splits]
            self.passes.append(
                {
                    "load": asdict(scores.load),
                    "missed": [candidate.missed for candidate in candidates],
                    "forecasts": [asdict(candidate.forecast) for candidate in candidates],
                    "mixed_when_busier": scores.mixed_when_busier,
                }
            )
        return super().decide(now, snapshot)


def arrivals() -> Iterator[Arrival]:
    """Long prompts for a while, then few and short ones."""
    dice = random.Random(1)
    now = 0.0
    while now < SECONDS:
        rate, prompt, output = (2.8, 4500, 250) if now < HEAVY_SECONDS else (0.3, 900, 60)
        yield Arrival(now, 1 + int(dice.random() * 2 * prompt), 1 + int(dice.random() * 2 * output))
        now += dice.expovariate(rate)


def replay() -> dict[str, Any]:
    """The results, what was done, and the numbers of each pass."""
    shape = ModelShape.from_config(catalogue.find_model("meta-llama/Llama-3.1-70B"), parallelism=Parallelism(4))
    plant = Plant(shape, hardware.find("H100-SXM5-80GB"), 3, 2000, 25)
    results, policy = Results(), Recorder(plant)
    fleet = Fleet(plant.settings(), EngineCost(plant.shape, plant.accelerator), least_load(), results.done)
    results.watch(fleet)
    steer(fleet, policy, Observer(fleet, plant.facts()))
    fleet.run(arrivals())
    return {
        "results": json.loads(results.to_json()),
        "decisions": [asdict(event) for event in policy.events],
        "passes": policy.passes,
    }


if __name__ == "__main__":
    print(json.dumps(replay(), indent=1, sort_keys=True))
