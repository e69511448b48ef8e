"""Measures what the project claims of itself, and compares each figure with its goal.

    python -m tests.bench [PART …] [--json] [--points FILE.csv] [--trace FILE]

Without a PART, all of them are measured, one after the other. What a part needs and lacks is said where its figures
would be, and is no miss.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline.cost.points import MeasuredPoint, WrongPoints, read_points
from ridgeline.simulate.traces import Arrival, TraceError
from tests.bench import accuracy, engine_cost, replay_memory, simulator, steps
from tests.bench.figures import Figure, as_json, as_table, not_measured
from tests.cost.measured_points import MEASURED
from tests.engines.engines import python


@dataclass(frozen=True, slots=True)
class Given:
    """What figures are measured on."""

    points: Sequence[MeasuredPoint] | None
    """None: none were given."""
    arrivals: Sequence[Arrival]
    trace: str
    """What the arrivals are."""


Measure = Callable[[Given], list[Figure]]


@dataclass(frozen=True, slots=True)
class Part:
    """Figures that are measured together."""

    what: str
    """With how long it takes, and what it needs."""
    measures: Sequence[tuple[str, Measure]]
    """What progress says, and what measures it."""


def _real(measure: Callable[[], list[Figure]], name: str) -> Measure:
    """Needs the engines' environment."""

    def measured(given: Given) -> list[Figure]:
        if not python().exists():
            return [not_measured(name, f"no engines' environment: {python()} does not exist (set RIDGELINE_VLLM)")]
        return measure()

    return measured


PARTS = {
    "exporter": Part(
        "the engine exporter's hooks, scrapes and memory, on synthetic steps (a minute)",
        [
            ("step cost", lambda given: steps.step_cost()),
            ("scrapes", lambda given: steps.scrapes()),
            ("memory over a million steps", lambda given: steps.memory()),
        ],
    ),
    "scheduler": Part(
        "its hooks on vLLM's own scheduler (needs the engines' environment)",
        [("scheduler cost", _real(engine_cost.scheduler_cost, "hooks, real scheduler"))],
    ),
    "throughput": Part(
        "throughput of a real engine with it and without (14 minutes, alone; needs the engines' environment)",
        [("throughput", _real(engine_cost.throughput, "throughput lost"))],
    ),
    "accuracy": Part(
        "the cost model against measured points (10 seconds)",
        [("accuracy", lambda given: accuracy.accuracy(given.points))],
    ),
    "speed": Part(
        "the simulator's speed, and what a request takes as traces grow (half a minute)",
        [
            ("simulator's speed", lambda given: simulator.speed(given.arrivals, given.trace)),
            ("cost as traces grow", lambda given: simulator.growth(given.arrivals, given.trace)),
        ],
    ),
    "memory": Part(
        f"memory of a replay of {replay_memory.REQUESTS:,} requests (5 minutes)",
        [("memory of a replay", lambda given: replay_memory.replay_memory())],
    ),
}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    listed = "\n".join(f"  {name:<12} {part.what}" for name, part in PARTS.items())
    made = argparse.ArgumentParser(
        prog="python -m tests.bench", description=__doc__, epilog=f"parts:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    made.add_argument("parts", nargs="*", metavar="PART", help="what to measure [all]")
    made.add_argument("--json", action="store_true", help="print JSON instead of a table")
    made.add_argument(
        "--points", type=Path, metavar="FILE.csv", default=MEASURED if MEASURED.exists() else None,
        help="measured points, as `ridgeline validate` reads them",
    )  # fmt: skip
    made.add_argument(
        "--trace", type=Path, default=simulator.SHARED if simulator.SHARED.exists() else None, metavar="FILE",
        help="what the simulator's speed is measured on [a generated trace like Azure's]",
    )  # fmt: skip
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return 1 when a goal is missed."""
    command = parser()
    options = command.parse_args(arguments)
    if unknown := [name for name in options.parts if name not in PARTS]:
        command.error(f"there is no part {', '.join(unknown)}; choose from {', '.join(PARTS)}")
    try:
        points = options.points and read_points(options.points.read_text(encoding="utf-8").splitlines())
        given = Given(points, *simulator.requests(options.trace))
    except (OSError, UnicodeDecodeError, WrongPoints, TraceError) as problem:  # before anything has taken minutes
        command.error(f"the points or the trace cannot be used: {problem}")
    figures: list[Figure] = []
    for name in dict.fromkeys(options.parts or PARTS):
        for what, measure in PARTS[name].measures:
            print(f"measuring: {what} …", file=sys.stderr, flush=True)
            figures += measure(given)
    print(as_json(figures) if options.json else as_table(figures))
    return 1 if any(figure.verdict == "miss" for figure in figures) else 0


if __name__ == "__main__":
    raise SystemExit(main())
