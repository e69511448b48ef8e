"""Attainment of Ridgeline when what it sees is wrong, or when engines die: one disturbance at a time.

    python -m tests.bench.robustness [--cases 70b-fp8] [--kinds abrupt] [--draws 1] [--levels 0.8] \\
        [--disturbances nan,zero] [--processes 2]
    python -m tests.bench.robustness --table

A mix that shifts (`tests/bench/mixes.py`), at a share of the rate that the best static choice carries (as
`tests.bench.policy` searches it), is played under Ridgeline once undisturbed and once for each disturbance of
`tests/bench/disturbances.py`. Where engines die, vLLM's start-up budget and that static choice are played too; they do
not look, so that no other disturbance touches them. One line of JSON a row is appended to
`artifacts/robustness/rows.jsonl`; what is there is not played again, and Ctrl-C loses no more than what is being played.
Remove `artifacts/robustness` when the policy or the simulator changes.

`--table` prints Markdown. What the policy said is the reason of each pass, by the share of time until the next one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from ridgeline.cost.step_cost import EngineCost
from ridgeline.decide.snapshot import Snapshot
from ridgeline.simulate.controller import Orders, steer
from ridgeline.simulate.fleet import Fleet, Stuck
from ridgeline.simulate.replay import TICK_SECONDS, controller
from ridgeline.simulate.results import Results
from ridgeline.simulate.ridgeline_policy import RidgelinePolicy
from ridgeline.simulate.router import least_load
from tests.bench import mixes, policy, robustness_table
from tests.bench.disturbances import DISTURBANCES, UNDISTURBED, DisturbedObserver, let_die
from tests.bench.policy_table import DEFAULT
from tests.bench.robustness_table import BEST_STATIC, RIDGELINE

ARTIFACTS = policy.ARTIFACTS.with_name("robustness")
UNTIL_SECONDS = 2.0 * mixes.SECONDS
"""What has not ended by then has missed; engines that wait for each other would go on for ever."""

Key = tuple[str, str, int, float, str, str]
"""Case, kind, draw, level, policy and disturbance: what names a row."""


class Heard:
    """Ridgeline's policy, and the time that each of its reasons stood.

    Args:
        of: the policy.
    """

    def __init__(self, of: RidgelinePolicy) -> None:
        self._of = of
        self.name = of.name
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._last = 0.0

    def begin(self, engines: tuple[str, ...]) -> Orders:
        """As the policy does."""
        return self._of.begin(engines)

    def decide(self, now: float, snapshot: Snapshot) -> Orders:
        """As the policy does."""
        if self._of.verdict is not None:
            self.seconds[self._of.verdict.reason] += now - self._last
        self._last = now
        return self._of.decide(now, snapshot)

    def shares(self) -> dict[str, float]:
        """Reason → share of the time."""
        whole = sum(self.seconds.values())
        return {reason: seconds / whole for reason, seconds in sorted(self.seconds.items(), key=lambda item: -item[1])}


def play_row(key: Key, found: dict[str, Any]) -> dict[str, Any]:
    """One policy under one disturbance, at a share of the rate that was found."""
    case, kind, draw, level, name, disturbance = key
    started, disturbed = time.perf_counter(), DISTURBANCES[disturbance]
    plant = policy.plant_of(case)
    choice = found["best"] if name == BEST_STATIC else name
    chosen, results = controller(choice, plant), Results(TICK_SECONDS, plant.percentile)
    fleet = Fleet(plant.settings(), EngineCost(plant.shape, plant.accelerator), least_load(), results.done)
    results.watch(fleet)
    own = chosen if isinstance(chosen, RidgelinePolicy) else None
    heard = Heard(own) if own else None
    steer(fleet, heard or chosen, DisturbedObserver(fleet, plant.facts(), disturbed) if own else None)
    if disturbed.deaths:
        let_die(fleet, disturbed.deaths)
    stuck = False
    try:
        fleet.run(mixes.arrivals(kind, draw, level * found["rate"]), UNTIL_SECONDS)
    except Stuck:
        stuck = True
    timeline = results.timeline()
    roles = [(minute.mixed, minute.prefill, minute.decode) for minute in timeline]
    return {
        "case": case,
        "kind": kind,
        "draw": draw,
        "level": level,
        "policy": name,
        "disturbance": disturbance,
        "choice": choice,
        "attainment": results.attainment(),
        "by_minute": [[minute.arrived, minute.outcomes["met"]] for minute in timeline],
        "rate": level * found["rate"],
        "stuck": stuck,
        "transitions": sum(before != after for before, after in pairwise(roles)),
        "actions": dict(Counter(event.action for event in own.events)) if own else {},
        "events": [[round(event.seconds, 1), event.action, event.message[:160]] for event in own.events] if own else [],
        "said": heard.shares() if heard else {},
        "seconds": round(time.perf_counter() - started, 2),
    }


def parts(levels: list[float], disturbances: list[str]) -> list[tuple[float, str, str]]:
    """Level, policy and disturbance of every row of a draw."""
    touched = [name for name in DISTURBANCES if name == UNDISTURBED or DISTURBANCES[name].deaths]
    names = [UNDISTURBED, *(name for name in disturbances if name != UNDISTURBED)]
    return [
        (level, played, name)
        for level in levels
        for name in names
        for played in (RIDGELINE, DEFAULT, BEST_STATIC)
        if played == RIDGELINE or name in touched
    ]


def main() -> int:
    """Play, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    policy.add_draws(parser, cases=["70b-fp8"], kinds=["abrupt"], draws=[1], levels=[0.8])
    parser.add_argument(
        "--disturbances", type=policy.names(DISTURBANCES), default=list(DISTURBANCES),
        help=f"of {','.join(DISTURBANCES)} [all]",
    )  # fmt: skip
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=ARTIFACTS, help="of rows and rates [artifacts/robustness]")
    parser.add_argument("--table", action="store_true", help="print what is there, play nothing")
    options = parser.parse_args()
    if not options.table:
        try:
            policy.run(
                policy.draws_of(options), parts(options.levels, options.disturbances), options.processes,
                options.folder, play_row, robustness_table.key,
            )  # fmt: skip
        except KeyboardInterrupt:
            print("Interrupted; what was played is kept, the same command goes on.", file=sys.stderr)
            return 130
    print(robustness_table.table(policy.selected(options, robustness_table.key), list(DISTURBANCES)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
