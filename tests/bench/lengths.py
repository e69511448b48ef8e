"""How soon output lengths are known when a mix of load turns: from requests that ended, and with those that run.

    python -m tests.bench.lengths [--case 70b-fp8] [--kind three] [--draw 1] [--rate 71.9] [--policy mixed:512]

For each turn of the mix: the mean output length before and after, and how many seconds after the turn the operator's
mean has gone half and nine tenths of the way.
"""

from __future__ import annotations

import argparse
from collections import deque
from math import fsum

from ridgeline.cost.step_cost import EngineCost
from ridgeline.simulate.controller import steer
from ridgeline.simulate.fleet import Fleet
from ridgeline.simulate.observer import Delays, differences, lengths
from ridgeline.simulate.replay import controller
from ridgeline.simulate.router import least_load
from ridgeline_exporters.engine.metrics import OUTPUT_TOKENS
from tests.bench import mixes
from tests.bench.policy import CASES

FAR_SECONDS = 200.0
"""After a turn, lengths are those of arrivals up to here."""
SERIES = ("ended", "with running")


def means(case: str, kind: str, draw: int, rate: float, policy: str) -> dict[str, dict[float, float]]:
    """What the operator takes for the mean output length at each look, by the two ways to know it."""
    plant, delays = CASES[case].plant(), Delays()
    fleet = Fleet(plant.settings(), EngineCost(plant.shape, plant.accelerator), least_load())
    steer(fleet, controller(policy, plant))
    interval = delays.scrape_interval_seconds
    scrapes = deque([fleet.scrape()], maxlen=int(delays.rules_window_seconds // interval))
    told: dict[str, dict[float, float]] = {name: {} for name in SERIES}

    def look(now: float) -> None:
        scrapes.append(fleet.scrape())
        before, after = scrapes[0], scrapes[-1]
        ended = differences(before.output_buckets, after.output_buckets)
        tokens = after.output_tokens - before.output_tokens
        grown = differences(before.outputs_longer, after.outputs_longer)
        longer = dict(zip(map(float, OUTPUT_TOKENS), map(float, grown), strict=True))
        for name, running in zip(SERIES, (None, longer), strict=True):
            known = lengths(OUTPUT_TOKENS, ended, tokens, running)
            if known:  # the rules are evaluated between this look and the next
                told[name][now + interval] = fsum(length * weight for length, weight in known)

    fleet.every(interval, look)
    fleet.run(mixes.arrivals(kind, draw, rate), until=mixes.SECONDS)
    return told


def main() -> None:
    """Play the mix and print a row for each turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, default="70b-fp8")
    parser.add_argument("--kind", choices=("three", "abrupt"), default="three", help="a mix whose classes take turns")
    parser.add_argument("--draw", type=int, default=1)
    parser.add_argument("--rate", type=float, default=71.9, help="chat requests per second or their worth")
    parser.add_argument("--policy", default="mixed:512", help="as of ridgeline replay, a static one")
    options = parser.parse_args()
    play = options.case, options.kind, options.draw, options.rate
    load = list(mixes.arrivals(*play[1:]))
    series = means(*play, options.policy)

    def mean(begin: float, end: float) -> float:
        lengths = [arrival.output_tokens for arrival in load if begin <= arrival.seconds < end]
        return sum(lengths) / len(lengths)

    print("| turn at, s | tokens before | after | " + " | ".join(f"{n}: half, nine tenths, s" for n in series) + " |")
    for turn in mixes.turns(options.kind, options.draw):
        if turn < FAR_SECONDS / 2 or turn > mixes.SECONDS - FAR_SECONDS:
            continue
        before, after = mean(turn - FAR_SECONDS / 2, turn), mean(turn, turn + FAR_SECONDS)
        cells = []
        for told in series.values():
            way = {now - turn: (tokens - before) / (after - before) for now, tokens in told.items() if now > turn}
            there = [next((f"{s:.0f}" for s, part in way.items() if part >= far), "never") for far in (0.5, 0.9)]
            cells.append(", ".join(there))
        print(f"| {turn:.0f} | {before:.0f} | {after:.0f} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
