"""Every closed form beside the loop over tokens that it stands for."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.simulate.counters import Counters, StepSums
from ridgeline.simulate.decode_run import DecodeRun
from ridgeline.simulate.decodes import Decodes
from ridgeline.simulate.ingress import Ingress
from ridgeline.simulate.kv_cache import Allocation
from ridgeline.simulate.request import Request
from ridgeline.simulate.traces import Arrival
from ridgeline_exporters.engine.metrics import FINE_SECONDS

firsts = st.floats(1e-4, 1.0)
growths = st.one_of(st.just(0.0), st.floats(1e-12, 1e-3))
counts = st.integers(1, 300)


def durations(run: DecodeRun) -> list[float]:
    return [run.first_seconds + i * run.growth_seconds for i in range(run.steps)]


@given(firsts, growths, counts, st.floats(-1.0, 400.0))
def test_moments_are_turned_into_steps_as_by_counting(first: float, growth: float, steps: int, time: float) -> None:
    run = DecodeRun(0.5, steps, first, growth)
    ends = [run.end_of(i + 1) for i in range(steps)]
    assert run.complete_by(time) == sum(end <= time for end in ends)
    assert run.boundary_from(time) == min(steps, 1 + sum(end < time for end in ends))
    total = 0.5
    for seconds, end in zip(durations(run), ends, strict=True):
        total += seconds
        assert end == pytest.approx(total, rel=1e-9)


@given(firsts, growths, counts, st.floats(1e-5, 2.0))
def test_steps_up_to_a_limit_are_counted_exactly(first: float, growth: float, steps: int, limit: float) -> None:
    run = DecodeRun(0.0, steps, first, growth)
    assert run.steps_up_to(limit, steps) == sum(seconds <= limit for seconds in durations(run))


@given(firsts, growths, counts, st.integers(1, 40))
def test_gaps_of_a_run_fall_into_the_same_buckets_as_one_by_one(
    first: float, growth: float, steps: int, sequences: int
) -> None:
    run, counters = DecodeRun(0.0, steps, first, growth), Counters()
    counters.decode_run(run, steps, sequences, 100)
    expected = [0] * (len(FINE_SECONDS) + 1)
    for seconds in durations(run):
        expected[bisect_left(FINE_SECONDS, seconds)] += sequences
    assert counters.gap_buckets == expected


@given(firsts, growths, counts, st.integers(1, 40), st.integers(0, 100_000))
def test_steps_of_a_run_hold_what_they_hold_one_by_one(
    first: float, growth: float, steps: int, sequences: int, kv_tokens: int
) -> None:
    together, one_by_one = Counters(), Counters()
    run = DecodeRun(0.0, steps, first, growth)
    together.decode_run(run, steps, sequences, kv_tokens)
    for place, seconds in enumerate(durations(run)):
        one_by_one.step(seconds, sequences, kv_tokens + place * sequences)
    for name in StepSums.__slots__:
        assert getattr(together.decode_steps, name) == pytest.approx(getattr(one_by_one.decode_steps, name)), name
    assert together.prefill_steps.steps == one_by_one.prefill_steps.steps == 0


@given(firsts, growths, st.integers(2, 300), st.data())
def test_a_run_goes_on_where_its_first_steps_end(first: float, growth: float, steps: int, data: st.DataObject) -> None:
    run = DecodeRun(1.0, steps, first, growth)
    end = run.end_of(steps)
    run.advance(data.draw(st.integers(1, steps - 1)))
    assert run.end_of(run.steps) == pytest.approx(end, rel=1e-9)


def group(contexts: list[int], block: int, steps_before: int) -> Decodes:
    decodes = Decodes(block)
    decodes.advance(steps_before, 0)
    for number, context in enumerate(contexts):
        request = Request(number, Arrival(0.0, context, 10_000), 0.0)
        request.computed, request.order, request.generated, request.allocation = context, number, 1, Allocation()
        decodes.join(request)
    return decodes


@given(st.lists(st.integers(1, 200), max_size=12), st.sampled_from([1, 3, 16]), st.integers(0, 40), st.integers(0, 90))
def test_blocks_of_many_steps_are_those_of_each(contexts: list[int], block: int, before: int, steps: int) -> None:
    decodes = group(contexts, block, before)
    assert decodes.blocks_needed(steps) == sum(-(-(c + steps) // block) - -(-c // block) for c in contexts)


@given(
    st.lists(st.integers(1, 200), min_size=1, max_size=12),
    st.sampled_from([1, 3, 16]),
    st.integers(0, 40),
    st.integers(0, 60),
    st.integers(1, 90),
)
def test_steps_that_fit_leave_no_room_for_one_more(
    contexts: list[int], block: int, before: int, free: int, most: int
) -> None:
    decodes = group(contexts, block, before)
    steps = decodes.steps_that_fit(free, most)
    assert 0 <= steps <= most
    assert decodes.blocks_needed(steps) <= free
    assert steps == most or decodes.blocks_needed(steps + 1) > free


@given(st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(1.0, 1e4)), min_size=1, max_size=12))
def test_a_shared_link_carries_what_it_can_and_nothing_twice(transfers: list[tuple[float, float]]) -> None:
    """Against the plain algorithm: cut time where the number of transfers changes, give each an even share."""
    speed, link, ends = 1000.0, Ingress(1000.0), {}
    coming = sorted((time, number, size) for number, (time, size) in enumerate(transfers))
    left: dict[int, float] = {}
    now, expected = 0.0, {}
    while coming or left:
        finish = now + min(left.values()) * len(left) / speed if left else float("inf")
        moment = min(finish, coming[0][0] if coming else float("inf"))
        for number in list(left):
            left[number] -= (moment - now) * speed / len(left) if left else 0.0
        now = moment
        done = [number for number, size in left.items() if size <= 1.0]
        for number in done:
            expected[number] = now
            del left[number]
        while coming and coming[0][0] <= now:
            _, number, size = coming.pop(0)
            left[number] = size
    requests = {number: Request(number, Arrival(0.0, 1, 1), 0.0) for number in range(len(transfers))}
    starts = sorted((time, number, size) for number, (time, size) in enumerate(transfers))
    while starts or len(link):
        end = link.next_end()
        if starts and (end is None or starts[0][0] < end):
            time, number, size = starts.pop(0)
            link.start(requests[number], size, time)
        else:
            assert end is not None
            for request in link.ended(end):
                ends[request.identifier] = end
    assert ends.keys() == expected.keys()
    for number, end in ends.items():
        assert end == pytest.approx(expected[number], abs=0.02)
