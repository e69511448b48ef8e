"""Prints what the exporter costs.

    python -m tests.bench [--json] [--without-engine]

Without the engines' environment, or with `--without-engine`, the figures that need a real engine are left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from tests.bench import engine_cost, steps
from tests.bench.figures import Figure, as_json, as_table
from tests.engines.engines import python


def main() -> int:
    """Measure, print, and return 1 when a goal is missed."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments.add_argument("--without-engine", action="store_true", help="leave out what needs a real engine")
    options = arguments.parse_args()
    parts: list[Callable[[], list[Figure]]] = [steps.step_cost, steps.scrapes, steps.memory]
    if not options.without_engine and python().exists():
        parts += [engine_cost.scheduler_cost, engine_cost.throughput]
    figures: list[Figure] = []
    for part in parts:
        print(f"measuring: {part.__name__.replace('_', ' ')} …", file=sys.stderr, flush=True)
        figures += part()
    print(as_json(figures) if options.json else as_table(figures))
    return 1 if any(figure.verdict == "miss" for figure in figures) else 0


if __name__ == "__main__":
    raise SystemExit(main())
