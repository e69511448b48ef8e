"""Which engine changes its role next."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.api.fleet import Mode, Role, TopologyStatus
from ridgeline.decide.roles import counts, next_batch, scaled_split, serves, wanted_counts
from tests.decide.fleets import engines


def wanted(letters: str) -> dict[Role, int]:
    return counts(e.role for e in engines(letters))


def steps(letters: str, goal: str, at_once: int) -> list[str]:
    """The tables after each batch."""
    fleet, seen = engines(letters), [letters]
    short = {Role.MIXED: "m", Role.PREFILL: "p", Role.DECODE: "d"}
    while batch := next_batch(fleet, wanted(goal), at_once):
        fleet = tuple(replace(e, role=batch.get(e.pod, e.role)) for e in fleet)
        seen.append("".join(short[e.role] for e in fleet))
        assert len(seen) < 50
    return seen


@pytest.mark.parametrize(
    ("start", "goal", "at_once", "expected"),
    [
        pytest.param("mm", "pd", 2, ["mm", "pm", "pd"], id="two engines split one after the other, prefill first"),
        pytest.param("pd", "mm", 2, ["pd", "md", "mm"], id="two engines merge one after the other"),
        pytest.param("mmm", "pdd", 2, ["mmm", "pdm", "pdd"], id="a pair at once while one stays mixed"),
        pytest.param("mmmm", "ppdd", 1, ["mmmm", "pmmm", "pdmm", "pdpm", "pdpd"], id="one at a time"),
        pytest.param("ppd", "pdd", 2, ["ppd", "dpd"], id="a rebalance leaves a pair alone"),
        pytest.param("dd", "pd", 2, ["dd", "pd"], id="a broken pair is mended in one step"),
        pytest.param("dm", "pd", 2, ["dm", "dp"], id="the replaced engine takes the empty pool"),
        pytest.param("pd", "pd", 2, ["pd"], id="nothing to do"),
    ],
)
def test_exact_sequences(start: str, goal: str, at_once: int, expected: list[str]) -> None:
    assert steps(start, goal, at_once) == expected


def test_the_least_busy_engine_moves() -> None:
    a, b, c = engines("mmm")
    fleet = (replace(a, running_requests=9), replace(b, running_requests=1), replace(c, running_requests=4))
    assert next_batch(fleet, wanted("pmm"), 2) == {"e1": Role.PREFILL}


def test_an_engine_that_does_not_tell_counts_as_busy() -> None:
    a, b = engines("mm")
    fleet = (replace(a, running_requests=None), replace(b, running_requests=50))
    assert next_batch(fleet, wanted("pm"), 2) == {"e1": Role.PREFILL}


def test_a_table_that_serves_is_never_given_up_for_an_engine_that_is_not_ready() -> None:
    assert next_batch(engines("Pm"), wanted("pd"), 2) == {}


@pytest.mark.parametrize(
    ("prefill", "decode", "engines_left", "expected"),
    [
        pytest.param(6, 2, 8, (6, 2), id="as it was"),
        pytest.param(6, 2, 4, (3, 1), id="half"),
        pytest.param(6, 2, 2, (1, 1), id="never an empty pool"),
        pytest.param(1, 7, 3, (1, 2), id="prefill keeps one"),
        pytest.param(7, 1, 3, (2, 1), id="decode keeps one"),
    ],
)
def test_a_split_shrinks_in_proportion(prefill: int, decode: int, engines_left: int, expected: tuple[int, int]) -> None:
    assert scaled_split(prefill, decode, engines_left) == expected


def test_engines_beyond_the_target_stay_mixed_and_one_engine_cannot_split() -> None:
    target = TopologyStatus(mode=Mode.SPLIT, mixed=0, prefill=1, decode=1)
    assert wanted_counts(target, 3) == {Role.MIXED: 1, Role.PREFILL: 1, Role.DECODE: 1}
    assert wanted_counts(target, 1) is None


tables = st.text("mpd", min_size=1, max_size=12)
fleets = st.text("mpdMPD", min_size=1, max_size=12)


@st.composite
def journeys(draw: st.DrawFn) -> tuple[str, str, int]:
    """A table that serves, another one of the same size that serves, and a limit."""
    start = draw(tables.filter(lambda t: serves(e.role for e in engines(t))))
    goal = draw(
        st.text("mpd", min_size=len(start), max_size=len(start)).filter(lambda t: serves(e.role for e in engines(t)))
    )
    return start, goal, draw(st.integers(1, 4))


@settings(deadline=None)
@given(journeys())
def test_every_table_on_the_way_serves_in_any_order_and_the_way_ends(journey: tuple[str, str, int]) -> None:
    start, goal, at_once = journey
    fleet, target = engines(start), wanted(goal)
    for _ in range(2 * len(start) + 1):
        batch = next_batch(fleet, target, at_once)
        assert len(batch) <= at_once
        for size in range(1, len(batch) + 1):
            for some in combinations(batch, size):
                assert serves(batch[e.pod] if e.pod in some else e.role for e in fleet)
        if not batch:
            break
        fleet = tuple(replace(e, role=batch.get(e.pod, e.role)) for e in fleet)
    assert counts(e.role for e in fleet) == target


@settings(deadline=None)
@given(fleets, st.text("mpd", min_size=1, max_size=12), st.integers(1, 4))
def test_ready_engines_that_serve_go_on_serving_whatever_the_others_do(letters: str, goal: str, at_once: int) -> None:
    fleet = engines(letters)
    target = wanted((goal * 12)[: len(letters)])
    for _ in range(30):
        before = serves(e.role for e in fleet if e.ready)
        batch = next_batch(fleet, target, at_once)
        if not batch:
            return
        fleet = tuple(replace(e, role=batch.get(e.pod, e.role)) for e in fleet)
        assert not before or serves(e.role for e in fleet if e.ready)
    raise AssertionError("never at rest")
