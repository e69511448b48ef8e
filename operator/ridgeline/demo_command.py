"""`ridgeline demo`: a day in the life of a fleet, simulated in a minute: no cluster, no GPU, no download."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ridgeline.api.fleet import Action
from ridgeline.arguments import whole_number
from ridgeline.decide.step_plan import Outcome
from ridgeline.replay_command import (
    INTERRUPTED,
    answer_json,
    check_report,
    progress,
    share_text,
    table,
    write_report,
)
from ridgeline.simulate.day import HOURS, PARTS, clock, day, part
from ridgeline.simulate.fleet import Stuck
from ridgeline.simulate.replay import Plant, WrongReplay, play
from ridgeline.simulate.scheduler import BUDGET_TOKENS
from ridgeline.simulate.traces import Arrival
from ridgeline.text_table import aligned
from ridgeline_exporters.roofline import hardware
from ridgeline_exporters.roofline.catalogue import find_model
from ridgeline_exporters.roofline.model import ModelShape
from ridgeline_exporters.roofline.parallelism import Parallelism

MODEL, WEIGHTS, GPU, GPUS_PER_ENGINE, ENGINES = "llama-3.1-70b", "fp8", "H100-SXM5-80GB", 4, 8
FIRST_TOKEN_MILLISECONDS, INTER_TOKEN_MILLISECONDS = 10_000, 50
"""Long prompts take seconds to read even on an idle engine."""
HOUR_SECONDS = 60
DAY_SECONDS = float(HOURS * HOUR_SECONDS)

RIDGELINE = "ridgeline"
DEFAULT = f"mixed:{BUDGET_TOKENS}"
MIXED = (DEFAULT, "mixed:2048", "mixed:512", "mixed:256")
SPLITS = ("split:5", "split:6", "split:7")
RIVALS = ("overflow:6", "dynamo", "wva", "heteroscale", "arrow")
REPORT = Path("ridgeline-demo.html")

COMPRESSED = (
    f"Each hour is played in {HOUR_SECONDS} s at its full rate: the load shifts {3600 // HOUR_SECONDS} times faster than"
    " on a real day,\nwhile engines, metrics and policies keep their own pace. That is hard on all that adapt, most on"
    " planners that take minutes\n(dynamo, wva, heteroscale). Step times come from the cost model; nothing is measured."
)
VERBS = {
    Action.TUNE: "changed the",
    Action.SPLIT: "split the fleet,",
    Action.REBALANCE: "moved engines between the pools,",
    Action.MERGE: "merged the pools,",
    Outcome.ROLLED_BACK: "went",
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds the command's options; `run` answers them."""
    parser = subparsers.add_parser(
        "demo",
        help="simulate a fleet through a generated day, under Ridgeline and under static choices",
        epilog="Rivals follow the published rules of others: see ridgeline replay --help.",
        description=f"Plays a generated day on {ENGINES} simulated engines of {MODEL} ({WEIGHTS}) with {GPUS_PER_ENGINE} x "
        f"{GPU} each: a night, a morning ramp, hours of long prompts, hours of chat. Lengths follow the published "
        "statistics of Azure's conversation trace of 2023 and Mooncake's. " + COMPRESSED.replace("\n", " "),
    )
    parser.add_argument("--seed", type=whole_number, default=1, metavar="N", help="another number is another day [1]")
    parser.add_argument(
        "--report", type=Path, default=REPORT, metavar="FILE.html", help="the report with plots [%(default)s]"
    )
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Prints the answer; 0, 2 with the cause on standard error, or 130 after Ctrl-C with what is done."""
    try:
        check_report(args.report)
    except WrongReplay as problem:
        print(f"ridgeline demo: {problem}", file=sys.stderr)
        return 2
    plant, names = _plant(), [RIDGELINE, *MIXED, *SPLITS, *RIVALS]
    requests = sum(1 for _ in _day(args.seed))
    print("\n".join(_introduction(plant, args.seed, requests)), flush=True)
    try:
        done, status = _play_all(names, plant, args.seed)
    except Stuck as problem:
        print(f"ridgeline demo: {problem}", file=sys.stderr)
        return 2
    if not done:
        return status
    print("\n".join(["", *_answer(plant, done)]))
    day_name = f"a generated day of {DAY_SECONDS / 60.0:g} minutes (seed {args.seed})"
    return write_report("demo", args.report, answer_json(day_name, 1.0, MODEL, plant, names, done)) or status


def _plant() -> Plant:
    shape = ModelShape.from_config(find_model(MODEL), WEIGHTS, parallelism=Parallelism(GPUS_PER_ENGINE))
    return Plant(shape, hardware.find(GPU), ENGINES, FIRST_TOKEN_MILLISECONDS, INTER_TOKEN_MILLISECONDS)


def _day(seed: int) -> Iterator[Arrival]:
    """The same day for each policy."""
    return day(DAY_SECONDS, random.Random(seed))  # noqa: S311 - a day is no secret


def _play_all(names: Sequence[str], plant: Plant, seed: int) -> tuple[list[dict[str, Any]], int]:
    """What is done, and the exit status: Ctrl-C ends the playing and loses nothing."""
    done: list[dict[str, Any]] = []
    try:
        for place, name in enumerate(names, 1):
            what = f"{place}/{len(names)} {name}"
            done.append(play(name, plant, _day(seed), progress(what)))
            end = "\r\033[K" if sys.stderr.isatty() else ""
            print(f"{end}{what}: {share_text(done[-1]['summary']['attainment'])} met", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print(f"\nInterrupted: {len(done)} of {len(names)} policies were played.", file=sys.stderr)
        return done, INTERRUPTED
    return done, 0


# ---------------------------------------------------------------- the answer


def _introduction(plant: Plant, seed: int, requests: int) -> list[str]:
    return [
        f"A generated day (seed {seed}) on {plant.engines} engines of {MODEL} ({WEIGHTS}), {plant.gpus} x "
        f"{plant.accelerator.name} each: {requests:,} requests,",
        "chat as in Azure's conversation trace of 2023, long prompts as in Mooncake's.",
        COMPRESSED,
        f"Objectives: first token within {FIRST_TOKEN_MILLISECONDS // 1000} s, at most 5 % of a request's gaps above "
        f"{INTER_TOKEN_MILLISECONDS} ms.",
        "",
    ]


def _answer(plant: Plant, done: Sequence[Mapping[str, Any]]) -> list[str]:
    told = _told(done)
    shown = [{**each, "policy": label} for label, each in told.items()]
    lines = table(shown, plant.percentile)
    lines += ["", "Requests that met their objectives, by the part of the day:", *_by_part(told)]
    others = [each for each in done if each["policy"] not in {kept["policy"] for kept in told.values()}]
    if others:
        lines.append("Also played: " + ", ".join(f"{each['policy']} {share_text(_met(each))}" for each in others) + ".")
    if own := told.get(RIDGELINE):
        lines += ["", *_story(own["decisions"])]
        lines += ["", _verdict(own, told)]
    return lines


def _told(done: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Label → what was played: Ridgeline, the default, the best of each family (known when the day was over), rivals."""
    by_name = {each["policy"]: each for each in done}
    told = {RIDGELINE: by_name[RIDGELINE]} if RIDGELINE in by_name else {}
    if DEFAULT in by_name:
        told[f"{DEFAULT} (vLLM's default)"] = by_name[DEFAULT]
    for family, names in (("mixed", MIXED), ("split", SPLITS)):
        if played := [by_name[name] for name in names if name in by_name]:
            best = max(played, key=_met)
            if best not in told.values():
                told[f"{best['policy']} (best {family} in hindsight)"] = best
    told |= {name: by_name[name] for name in RIVALS if name in by_name}
    return told


def _met(each: Mapping[str, Any]) -> float:
    return float(each["summary"]["attainment"] or 0.0)


def _by_part(told: Mapping[str, Mapping[str, Any]]) -> list[str]:
    parts = list(dict.fromkeys(name for _, name in PARTS))
    rows = []
    for label, each in told.items():
        met, arrived = dict.fromkeys(parts, 0), dict.fromkeys(parts, 0)
        for interval in each["timeline"]:
            if interval["start_seconds"] < DAY_SECONDS:
                name = part(interval["start_seconds"] / DAY_SECONDS)
                met[name] += interval["outcomes"]["met"]
                arrived[name] += interval["arrived"]
        rows.append([label, *(share_text(met[name] / arrived[name] if arrived[name] else None) for name in parts)])
    return aligned([["policy", *parts], *rows])


def _story(decisions: Sequence[Mapping[str, Any]]) -> list[str]:
    changes = [event for event in decisions if event["action"] != Outcome.DONE]
    if not changes:
        return ["Ridgeline changed nothing."]
    return [
        "What Ridgeline did (6P:2D: six engines read prompts, two write answers; mixed engines do both):",
        *(f"  {clock(event['seconds'] / DAY_SECONDS)}  {_sentence(event)}" for event in changes),
    ]


def _sentence(event: Mapping[str, Any]) -> str:
    """Such as `split the fleet, 8 mixed → 6P:2D, because 3.8 % of requests miss their objectives (limit 2 %)`."""
    what, _, evidence = event["message"].partition(": ")
    verb = VERBS.get(event["action"], event["action"])
    because = f", because {evidence.split('; ')[0]}" if evidence else f" ({event['reason']})"
    return f"{verb} {what.removeprefix(event['action']).strip()}{because}"


def _verdict(own: Mapping[str, Any], told: Mapping[str, Mapping[str, Any]]) -> str:
    rivals = [f"{share_text(_met(each))} with {label}" for label, each in told.items() if label != RIDGELINE]
    sentence = f"Ridgeline, told nothing of the day, met the objectives of {share_text(_met(own))} of the requests"
    return f"{sentence}; they were {', '.join(rivals)}." if rivals else f"{sentence}."
