from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from ridgeline.decide.snapshot import MetricsProblem, Signals
from ridgeline.signals_source import Key, SharedSignals

KEY = ("ns", "chat")
NOW = 1_790_000_000.0


class StandInReader:
    """Answers with what it is given, and fails when it is given nothing."""

    def __init__(self, answer: Signals | MetricsProblem | None) -> None:
        self.answer = answer

    async def read(self, now: float) -> Mapping[Key, Signals | MetricsProblem]:
        if self.answer is None:
            raise RuntimeError("broken reader")
        return {KEY: self.answer}


async def read_once(reader: StandInReader, clock: float = NOW) -> SharedSignals:
    shared = SharedSignals(reader, interval_seconds=0.01, stale_after_seconds=15, clock=lambda: clock)
    task = asyncio.create_task(shared.run())
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.wait({task})
    return shared


def reason(found: Signals | MetricsProblem) -> str:
    return found.reason if isinstance(found, MetricsProblem) else "signals"


@pytest.mark.parametrize(
    ("answer", "asked_at", "expected"),
    [
        pytest.param(Signals(sampled_at=NOW - 3), NOW + 5, "signals", id="fresh"),
        pytest.param(Signals(sampled_at=NOW - 3), NOW + 20, "StaleSamples", id="the reader stands still"),
        pytest.param(Signals(sampled_at=NOW - 12), NOW + 5, "StaleSamples", id="samples grow old between two reads"),
        pytest.param(MetricsProblem("NoSamples", "none"), NOW, "NoSamples", id="a problem is passed on"),
    ],
)
async def test_signals_count_while_they_are_fresh(
    answer: Signals | MetricsProblem, asked_at: float, expected: str
) -> None:
    shared = await read_once(StandInReader(answer))
    assert reason(shared.of(KEY, asked_at)) == expected


async def test_before_the_first_read_there_is_nothing() -> None:
    shared = SharedSignals(StandInReader(None), interval_seconds=1, stale_after_seconds=15, clock=lambda: NOW)
    assert reason(shared.of(KEY, NOW)) == "NotReadYet"


async def test_a_reader_that_fails_is_asked_again() -> None:
    reader = StandInReader(None)
    shared = SharedSignals(reader, interval_seconds=0.01, stale_after_seconds=15, clock=lambda: NOW)
    task = asyncio.create_task(shared.run())
    await asyncio.sleep(0.03)
    reader.answer = Signals(sampled_at=NOW)
    await asyncio.sleep(0.05)
    assert not task.done()
    assert isinstance(shared.of(KEY, NOW), Signals)
    task.cancel()
    await asyncio.wait({task})
