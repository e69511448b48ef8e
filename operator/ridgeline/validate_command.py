"""`ridgeline validate`: the cost model against measured points, value by value, and the median and worst errors."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ridgeline.cost.points import MeasuredPoint, WrongPoints, read_points
from ridgeline.cost.validation import Outcome, evaluate, median_errors, worst_errors
from ridgeline.simulate.serving_run import serving_run
from ridgeline.text_table import aligned


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds the command's options; `run` answers them."""
    parser = subparsers.add_parser(
        "validate",
        help="compare the cost model with measured points",
        description="Compares what the cost model says of batches, and the simulator of serving runs, with what was "
        "measured.",
        epilog="The file is CSV with the columns id, source, model, weights, gpu, tensor_parallel, prompt_tokens, "
        "output_tokens, and either batch with prompt_time_ms and token_time_ms, or requests_per_second and "
        "max_num_batched_tokens with ttft_mean_ms, itl_mean_ms, e2e_mean_ms. Empty cells are unknown.",
    )
    parser.add_argument("--points", type=Path, required=True, metavar="FILE.csv", help="the measured points")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Prints the answer; 0, or 2 with the cause and the cure on standard error."""
    try:
        points = read_points(args.points.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as problem:
        print(f"ridgeline validate: {args.points} cannot be read ({problem}); give a CSV file", file=sys.stderr)
        return 2
    except WrongPoints as problem:
        print(f"ridgeline validate: {args.points}: {problem}", file=sys.stderr)
        return 2
    outcomes = evaluate(points, serving_run)
    print(json.dumps(_json(outcomes), indent=2) if args.json else _text(outcomes))
    return 0


def _text(outcomes: Sequence[Outcome]) -> str:
    rows = [("id", "engine", "load", "value", "measured", "modelled", "error")]
    for outcome in outcomes:
        point = outcome.point
        engine = f"{point.model} {point.weights}, {point.tensor_parallel} x {point.gpu}"
        for name, error in outcome.errors.items():
            measured, modelled = point.measured[name], outcome.modelled[name]
            rows.append(
                (point.id, engine, _load(point), name, f"{measured:,.1f}", f"{modelled:,.1f}", f"{100 * error:+.1f} %")
            )
    lines = [*aligned(rows, left=4), ""]
    worst = worst_errors(outcomes)
    for name, error in median_errors(outcomes).items():
        count = sum(name in outcome.errors for outcome in outcomes)
        largest, where = worst[name]
        lines.append(
            f"Error of {name}: median {100 * error:.1f} %, worst {100 * largest:.1f} % (point {where.id}), "
            f"over {count} points"
        )
    problems = [outcome for outcome in outcomes if outcome.problem]
    lines += [f"Point {outcome.point.id} ({outcome.point.model}): {outcome.problem}" for outcome in problems]
    return "\n".join(lines)


def _load(point: MeasuredPoint) -> str:
    tokens = f"{point.prompt_tokens}+{point.output_tokens} tokens"
    if point.requests_per_second is not None:
        return f"{point.requests_per_second:g}/s of {tokens}"
    return f"{point.batch} of {tokens}"


def _json(outcomes: Sequence[Outcome]) -> dict[str, object]:
    return {
        "points": [
            {
                "id": outcome.point.id,
                "source": outcome.point.source,
                "model": outcome.point.model,
                "measured_milliseconds": dict(outcome.point.measured),
                "modelled_milliseconds": dict(outcome.modelled),
                "relative_error": outcome.errors,
                "problem": outcome.problem,
            }
            for outcome in outcomes
        ],
        "median_relative_error": median_errors(outcomes),
        "worst_relative_error": {name: error for name, (error, _) in worst_errors(outcomes).items()},
    }
