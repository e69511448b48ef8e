"""Candidates simulated on the last minutes' traffic: whether that could take the place of the what-if model.

    python -m tests.bench.hindsight [--cases 70b-fp8,70b-bf16] [--kinds steady-chat,abrupt,...] [--draws 1] [--levels 1]

Given more than an operator can have: every 30 s all near configurations are played on copies of the fleet as it is, with
its true queues and step times, and the requests of the last 120 s, their true lengths too, once more and again for 180 s
(`rivals/clairvoyant.py`, with the past for the future). The one in which the fewest miss is taken. Beside it stand
Ridgeline and the best static choice out of what `tests.bench.policy` has played.
"""

from __future__ import annotations

import argparse
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import perf_counter

from ridgeline.simulate.controller import Orders, steer
from ridgeline.simulate.fleet import Fleet
from ridgeline.simulate.observer import Observer
from ridgeline.simulate.rivals.clairvoyant import AHEAD_SECONDS, Clairvoyant
from ridgeline.simulate.router import least_load
from ridgeline.simulate.traces import Arrival
from tests.bench import mixes, policy, policy_table

BEHIND_SECONDS = 120.0


class Hindsight(Clairvoyant):
    """Takes what came for what will come."""

    interval_seconds = 30.0

    def __init__(self) -> None:
        super().__init__("hindsight")

    def begin(self, engines: tuple[str, ...]) -> Orders:
        """As any fleet starts: nothing has come yet."""
        return Orders()

    def coming(self, now: float) -> tuple[list[Arrival], int]:
        """The last requests, again and again."""
        assert self._fleet is not None, "attend comes first"
        came, since = self._fleet.counters.arrivals, max(0.0, now - BEHIND_SECONDS)
        last, span = self._arrivals[bisect_left(self._times, since, 0, came) : came], now - since
        rounds = int(AHEAD_SECONDS // span) + 1
        again = [
            each._replace(seconds=now + span * turn + each.seconds - since) for turn in range(rounds) for each in last
        ]
        return [each for each in again if each.seconds < now + AHEAD_SECONDS], came


def attainment(draw: policy.Draw, rate: float) -> float:
    """Share of the requests that met their objectives."""
    case, kind, seed = draw
    load, hindsight = list(mixes.arrivals(kind, seed, rate)), Hindsight()

    def begin(fleet: Fleet) -> Iterable[Arrival]:
        arrivals = hindsight.attend(fleet, load)
        steer(fleet, hindsight, Observer(fleet, policy.plant_of(case).facts()))
        return arrivals

    return policy.attainment(case, load, begin, least_load())


def beside(played: Sequence[policy_table.Row], key: tuple[str, str, int, float]) -> tuple[float | None, float | None]:
    """Ridgeline and the best static choice, as far as they were played."""
    same = {row["policy"]: row["attainment"] for row in played if policy_table.key(row)[:4] == key}
    static = [met for name, met in same.items() if name.startswith(("mixed:", "split:"))]
    return same.get("ridgeline"), max(static, default=None)


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    policy.add_draws(parser, cases=["70b-fp8", "70b-bf16"], kinds=list(mixes.KINDS), draws=[1], levels=[1.0])
    parser.add_argument("--folder", type=Path, default=policy.ARTIFACTS, help="of rates and rows [artifacts/policy]")
    options = parser.parse_args()
    played = policy_table.read_rows(options.folder / "rows.jsonl")
    print("case kind draw level: hindsight, Ridgeline, best static; time", flush=True)
    for draw in policy.draws_of(options):
        rate = policy.rate_of(draw, options.folder)
        for level in options.levels:
            started = perf_counter()
            figures = (attainment(draw, level * rate), *beside(played, (*draw, level)))
            cells = ", ".join("not played" if met is None else f"{100.0 * met:.1f} %" for met in figures)
            print(f"{policy.name_of(draw)} {level:g}: {cells}; {perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
