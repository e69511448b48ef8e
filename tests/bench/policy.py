"""Attainment of policies on shifting mixes of load, beside the best static choice made in hindsight.

    python -m tests.bench.policy [--cases 70b-fp8] [--kinds abrupt,anti] [--draws 1-3] [--levels 0.8,1.0] \\
        [--policies ridgeline,statics] [--processes 2]
    python -m tests.bench.policy --table | --markdown

For each case (model and objectives, 8 engines of H100), kind of mix (`tests/bench/mixes.py`) and draw (a seed), the
rate at which the best static choice meets the objectives of 90 % of the requests is searched first: that is level 1.
Then each policy is played at each level, and one line of JSON is appended to `artifacts/policy/rows.jsonl`. What is
there is not played again, so that Ctrl-C loses no more than what is being played. Rates and rows hold for the simulator
that made them: remove `artifacts/policy` when it changes. For another version of Ridgeline, `--variant NAME` keeps its
rows apart as `ridgeline@NAME`, beside the same static ones.

Attainment counts every request from the first second on: a policy that starts badly pays for it. `--table` shows
stationary loads also without their first ten minutes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import queue
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from ridgeline.cost.step_cost import EngineCost
from ridgeline.simulate.controller import Controller, steer
from ridgeline.simulate.counters import Outcome
from ridgeline.simulate.fleet import Fleet, Stuck
from ridgeline.simulate.replay import Plant, controller, play
from ridgeline.simulate.request import Request
from ridgeline.simulate.router import Router, least_load
from ridgeline.simulate.traces import Arrival
from ridgeline_exporters.roofline import hardware
from ridgeline_exporters.roofline.catalogue import find_model
from ridgeline_exporters.roofline.model import ModelShape
from ridgeline_exporters.roofline.parallelism import Parallelism
from tests.bench import mixes, policy_table

ARTIFACTS = Path(__file__).resolve().parents[2] / "artifacts" / "policy"
ENGINES = 8
CARRIES = 0.9
"""Attainment at which a rate counts as carried."""
RATE_STEP = 1.25
RATE_PRECISION = 0.02
LEAST_RATE = 0.1
"""What carries less is no choice."""

MIXED = tuple(f"mixed:{tokens}" for tokens in (512, 1024, 256, 2048, 4096, 8192))
SPLITS = tuple(f"split:{prefill}" for prefill in (6, 5, 4, 7, 3, 2, 1))
STATICS = MIXED[:1] + SPLITS[:2] + MIXED[1:] + SPLITS[2:]
"""The likely best first: the others only have to fail at its rate."""
RATES = "rates.json"
BEST = "best"
"""Stands for the static choice that carries most of a draw."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model and what its users expect."""

    model: str
    weights: str | None
    tensor_parallel: int
    first_token_milliseconds: int
    inter_token_milliseconds: int
    likely_rate: float
    """Where the search begins, in chat requests per second."""

    def plant(self) -> Plant:
        """The fleet."""
        parallelism = Parallelism(self.tensor_parallel)
        shape = ModelShape.from_config(find_model(self.model), self.weights, parallelism=parallelism)
        accelerator = hardware.find("H100-SXM5-80GB")
        return Plant(shape, accelerator, ENGINES, self.first_token_milliseconds, self.inter_token_milliseconds)


CASES = {
    "8b": Case("llama-3.1-8b", None, 1, 2_000, 50, 130.0),
    "70b-bf16": Case("llama-3.1-70b", None, 4, 10_000, 50, 45.0),
    "70b-fp8": Case("llama-3.1-70b", "fp8", 4, 10_000, 50, 60.0),
}

Draw = tuple[str, str, int]
"""Case, kind and draw."""
Key = tuple[str, str, int, float, str]
"""Case, kind, draw, level and policy: what names a row."""


# ---------------------------------------------------------------- the rate that the best static choice carries


class _Missed(Exception):  # noqa: N818 - not an error
    """More requests missed than may."""


def carries(case: str, kind: str, draw: int, rate: float, policy: str) -> bool:
    """Whether a static choice carries a mix at this rate."""
    plant = plant_of(case)
    return serves(plant, list(mixes.arrivals(kind, draw, rate)), controller(policy, plant), CARRIES)


def serves(plant: Plant, load: Sequence[Arrival], choice: Controller, share: float) -> bool:
    """Whether a static choice meets the objectives of this share of requests; it is given up once it no longer can."""
    left = (1.0 - share) * len(load)

    def done(request: Request, outcome: Outcome, now: float) -> None:
        nonlocal left
        left -= outcome is not Outcome.MET
        if left < 0.0:
            raise _Missed

    fleet = Fleet(plant.settings(), EngineCost(plant.shape, plant.accelerator), least_load(), done)
    steer(fleet, choice)
    try:
        fleet.run(load)
    except (_Missed, Stuck):
        return False
    return True


def attainment(
    case: str, load: Sequence[Arrival], begin: Callable[[Fleet], Iterable[Arrival]], router: Router
) -> float:
    """Share of the requests that meet their objectives, in a fleet that `begin` sets up.

    Args:
        case: the model and what its users expect.
        load: the requests.
        begin: gives the fleet its controller; the requests as that one passes them on.
        router: shares requests out.
    """
    plant, met = plant_of(case), 0

    def done(request: Request, outcome: Outcome, now: float) -> None:
        nonlocal met
        met += outcome is Outcome.MET

    fleet = Fleet(plant.settings(), EngineCost(plant.shape, plant.accelerator), router, done)
    fleet.run(begin(fleet))
    return met / len(load)


def find_rate(draw: Draw) -> dict[str, Any]:
    """The highest rate that any static choice carries, to `RATE_PRECISION`, and which one."""
    case, kind, seed = draw
    started = time.perf_counter()
    rate, best = 0.0, ""
    for name in STATICS:
        # One run says of most that they are no better than the best so far.
        first = rate * (1.0 + RATE_PRECISION) or CASES[case].likely_rate
        found = highest(lambda at, name=name: carries(case, kind, seed, at, name), rate, first)  # type: ignore[misc]
        if found > rate:
            rate, best = found, name
    if not best:
        raise ValueError(f"no static choice carries {kind} for {case} at any rate")
    return {"case": case, "kind": kind, "draw": seed, "rate": rate, "best": best, "wall": time.perf_counter() - started}


def name_of(draw: Draw) -> str:
    """Of a draw, for people and for the file of rates."""
    return " ".join(map(str, draw))


def known_rates(folder: Path) -> dict[str, Any]:
    """What `find_rate` has found so far, by the name of the draw."""
    file = folder / RATES
    return json.loads(file.read_text()) if file.exists() else {}


def rate_of(draw: Draw, folder: Path) -> float:
    """What the best static choice carries, in chat requests per second; searched where it is not known yet."""
    return float((known_rates(folder).get(name_of(draw)) or find_rate(draw))["rate"])


def highest(carried: Callable[[float], bool], low: float, rate: float) -> float:
    """The highest rate that is carried, to `RATE_PRECISION`; `low` where `rate`, the first to be tried, is not.

    From a `low` of 0, lower rates are tried too.
    """
    high: float | None = None
    while high is None or high - low > RATE_PRECISION * low * (1.0 + 1e-9):
        if carried(rate):
            low = rate
        else:
            high = rate
        if high is None:
            rate = low * RATE_STEP
        elif low > 0.0:
            rate = (low * high) ** 0.5
        elif (rate := high / RATE_STEP) < LEAST_RATE:
            break
    return low


# ---------------------------------------------------------------- one row


def play_row(key: Key, found: dict[str, Any]) -> dict[str, Any]:
    """One policy on one mix, at a share of the rate that was found."""
    case, kind, draw, level, policy = key
    started, rate = time.perf_counter(), found["rate"]
    answer = play(policy.partition("@")[0], plant_of(case), mixes.arrivals(kind, draw, level * rate))
    timeline = answer["timeline"]
    late = [minute for minute in timeline if minute["start_seconds"] >= policy_table.SETTLED_SECONDS]
    arrived = sum(minute["arrived"] for minute in late)
    roles = [(minute["mixed"], minute["prefill"], minute["decode"]) for minute in timeline]
    return {
        "case": case,
        "kind": kind,
        "draw": draw,
        "level": level,
        "policy": policy,
        "attainment": answer["summary"]["attainment"],
        "attainment_settled": sum(m["outcomes"]["met"] for m in late) / arrived if arrived else None,
        "requests": answer["summary"]["requests"],
        "rate": level * rate,
        # Minutes whose roles differ from the minute before: seen from outside, so the same for every policy.
        "transitions": sum(before != after for before, after in pairwise(roles)),
        "actions": dict(Counter(event["action"] for event in answer["decisions"])),
        "seconds": round(time.perf_counter() - started, 2),
    }


@cache
def plant_of(case: str) -> Plant:
    """The fleet of a case."""
    return CASES[case].plant()


# ---------------------------------------------------------------- all rows

PlayRow = Callable[[Any, dict[str, Any]], dict[str, Any]]
"""A row of its key and of what `find_rate` found for its draw."""


def run(
    draws: Sequence[Draw],
    parts: Sequence[tuple[Any, ...]],
    processes: int,
    folder: Path,
    play_row: PlayRow = play_row,
    key_of: Callable[[dict[str, Any]], tuple[Any, ...]] = policy_table.key,
) -> None:
    """Play what is missing, `processes` at a time; a row is written as soon as it is known.

    Args:
        draws: of the mixes.
        parts: what names a row beside its draw, such as level and policy.
        processes: that play at once.
        folder: of rows and rates.
        play_row: plays one.
        key_of: the name of a row: its draw, then its part.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows_file = folder / "rows.jsonl"
    have = {key_of(row) for row in policy_table.read_rows(rows_file, key_of)}
    rates = known_rates(folder)

    def wanted(draw: Draw) -> list[tuple[Any, ...]]:
        best = rates.get(name_of(draw), {}).get("best", BEST)
        keys = ((*draw, *(best if each == BEST else each for each in part)) for part in parts)
        return [key for key in dict.fromkeys(keys) if key not in have]

    to_search = deque(draw for draw in draws if wanted(draw) and name_of(draw) not in rates)
    ready = deque((key, rates[name_of(draw)]) for draw in draws if name_of(draw) in rates for key in wanted(draw))
    counted = {draw: len(wanted(draw)) for draw in draws}
    done, under_way = 0, 0
    print(f"{sum(counted.values())} rows to play, {len(to_search)} rates to search, {mixes.sources()}", file=sys.stderr)
    answers: queue.SimpleQueue[dict[str, Any] | BaseException] = queue.SimpleQueue()
    with multiprocessing.get_context("fork").Pool(processes, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        while to_search or ready or under_way:
            while under_way < processes and (ready or to_search):
                work: tuple[Any, tuple[Any, ...]] = (
                    (play_row, ready.popleft()) if ready else (find_rate, (to_search.popleft(),))
                )
                pool.apply_async(*work, callback=answers.put, error_callback=answers.put)
                under_way += 1
            answer = answers.get()
            under_way -= 1
            if isinstance(answer, BaseException):
                raise answer
            draw = answer["case"], answer["kind"], answer["draw"]
            if "policy" in answer:
                done += 1
                with rows_file.open("a") as out:
                    out.write(json.dumps(answer) + "\n")
                print(
                    f"{done}/{sum(counted.values())} {name_of(draw)} {' '.join(map(str, key_of(answer)[3:]))}: "
                    f"{100 * answer['attainment']:.1f} %, {answer['transitions']} changes, {answer['seconds']:.0f} s",
                    file=sys.stderr,
                )
            else:
                rates[name_of(draw)] = answer
                (folder / RATES).write_text(json.dumps(rates, indent=1, sort_keys=True) + "\n")
                ready.extend((key, answer) for key in wanted(draw))
                counted[draw] = len(wanted(draw))  # of "best" another one may have been
                print(
                    f"{name_of(draw)}: {answer['best']} carries {answer['rate']:.2f}/s, {answer['wall']:.0f} s",
                    file=sys.stderr,
                )


def main() -> int:
    """Play, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_draws(parser, cases=list(CASES), kinds=list(mixes.KINDS), draws=[1, 2, 3], levels=[0.8, 1.0])
    parser.add_argument(
        "--policies",
        default="statics,ridgeline",
        help="names as of ridgeline replay; statics: all, best: the one that carries most [%(default)s]",
    )
    parser.add_argument("--variant", help="keep the rows of ridgeline as ridgeline@VARIANT")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=ARTIFACTS, help="of rows and rates [artifacts/policy]")
    parser.add_argument("--table", action="store_true", help="print what is there, play nothing")
    parser.add_argument("--markdown", action="store_true", help="print what is there for the docs, play nothing")
    options = parser.parse_args()
    if options.markdown:
        print(policy_table.markdown(selected(options)))
        return 0
    if options.table:
        print(policy_table.table(selected(options)))
        return 0
    policies = [p for name in options.policies.split(",") for p in (STATICS if name == "statics" else [name])]
    for name in policies:
        if name != BEST:
            controller(name, CASES["8b"].plant())
    if options.variant:
        policies = [f"{name}@{options.variant}" if name == "ridgeline" else name for name in policies]
    parts = [(level, name) for level in options.levels for name in policies]
    try:
        run(draws_of(options), parts, options.processes, options.folder)
    except KeyboardInterrupt:
        print("Interrupted; what was played is kept, the same command goes on.", file=sys.stderr)
        return 130
    print(policy_table.table(selected(options)))
    return 0


def add_draws(parser: argparse.ArgumentParser, **defaults: list[Any]) -> None:
    """The options that choose mixes and levels."""
    parser.set_defaults(**defaults)
    told = {name: ",".join(map(str, values)) for name, values in defaults.items()}
    parser.add_argument("--cases", type=names(CASES), help=f"of {','.join(CASES)} [{told['cases']}]")
    parser.add_argument("--kinds", type=names(mixes.KINDS), help=f"of {','.join(mixes.KINDS)} [{told['kinds']}]")
    parser.add_argument("--draws", type=_draws, help=f"seeds, such as 1-3 or 4,7 [{told['draws']}]")
    parser.add_argument("--levels", type=_levels, help=f"shares of the best static rate [{told['levels']}]")


def draws_of(options: argparse.Namespace) -> list[Draw]:
    """The draws that were asked for."""
    return [(case, kind, draw) for draw in options.draws for case in options.cases for kind in options.kinds]


def selected(
    options: argparse.Namespace, key_of: Callable[[dict[str, Any]], tuple[Any, ...]] = policy_table.key
) -> list[dict[str, Any]]:
    """The rows so far of the draws and levels that were asked for."""
    return [
        row
        for row in policy_table.read_rows(options.folder / "rows.jsonl", key_of)
        if row["case"] in options.cases
        and row["kind"] in options.kinds
        and row["draw"] in options.draws
        and row["level"] in options.levels
    ]


def names(known: Iterable[str]) -> Any:
    """A type of arguments: names of these, by commas."""

    def read(text: str) -> list[str]:
        if unknown := [name for name in text.split(",") if name not in known]:
            raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; there are {', '.join(known)}")
        return text.split(",")

    return read


def _draws(text: str) -> list[int]:
    spans = [part.partition("-") for part in text.split(",")]
    return [draw for first, _, last in spans for draw in range(int(first), int(last or first) + 1)]


def _levels(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
