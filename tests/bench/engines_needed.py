"""The operator's estimate of the engines that a load needs, beside what the simulator finds.

    python -m tests.bench.engines_needed [--case 70b-fp8] [--kind steady-chat] [--draw 1] [--minutes 7] [--shares 0.5,0.75,1.2]

First the rate is searched that the best static choice of 8 engines carries: 98 % of the requests meet their objectives,
as many as the operator's limit asks for. At each share of it Ridgeline is played on 8 engines and its estimate is read
after every pass of the second half; then fleets of other sizes are simulated, each with every division of its engines
and with mixed ones at three budgets, until the least is found that carries the rate, and the least that carries it with
the 15 % more that the estimate leaves room for. Loads are the first minutes of the policy benchmark's.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import takewhile
from statistics import median_low

from ridgeline.cost.step_cost import EngineCost
from ridgeline.decide.snapshot import Snapshot
from ridgeline.decide.whatif import HEADROOM
from ridgeline.simulate.controller import Controller, Orders, StaticMixed, StaticSplit, steer
from ridgeline.simulate.fleet import Fleet
from ridgeline.simulate.observer import Observer
from ridgeline.simulate.replay import Plant
from ridgeline.simulate.ridgeline_policy import RidgelinePolicy
from ridgeline.simulate.router import least_load
from ridgeline.simulate.traces import Arrival
from tests.bench import mixes
from tests.bench.policy import CASES, ENGINES, highest, serves

CARRIES = 0.98
BUDGETS = (512, 256, 1024)


class Reading:
    """Ridgeline, with its estimate noted after every pass."""

    def __init__(self, plant: Plant) -> None:
        self._policy = RidgelinePolicy(plant.spec())
        self.name = self._policy.name
        self.seen: list[tuple[float, int | None]] = []
        """Seconds of the simulation, and engines."""

    def begin(self, engines: tuple[str, ...]) -> Orders:
        return self._policy.begin(engines)

    def decide(self, now: float, snapshot: Snapshot) -> Orders:
        orders = self._policy.decide(now, snapshot)
        advice = self._policy.status.recommendation
        if advice is not None:
            self.seen.append((now, advice.enginesNeeded))
        return orders


def estimates(plant: Plant, load: Sequence[Arrival]) -> list[int | None]:
    """What the operator says in the second half of the load."""
    reading = Reading(plant)
    fleet = Fleet(plant.settings(), EngineCost(plant.shape, plant.accelerator), least_load())
    steer(fleet, reading, Observer(fleet, plant.facts()))
    fleet.run(load)
    return [engines for now, engines in reading.seen if load[-1].seconds / 2.0 <= now <= load[-1].seconds]


def choices(engines: int) -> list[Controller]:
    """Static choices, the likely best first."""
    middle = engines * 5 // 8
    splits = sorted(range(1, engines), key=lambda prefill: abs(prefill - middle))
    return [*(StaticSplit(prefill) for prefill in splits), *(StaticMixed(budget) for budget in BUDGETS)]


def first_that_carries(plant: Plant, load: Sequence[Arrival]) -> Controller | None:
    """Any static choice of this fleet that does."""
    return next((choice for choice in choices(plant.engines) if serves(plant, load, choice, CARRIES)), None)


def least(plant: Plant, load: Sequence[Arrival], start: int) -> tuple[int, str]:
    """The fewest engines with which a static choice carries the load, looked for around `start`, and that choice."""
    engines = max(2, start)
    found = first_that_carries(replace(plant, engines=engines), load)
    while found is None:
        engines += 1
        found = first_that_carries(replace(plant, engines=engines), load)
    while engines > 2 and (fewer := first_that_carries(replace(plant, engines=engines - 1), load)) is not None:
        engines, found = engines - 1, fewer
    return engines, found.name


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, default="70b-fp8")
    parser.add_argument("--kind", choices=mixes.KINDS, default="steady-chat")
    parser.add_argument("--draw", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--shares", default="0.5,0.75,1.2", help="of the rate that 8 engines carry [%(default)s]")
    options = parser.parse_args()
    plant = CASES[options.case].plant()

    @cache
    def load(rate: float) -> list[Arrival]:
        whole = mixes.arrivals(options.kind, options.draw, rate)
        return list(takewhile(lambda arrival: arrival.seconds < 60.0 * options.minutes, whole))

    does: Callable[[float], bool] = lambda rate: first_that_carries(plant, load(rate)) is not None  # noqa: E731
    carried = highest(does, 0.0, CASES[options.case].likely_rate)
    print(f"{options.case}, {options.kind} {options.draw}, {mixes.sources()}")
    print(f"{ENGINES} engines carry {carried:.1f} requests/s with {100 * CARRIES:.0f} % met", flush=True)
    print(f"{'share':>5} {'rate':>6}  {'estimate (range)':<18} {'needed':<22} {'needed with room':<22}")
    for share in map(float, options.shares.split(",")):
        rate = share * carried
        told = estimates(plant, load(rate))
        known = [engines for engines in told if engines is not None]
        estimate = median_low(known) if known else 0
        spread = f"{estimate} ({min(known)} to {max(known)})" if known else "none"
        needed = [least(plant, load(times * rate), round(share * ENGINES * times)) for times in (1.0, HEADROOM)]
        cells = [f"{engines} ({name})" for engines, name in needed]
        print(f"{share:>5g} {rate:>6.1f}  {spread:<18} {cells[0]:<22} {cells[1]:<22}", flush=True)


if __name__ == "__main__":
    main()
