"""Readers of request traces: lines in, arrivals out, one at a time, so that a trace of any length streams.

Two formats are told apart by their first line:

    Azure      a CSV with the columns TIMESTAMP, ContextTokens and GeneratedTokens
               (`Azure/AzurePublicDataset`; times such as 2023-11-16 18:15:46.6805900)
    Mooncake   an object of JSON a line with timestamp (ms), input_length, output_length and, optionally, hash_ids
               (`kvcache-ai/Mooncake`; each id names 512 tokens of the prompt and all that comes before them)

Times become seconds since the first request. Nothing is guessed: a row that does not read, a time before the one
before it and a trace without a request are errors that name the file and the line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from math import isfinite
from typing import Any, NamedTuple, Protocol

MOONCAKE_HASH_TOKENS = 512
"""Tokens of a prompt that one of Mooncake's hash ids stands for."""


class Arrival(NamedTuple):
    """One request as a trace has it."""

    seconds: float
    """Since the first request of the trace."""
    prompt_tokens: int
    output_tokens: int
    block_hashes: tuple[int, ...] = ()
    """Names of the prompt's blocks of `MOONCAKE_HASH_TOKENS`; equal names are equal prefixes. Empty: not known."""


class Dice(Protocol):
    """A seeded source of chance, such as `random.Random(7)`."""

    def random(self) -> float:
        """A number from [0, 1): of `random.Random`, the one method whose sequence is the same in every Python."""
        ...


class TraceError(ValueError):
    """A trace that cannot be used, with the file, the line and the cure."""


_Row = tuple[float, int, int, tuple[int, ...]]


def read_trace(lines: Iterable[str], name: str) -> Iterator[Arrival]:
    """Arrivals of a trace in either format.

    Args:
        lines: of the file, with or without their ends.
        name: of the file, for errors.

    Raises:
        TraceError: while iterating, at the first line that cannot be used.
    """
    numbered = ((number, text) for number, text in enumerate((line.strip() for line in lines), 1) if text)
    try:
        number, first = next(numbered)
    except StopIteration:
        raise TraceError(f"{name}: the trace is empty; expected Azure's CSV or Mooncake's JSON lines") from None
    if first.startswith("{"):
        yield from _arrivals(_chain((number, first), numbered), name, _mooncake_row)
        return
    columns = [column.strip() for column in first.lstrip("\ufeff").split(",")]
    if {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} <= set(columns):
        yield from _arrivals(numbered, name, _azure_reader(columns))
        return
    raise TraceError(
        f"{name}, line {number}: neither Azure's header (TIMESTAMP,ContextTokens,GeneratedTokens)"
        f" nor an object of Mooncake's JSON lines: {_short(first)}"
    )


def spread_arrivals(arrivals: Iterable[Arrival], slot_seconds: float, dice: Dice) -> Iterator[Arrival]:
    """Spread arrivals evenly at random inside the slots that their times were rounded down to.

    Mooncake's times are multiples of 3 s; played as they are, they queue where the real requests did not.
    """
    slot: list[Arrival] = []
    for arrival in arrivals:
        if slot and arrival.seconds != slot[0].seconds:
            yield from _spread(slot, slot_seconds, dice)
            slot = []
        slot.append(arrival)
    yield from _spread(slot, slot_seconds, dice)


def faster(arrivals: Iterable[Arrival], factor: float) -> Iterator[Arrival]:
    """The same requests at `factor` times the rate.

    Raises:
        ValueError: the factor is not above 0.
    """
    if not factor > 0.0:
        raise ValueError(f"a rate cannot be multiplied by {factor}")
    return (arrival._replace(seconds=arrival.seconds / factor) for arrival in arrivals)


def _spread(slot: list[Arrival], slot_seconds: float, dice: Dice) -> Iterator[Arrival]:
    offsets = sorted(dice.random() * slot_seconds for _ in slot)
    for arrival, offset in zip(slot, offsets, strict=True):
        yield arrival._replace(seconds=arrival.seconds + offset)


def _chain(first: tuple[int, str], rest: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    yield first
    yield from rest


def _arrivals(numbered: Iterator[tuple[int, str]], name: str, read: Callable[[str], _Row]) -> Iterator[Arrival]:
    start: float | None = None
    before = 0.0
    for number, text in numbered:
        try:
            time, prompt, output, hashes = read(text)
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise TraceError(f"{name}, line {number}: {_reason(error)}: {_short(text)}") from None
        if prompt < 1 or output < 1:
            raise TraceError(
                f"{name}, line {number}: a request has at least one prompt token and one output token,"
                f" this one {prompt} and {output}"
            )
        if start is None:
            start = before = time
        if time < before:
            raise TraceError(
                f"{name}, line {number}: its time lies {before - time:g} s before the line above; sort the trace by time"
            )
        before = time
        yield Arrival(time - start, prompt, output, hashes)
    if start is None:
        raise TraceError(f"{name}: the trace has a header and no request")


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"no field {error}"
    if isinstance(error, IndexError):
        return "a column is missing"
    return str(error)


def _azure_reader(columns: list[str]) -> Callable[[str], _Row]:
    time, prompt, output = (columns.index(c) for c in ("TIMESTAMP", "ContextTokens", "GeneratedTokens"))
    epoch = datetime(1970, 1, 1)
    second = timedelta(seconds=1)

    def row(text: str) -> _Row:
        cells = text.split(",")
        # Seven digits of a second: more than `fromisoformat` of 3.11 keeps, so that they are added here.
        whole, _, fraction = cells[time].strip().removesuffix("+00:00").removesuffix("Z").partition(".")
        seconds = (datetime.fromisoformat(whole) - epoch) / second
        if fraction:
            if not fraction.isdecimal():
                raise ValueError(f"{cells[time]!r} is not a time")
            seconds += int(fraction) / 10.0 ** len(fraction)
        return seconds, int(cells[prompt]), int(cells[output]), ()

    return row


def _mooncake_row(text: str) -> _Row:
    row: Any = json.loads(text)
    if not isinstance(row, dict):
        raise TypeError("not an object")
    milliseconds, prompt, output = row["timestamp"], row["input_length"], row["output_length"]
    hashes = row.get("hash_ids") or []
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, (int, float)):
        raise TypeError("timestamp is not a number")
    if not isfinite(milliseconds):
        raise ValueError(f"timestamp {milliseconds} is not a time")
    if milliseconds < 0:
        raise ValueError(f"timestamp {milliseconds} is negative")
    if not (type(prompt) is int and type(output) is int):
        raise TypeError("input_length and output_length must be whole numbers")
    if not isinstance(hashes, list) or not all(type(h) is int for h in hashes):
        raise TypeError("hash_ids must be a list of whole numbers")
    return milliseconds / 1000.0, prompt, output, tuple(hashes)


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
