"""Mixes of request classes for the policy benchmark: 24 minutes, Poisson arrivals, seeded.

Three classes: *chat* and *prompts* draw whole rows (prompt and output together) of Azure's conversation trace of 2023
and of Mooncake's conversation trace, or, where those files are not beside the repository, lengths between their
published percentiles; *reason* has short prompts and long outputs. No prefixes are shared.

The rate of a mix is in chat requests per second. A request of another class counts as so many of chat as `WORTH` says,
which is about the work that it makes, so that each phase of a mix offers about the same load unless it is meant to move.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import cos, pi
from pathlib import Path

from ridgeline.simulate.load import CHAT, LONG_PROMPTS, Lengths, Stream, poisson
from ridgeline.simulate.traces import Arrival, Dice, read_trace

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
SECONDS = 24 * 60.0

CLASSES = ("chat", "prompts", "reason")
WORTH = {"chat": 1.0, "prompts": 10.0, "reason": 2.0}
"""Chat requests that one request counts as. Split fleets of the first regime map carry 7 to 16 times as many of Azure's
requests as of Mooncake's; an output token costs about two prompt tokens."""
REASON = Lengths(
    prompts=((0.0, 20), (0.25, 150), (0.5, 320), (0.75, 600), (0.95, 1150), (1.0, 2300)),
    outputs=((0.0, 100), (0.25, 500), (0.5, 1000), (0.75, 1800), (0.95, 3000), (1.0, 5400)),
)
"""About 450 prompt tokens and 1,300 output tokens on average."""
HEAVY = 0.9
"""Share of the load that the leading class of a phase has."""

Shares = Mapping[str, float]
"""Class → its part of the mix's rate."""


@dataclass(frozen=True, slots=True)
class Mix:
    """How the classes share the load as time goes."""

    period_seconds: float
    shares: Callable[[float], Shares]
    """By the place in the period, from 0 to 1. Each draw begins somewhere else in it."""
    tells: str


def _lead(leader: str, *others: str) -> Shares:
    return {leader: HEAVY} | dict.fromkeys(others, (1.0 - HEAVY) / len(others))


def _turns(*leaders: str) -> Callable[[float], Shares]:
    phases = [_lead(leader, *(name for name in leaders if name != leader)) for leader in leaders]
    return lambda place: phases[int(place * len(phases)) % len(phases)]


def _opposite(one: str, other: str) -> Callable[[float], Shares]:
    def shares(place: float) -> Shares:
        part = 0.5 + (HEAVY - 0.5) * cos(2.0 * pi * place)
        return {one: part, other: 1.0 - part}

    return shares


def _day_and_night(place: float) -> Shares:
    """Chat by day, long prompts by night, each calm where the other begins."""
    day = 0.5 - 0.5 * cos(2.0 * pi * place)
    return {"chat": 0.05 + 0.95 * day**1.5, "prompts": 0.8 * (1.0 - day) ** 1.5}


KINDS: dict[str, Mix] = {
    "steady-chat": Mix(SECONDS, lambda _: {"chat": 1.0}, "chat alone"),
    "steady-prompts": Mix(SECONDS, lambda _: {"prompts": 1.0}, "long prompts alone"),
    "abrupt": Mix(600.0, _turns("chat", "prompts"), "chat and long prompts take the lead in turns of 5 minutes"),
    "fast": Mix(120.0, _turns("chat", "prompts"), "the same in turns of 1 minute"),
    "anti": Mix(SECONDS, _opposite("chat", "prompts"), "opposite day curves, the load stays"),
    "daynight": Mix(SECONDS, _day_and_night, "chat by day, long prompts by night; the load moves too"),
    "three": Mix(720.0, _turns("chat", "prompts", "reason"), "three classes lead in turns of 4 minutes"),
    "reason": Mix(720.0, _opposite("chat", "reason"), "chat and reasoning, opposite curves of 12 minutes"),
}


def arrivals(kind: str, draw: int, rate: float) -> Iterator[Arrival]:
    """The requests of a mix.

    Args:
        kind: one of `KINDS`.
        draw: a seed.
        rate: in chat requests per second or their worth.
    """
    mix, dice = KINDS[kind], random.Random(f"{kind} {draw}")
    begin = dice.random()

    def stream(name: str) -> Stream:
        def per_second(now: float) -> float:
            return rate / WORTH[name] * mix.shares((begin + now / mix.period_seconds) % 1.0).get(name, 0.0)

        return Stream(per_second, _rows(name))

    named = sorted({name for place in range(100) for name in mix.shares(place / 100)})
    peak = 1.01 * rate * max(sum(part / WORTH[n] for n, part in mix.shares(p / 100).items()) for p in range(100))
    return poisson([stream(name) for name in named], SECONDS, peak, dice)


def turns(kind: str, draw: int) -> list[float]:
    """When another class takes the lead in a mix whose classes do so in turns, in seconds."""
    mix = KINDS[kind]
    begin = random.Random(f"{kind} {draw}").random()
    looks = [(second, mix.shares((begin + second / mix.period_seconds) % 1.0)) for second in range(int(SECONDS))]
    return [float(second) for (_, before), (second, after) in pairwise(looks) if before != after]


def sources() -> str:
    """Where the lengths come from, for people."""
    files = [_file(name) for name in ("chat", "prompts")]
    missing = [path.name for path in files if path is not None and not path.exists()]
    return f"lengths generated from published percentiles instead of {' and '.join(missing)}" if missing else (
        f"lengths of {' and '.join(path.name for path in files if path is not None)}"
    )  # fmt: skip


def _file(name: str) -> Path | None:
    files = {"chat": "azure-2023-conv.csv", "prompts": "mooncake-conversation.jsonl"}
    return TRACES / files[name] if name in files else None


@cache
def _rows(name: str) -> Callable[[Dice], tuple[int, int]]:
    path = _file(name)
    if path is None or not path.exists():
        return {"chat": CHAT, "prompts": LONG_PROMPTS, "reason": REASON}[name].draw
    with path.open(encoding="utf-8") as lines:
        rows = [(each.prompt_tokens, each.output_tokens) for each in read_trace(lines, path.name)]
    return lambda dice: rows[int(dice.random() * len(rows))]
