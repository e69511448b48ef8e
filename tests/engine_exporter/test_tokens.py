from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline_exporters.engine.control import Control
from ridgeline_exporters.engine.metrics import FINE_SECONDS, Histogram, Totals
from ridgeline_exporters.engine.requests import Objectives, RequestState, Rhythm
from ridgeline_exporters.engine.tokens import TokenClock
from tests.engine_exporter.synthetic import (
    MAXIMUM,
    SyntheticEngineOutput,
    SyntheticEngineOutputs,
    SyntheticFinishReason,
    token,
)

PROMISE = 0.05
LENGTH = SyntheticFinishReason.LENGTH


def clock_of(states: dict[str, RequestState]) -> TokenClock:
    control = Control(MAXIMUM, 1, Objectives(None, PROMISE))
    return TokenClock(Totals(), states, control, wall=lambda: 0.0)


def outputs(*each: SyntheticEngineOutput, clients: int = 1) -> dict[int, SyntheticEngineOutputs]:
    return {i: SyntheticEngineOutputs(list(each[i::clients])) for i in range(clients)}


@dataclass
class Step:
    """What a step does, by request."""

    seconds: float
    tokens: dict[str, int] = field(default_factory=dict)
    """In the order in which they are given out."""
    ending: set[str] = field(default_factory=set)
    forgotten: set[str] = field(default_factory=set)
    """After the step; a request of the same name that gets something later is another one."""
    speculates: bool = False
    clients: int = 1


@st.composite
def steps(draw: st.DrawFn) -> list[Step]:
    """Two batches that take turns and mostly go on as they did; requests change over, miss a step, end and vanish."""
    names = [f"r{i}" for i in range(draw(st.integers(1, 6)))]
    batches, made = [names[::2], names[1::2]], list[Step]()
    for i in range(draw(st.integers(1, 30))):
        step = Step(draw(st.sampled_from([0.01, 0.04, 0.06, 0.3])), clients=draw(st.sampled_from([1, 1, 2])))
        step.speculates = draw(st.integers(0, 9)) == 0
        if draw(st.integers(0, 2)) == 0:
            batches[i % 2] = draw(st.permutations(names))[: draw(st.integers(0, len(names)))]
        for name in batches[i % 2]:
            if draw(st.integers(0, 9)) == 0:
                step.ending.add(name)
            least, most = (0 if name in step.ending else 1), (3 if step.speculates else 1)
            step.tokens[name] = draw(st.integers(least, most))
        if draw(st.integers(0, 4)) == 0:
            step.forgotten = draw(st.sets(st.sampled_from(names)))
        made.append(step)
    return made


@given(steps())
def test_counting_in_rhythm_is_the_same_as_looking_at_each_request(made: list[Step]) -> None:
    states: dict[str, RequestState] = {}
    clock = clock_of(states)
    arrivals: dict[str, list[tuple[float, int]]] = {}
    gaps, now = Histogram(FINE_SECONDS), 100.0
    for step in made:
        now += step.seconds
        for name, count in step.tokens.items():
            states.setdefault(name, RequestState(8))
            before = arrivals.setdefault(name, [])
            if count:
                if before:
                    gaps.observe(now - before[-1][0])
                before.append((now, count))
        results = outputs(
            *(SyntheticEngineOutput(n, [7] * k, LENGTH if n in step.ending else None) for n, k in step.tokens.items()),
            clients=step.clients,
        )
        clock.note(results, now, single=not step.speculates)
        for name, state in states.items():
            times = [time for time, _ in arrivals[name]]
            assert state.output_tokens == state.glance() == sum(count for _, count in arrivals[name])
            assert state.last_token == (times[-1] if times else None)
            assert state.gaps == max(0, len(times) - 1)
            late = [later - earlier > PROMISE for earlier, later in pairwise(times)]
            assert state.late_gaps == sum(late)
        for name in step.forgotten:
            clock.forget(name)
            arrivals.pop(name, None)
    assert clock._totals.gaps.counts == gaps.counts
    assert clock._totals.gaps.total == pytest.approx(gaps.total)


def test_another_thread_never_finds_too_many_tokens_whenever_it_looks() -> None:
    """At every line of joining and leaving a rhythm, as a scrape on another thread may."""
    state, rhythm, seen = RequestState(8), Rhythm(), list[int]()
    rhythm.tokens = 1000
    state.note_tokens(5, 100.0)

    def look(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        if frame.f_code is not RequestState.glance.__code__:
            seen.append(state.glance())
        return look

    sys.settrace(look)
    try:
        state.join(rhythm)
        state.leave()
    finally:
        sys.settrace(None)
    assert len(seen) > 8, "each line was looked at"
    assert max(seen) == 5 == state.glance()


def test_requests_whose_steps_take_turns_keep_a_rhythm_each() -> None:
    states = {name: RequestState(8) for name in ("a", "b", "c", "d")}
    clock = clock_of(states)
    for i in range(10):
        clock.note(outputs(*map(token, ("ab", "cd")[i % 2])), 100.0 + 0.04 * i, single=True)
    assert states["a"].rhythm is states["b"].rhythm is not states["c"].rhythm is states["d"].rhythm
    assert [state.output_tokens for state in states.values()] == [5, 5, 5, 5]
    assert [state.late_gaps for state in states.values()] == [4, 4, 4, 4], "80 ms each"


def test_a_request_that_the_engine_let_go_of_leaves_nothing_behind() -> None:
    states = {"a": RequestState(8), "b": RequestState(8)}
    clock = clock_of(states)
    for i in range(3):
        clock.note(outputs(token("a"), token("b")), 100.0 + i, single=True)
    rhythm = states["a"].rhythm
    assert rhythm is not None
    clock.forget("b")
    assert (set(states), rhythm.members) == ({"a"}, {"a"})
    states["b"] = RequestState(8)  # a new request of the same name
    clock.note(outputs(token("a"), token("b")), 104.0, single=True)
    assert (states["a"].output_tokens, states["b"].output_tokens) == (4, 1)


def test_a_request_that_changes_over_to_the_steps_of_others_leaves_its_rhythm() -> None:
    states = {name: RequestState(8) for name in ("a", "b", "c", "d")}
    clock = clock_of(states)
    for i, names in enumerate(("ab", "cd", "ab", "cd", "abc", "d", "abc", "cd", "ab", "cd")):
        clock.note(outputs(*map(token, names)), 100.0 + i, single=True)
    assert [state.output_tokens for state in states.values()] == [5, 5, 6, 5]
    assert [state.last_token for state in states.values()] == [108.0, 108.0, 109.0, 109.0]
