"""Mixed engines beside a split: whether they earn their place in front of a plain division of the engines.

    python -m tests.bench.hybrids [--cases 70b-fp8] [--kinds abrupt,steady-prompts] [--draws 1] [--levels 1] [--budget 512]

Each division is kept for the whole mix (`tests/bench/mixes.py`), at a share of the rate that `tests.bench.policy` has
found for the best static choice; its rates are searched first where they are missing. The router shares requests
between mixed engines and pairs by their numbers, as SMG does; `--by-tokens` asks what a router would gain that knew more.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ridgeline.api.fleet import Role
from ridgeline.decide.snapshot import Snapshot
from ridgeline.simulate.controller import Orders, steer
from ridgeline.simulate.fleet import Fleet
from ridgeline.simulate.router import LeastLoad, LeastTokens, Router, least_load
from ridgeline.simulate.traces import Arrival
from ridgeline.text_table import aligned
from tests.bench import mixes, policy

DIVISIONS = ((6, 2), (5, 2), (6, 1), (5, 1), (4, 2), (4, 1))
"""Prefill and decode engines; the others of eight are mixed."""


@dataclass(frozen=True, slots=True)
class Hybrid:
    """So many prefill and decode engines, the others mixed, for good."""

    prefill: int
    decode: int
    budget_tokens: int

    @property
    def name(self) -> str:
        """Such as `5P:2D and 1 mixed`."""
        beside = policy.ENGINES - self.prefill - self.decode
        return f"{self.prefill}P:{self.decode}D" + (f" and {beside} mixed" if beside else "")

    def begin(self, engines: tuple[str, ...]) -> Orders:
        """Divide the engines."""
        pools = [Role.PREFILL] * self.prefill + [Role.DECODE] * self.decode
        roles = dict(zip(engines, pools + [Role.MIXED] * (len(engines) - len(pools)), strict=True))
        return Orders(roles, {name: self.budget_tokens for name, role in roles.items() if role is Role.MIXED})

    def decide(self, now: float, snapshot: Snapshot) -> Orders:
        """Nothing, ever."""
        return Orders()


def attainment(hybrid: Hybrid, draw: policy.Draw, rate: float, router: Router) -> float:
    """Share of the requests that met their objectives."""
    case, kind, seed = draw
    load = list(mixes.arrivals(kind, seed, rate))

    def begin(fleet: Fleet) -> Iterable[Arrival]:
        steer(fleet, hybrid)
        return load

    return policy.attainment(case, load, begin, router)


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    policy.add_draws(parser, cases=["70b-fp8"], kinds=["abrupt", "steady-prompts"], draws=[1], levels=[1.0])
    parser.add_argument("--budget", type=int, default=512, help="tokens, of the mixed engines [%(default)s]")
    parser.add_argument("--folder", type=Path, default=policy.ARTIFACTS, help="of rates [artifacts/policy]")
    parser.add_argument(
        "--by-tokens", action="store_true", help="a router that sends prompts by the tokens in flight, not by requests"
    )
    options = parser.parse_args()
    rows: list[tuple[str, ...]] = [("case", "kind", "draw", "level", "division", "met")]
    for draw in policy.draws_of(options):
        rate = policy.rate_of(draw, options.folder)
        for level in options.levels:
            for prefill, decode in DIVISIONS:
                hybrid = Hybrid(prefill, decode, options.budget)
                router = Router(LeastLoad(), LeastTokens(), LeastLoad()) if options.by_tokens else least_load()
                met = attainment(hybrid, draw, level * rate, router)
                rows.append((*map(str, draw), f"{level:g}", hybrid.name, f"{100 * met:.1f} %"))
    print("\n".join(aligned(rows, left=5)))


if __name__ == "__main__":
    main()
