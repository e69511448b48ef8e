"""`ridgeline replay`: what Ridgeline and static choices would have made of a trace, before a GPU is bought."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ridgeline.arguments import number, whole_number
from ridgeline.decide.engines_needed import ROOM_TEXT
from ridgeline.replay_report import report_html
from ridgeline.roofline_command import DEFAULT_GPU, DEFAULT_MODEL, FORMATS, WrongInput, check_heads, load_config
from ridgeline.simulate import policies
from ridgeline.simulate.fleet import Stuck
from ridgeline.simulate.replay import Plant, WrongReplay, controller, default_policies, play
from ridgeline.simulate.traces import Arrival, TraceError, faster, read_trace
from ridgeline.text_table import aligned
from ridgeline_exporters.roofline import catalogue, hardware
from ridgeline_exporters.roofline.model import ModelShape, UnsupportedModel
from ridgeline_exporters.roofline.parallelism import Parallelism

INTERRUPTED = 130
MESSAGE_CHARACTERS = 150


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds the command's options; `run` answers them."""
    parser = subparsers.add_parser(
        "replay",
        help="simulate a fleet on a trace under several policies",
        description="Plays a trace of requests on a simulated fleet, once for each policy, and compares what clients "
        "would have seen. Step times come from the cost model; nothing is measured.",
        epilog="Traces: Azure's CSV (TIMESTAMP,ContextTokens,GeneratedTokens) or Mooncake's JSON lines. Example: "
        "ridgeline replay --trace azure.csv --model llama-3.1-70b --tensor-parallel 4 --engines 8",
    )
    parser.add_argument("--trace", type=Path, required=True, metavar="FILE", help="the requests")
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, help="name (see ridgeline roofline --list), or a config.json [%(default)s]"
    )
    parser.add_argument("--weights", choices=FORMATS, help="format of the weights [as in config.json, else bf16]")
    parser.add_argument("--gpu", default=DEFAULT_GPU, help="name (see ridgeline roofline --list) [%(default)s]")
    parser.add_argument("--tensor-parallel", type=whole_number, default=1, metavar="N", help="GPUs of one engine [1]")
    parser.add_argument("--engines", type=whole_number, default=8, metavar="N", help="engines of the fleet [8]")
    parser.add_argument("--rate-scale", type=number, default=1.0, metavar="X", help="times the trace's rate [1]")
    parser.add_argument(
        "--ttft-ms", type=whole_number, default=2000, metavar="MS", help="objective of the first token [2000]"
    )
    parser.add_argument(
        "--itl-ms", type=whole_number, default=50, metavar="MS", help="objective of gaps between tokens [50]"
    )
    parser.add_argument(
        "--percentile",
        type=_percentile,
        default=95,
        metavar="P",
        help="percentile of the latencies shown beside the objectives, 50 to 99; requests are judged one by one and"
        " by no percentile, so it decides nothing [95]",
    )
    parser.add_argument(
        "--policies",
        metavar="A,B,…",
        help=f"any of {policies.names()} [ridgeline and some mixed and split ones]",
    )
    parser.add_argument("--json", action="store_true", help="print JSON for programs, with the course of each policy")
    parser.add_argument("--report", type=Path, metavar="FILE.html", help="write a report with plots for a browser")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Prints the answer; 0, 2 with the cause and the cure on standard error, or 130 after Ctrl-C with what is done."""
    try:
        plant = _plant(args)
        names = args.policies.split(",") if args.policies else default_policies(plant.engines)
        for name in names:
            controller(name, plant)  # before anything is played
        plant.settings()
        check_report(args.report)
        done, status = _play_all(names, plant, args)
    except (
        WrongReplay, WrongInput, TraceError, Stuck, UnsupportedModel, catalogue.UnknownModel, hardware.UnknownAccelerator,
    ) as problem:  # fmt: skip
        print(f"ridgeline replay: {problem}", file=sys.stderr)
        return 2
    except (OSError, UnicodeDecodeError) as problem:
        print(f"ridgeline replay: {args.trace} cannot be read ({problem}); give a file of text", file=sys.stderr)
        return 2
    answer = answer_json(args.trace.name, args.rate_scale, args.model, plant, names, done)
    print(json.dumps(answer, indent=1, sort_keys=True) if args.json else _text(args, plant, done))
    return write_report("replay", args.report, answer) or status


def check_report(path: Path | None) -> None:
    """Before anything is played.

    Raises:
        WrongReplay: the report cannot be written there.
    """
    if path is None:
        return
    folder = path.parent
    if not folder.is_dir():
        raise WrongReplay(f"the report cannot be written: there is no folder {folder}; make it, or name another file")
    if path.is_dir():
        raise WrongReplay(f"the report cannot be written: {path} is a folder; name a file in it")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise WrongReplay(f"the report cannot be written: {folder} may not be written to; name a file elsewhere")


def write_report(command: str, path: Path | None, answer: Mapping[str, Any]) -> int:
    """Replaces the file as a whole, so that nobody finds half a report; 0, or 2 with the cause on standard error."""
    if path is None:
        return 0
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(report_html(answer), encoding="utf-8")
        unfinished.replace(path)
    except OSError as problem:
        unfinished.unlink(missing_ok=True)
        print(f"ridgeline {command}: the report could not be written ({problem}); name another file", file=sys.stderr)
        return 2
    print(f"Report: {path}", file=sys.stderr)
    return 0


def _plant(args: argparse.Namespace) -> Plant:
    shape = ModelShape.from_config(load_config(args.model), args.weights, parallelism=Parallelism(args.tensor_parallel))
    check_heads(shape)
    return Plant(shape, hardware.find(args.gpu), args.engines, args.ttft_ms, args.itl_ms, args.percentile)


def _play_all(names: Sequence[str], plant: Plant, args: argparse.Namespace) -> tuple[list[dict[str, Any]], int]:
    """What is done, and the exit status: Ctrl-C ends the playing and loses nothing."""
    done: list[dict[str, Any]] = []
    try:
        for place, name in enumerate(names, 1):
            done.append(play(name, plant, _arrivals(args), progress(f"{place}/{len(names)} {name}")))
    except KeyboardInterrupt:
        print(f"\nInterrupted: {len(done)} of {len(names)} policies were played.", file=sys.stderr)
        return done, INTERRUPTED
    finally:
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)
    return done, 0


def _arrivals(args: argparse.Namespace) -> Iterator[Arrival]:
    """The trace, read anew for each policy, so that one of any length takes no memory."""
    with args.trace.open(encoding="utf-8") as lines:
        yield from faster(read_trace(lines, str(args.trace)), args.rate_scale)


def progress(what: str) -> Callable[[float, int], None]:
    """A line on the terminal, at most five times a second; nothing where standard error is a file."""
    started = told = time.monotonic()

    def tick(now: float, requests: int) -> None:
        nonlocal told
        passed = time.monotonic()
        if not sys.stderr.isatty() or passed - told < 0.2:
            return
        told = passed
        speed = now / max(1e-3, passed - started)
        print(
            f"\r\033[K{what}: {now / 60:,.0f} minutes, {requests:,} requests, {speed:,.0f} times real time",
            end="", file=sys.stderr, flush=True,
        )  # fmt: skip

    return tick


# ---------------------------------------------------------------- the answer


def answer_json(
    trace: str,
    rate_scale: float,
    model: str,
    plant: Plant,
    names: Sequence[str],
    done: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """What `--json` prints and a report shows.

    Args:
        trace: its name.
        rate_scale: times its rate.
        model: as it was asked for.
        plant: the fleet.
        names: policies that were asked for.
        done: what `play` answered for those that were played.
    """
    return {
        "trace": trace,
        "rate_scale": rate_scale,
        "model": model,
        "weights": plant.shape.weights.name,
        "gpu": plant.accelerator.name,
        "gpus_per_engine": plant.gpus,
        "engines": plant.engines,
        "kv_capacity_tokens": plant.kv_tokens,
        "peak_flops_per_second": plant.roof.flops_per_second,
        "peak_memory_bytes_per_second": plant.roof.memory_bytes_per_second,
        "time_to_first_token_objective_milliseconds": plant.first_token_objective_milliseconds,
        "inter_token_objective_milliseconds": plant.inter_token_objective_milliseconds,
        "percentile": plant.percentile,
        "policies_asked": list(names),
        "policies": list(done),
    }


def _text(args: argparse.Namespace, plant: Plant, done: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        f"{plant.engines} engines of {args.model} ({plant.shape.weights.name}) on {plant.gpus} x "
        f"{plant.accelerator.name} each, {plant.kv_tokens:,} KV tokens an engine",
        f"Objectives: first token within {plant.first_token_objective_milliseconds:,} ms, at most 5 % of a request's "
        f"gaps above {plant.inter_token_objective_milliseconds} ms",
        "",
    ]
    lines += table(done, plant.percentile)
    for each in done:
        if each["decisions"]:
            lines += ["", f"What {each['policy']} did:"]
            lines += [
                f"{event['seconds']:>8,.0f} s  {event['action']} ({event['reason']}): {_short(event['message'])}"
                for event in each["decisions"]
            ]
        if needed := each["most_engines_needed"]:
            lines += ["", f"By its estimate, the busiest window needed {needed} engines, {ROOM_TEXT}."]
    return "\n".join(lines)


def table(done: Sequence[Mapping[str, Any]], percentile: int) -> list[str]:
    """Lines: one policy each.

    Args:
        done: what `play` answered for each.
        percentile: of the latencies, beside the median and, of gaps, the 99th, which rare large stalls move first.
    """
    first = tuple(dict.fromkeys(("p50", f"p{percentile}")))
    gap = tuple(dict.fromkeys((*first, "p99")))
    head = ["policy", "met", "met/s", "first token p50", *first[1:], "gap p50", *gap[1:], "stalled", "GPU hours"]
    return aligned([head, *(_row(each, first, gap) for each in done)])


def _row(each: Mapping[str, Any], first: Sequence[str], gap: Sequence[str]) -> list[str]:
    summary = each["summary"]
    return [
        each["policy"],
        share_text(summary["attainment"]),
        "-" if (rate := summary["goodput_requests_per_second"]) is None else f"{rate:.2f}",
        *(_milliseconds(summary["time_to_first_token_seconds"][name]) for name in first),
        *(_milliseconds(summary["gap_seconds"][name]) for name in gap),
        share_text(summary["stall_ratio"]),
        f"{each['gpu_hours']:.1f}",
    ]


def share_text(value: float | None) -> str:
    """Such as `97.1 %`."""
    return "-" if value is None else f"{100 * value:.1f} %"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:,.0f} ms"


def _short(message: str) -> str:
    return message if len(message) <= MESSAGE_CHARACTERS else message[: MESSAGE_CHARACTERS - 1] + "…"


def _percentile(text: str) -> int:
    value = whole_number(text)
    if not 50 <= value <= 99:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from 50 to 99")
    return value
