"""The speed benchmark's own arithmetic, with a clock that is set by the test, and what it plays."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

import pytest

from ridgeline.simulate.controller import Controller
from ridgeline.simulate.traces import Arrival, read_trace
from tests.bench import simulator
from tests.bench.replay_memory import azure_lines, replay_memory
from tests.bench.simulator import GROWTH, Plays, generated, growth, least, requests, speed

ROWS = list(islice(generated(), 160))


class SimulatedClock:
    """Processor time that passes only while something is played."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, takes: Callable[[Sequence[Arrival], str], float]) -> None:
        self.now = 0.0
        self.played: list[tuple[int, str]] = []
        monkeypatch.setattr(time, "process_time", lambda: self.now)
        play = Plays.__call__

        def played(plays: Plays, arrivals: Sequence[Arrival], make: Callable[[], Controller]) -> Any:
            name = make().name
            self.played.append((len(arrivals), name))
            self.now += takes(arrivals, name)
            return play(plays, arrivals, make)

        monkeypatch.setattr(Plays, "__call__", played)


def test_the_least_of_the_repetitions_counts_and_they_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    durations = iter([5.0, 1.0, 2.0, 4.0, 3.0, 6.0])
    clock = SimulatedClock(monkeypatch, lambda arrivals, name: next(durations))
    plays = Plays()
    first, second = plays.controllers[:2]
    found = least(plays, [(ROWS, first), (ROWS[:10], second)], 3)
    assert [seconds for seconds, _ in found] == [2.0, 1.0]
    assert [count for count, _ in clock.played] == [160, 10] * 3


def test_speed_is_simulated_time_over_processor_time_for_static_choices_and_for_ridgeline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    SimulatedClock(monkeypatch, lambda arrivals, name: 0.01 if name == "mixed 512" else 1.0)
    figures = {figure.name: figure for figure in speed(ROWS, "a trace", repeat=1)}
    assert set(figures) == {
        "simulator, mixed 8192",
        "simulator, mixed 512",
        "simulator, 5 prefill",
        "simulator, Ridgeline",
    }
    last = ROWS[-1].seconds
    for name, figure in figures.items():
        seconds = 0.01 if name == "simulator, mixed 512" else 1.0
        assert figure.value is not None
        assert last < figure.value * seconds < last + 60.0, "the last request ends soon after it came"
        assert figure.above == 2000.0
    assert figures["simulator, mixed 512"].verdict == "PASS"
    assert figures["simulator, Ridgeline"].verdict == "miss"


@pytest.mark.parametrize(("power", "ratio", "verdict"), [(1, 1.0, "PASS"), (2, float(GROWTH), "miss")])
def test_the_time_for_each_request_tells_linear_from_quadratic(
    monkeypatch: pytest.MonkeyPatch, power: int, ratio: float, verdict: str
) -> None:
    SimulatedClock(monkeypatch, lambda arrivals, name: 1e-4 * len(arrivals) ** power)
    for figure in growth(ROWS, "a trace", repeat=1):
        assert figure.value == pytest.approx(ratio)
        assert figure.verdict == verdict


def test_without_a_trace_one_is_generated_and_that_is_said(tmp_path: Path) -> None:
    rows, what = requests(None)
    assert len(rows) == pytest.approx(simulator.SECONDS * simulator.REQUESTS_PER_SECOND, rel=0.02)
    assert "generated" in what
    path = tmp_path / "day.csv"
    path.write_text("".join(azure_lines(ROWS)))
    assert requests(path)[1] == "day.csv, 160 requests"


def test_a_trace_that_was_written_reads_as_it_was() -> None:
    read = list(read_trace(azure_lines(ROWS), "written"))
    assert [(row.prompt_tokens, row.output_tokens) for row in read] == [
        (r.prompt_tokens, r.output_tokens) for r in ROWS
    ]
    assert [row.seconds for row in read] == pytest.approx([row.seconds for row in ROWS], abs=2e-6)


def test_the_memory_of_a_replay_is_measured() -> None:
    """Of few requests: what a Python with the product in it takes at least, and no more than ten times that."""
    whole, each = replay_memory(200)
    assert whole.value is not None
    assert 20.0 < whole.value < 200.0
    assert each.value is not None
    assert each.below is None


def test_a_replay_that_fails_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.bench.replay_memory.generated", lambda seconds: iter(()) if seconds == inf else None)
    with pytest.raises(RuntimeError, match="a header and no request"):
        replay_memory(200)
