"""Figures: what meets a goal, and what a table and a program are told."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.figures import Figure, as_json, as_table, not_measured

NUMBERS = st.floats(-1e6, 1e6)


@pytest.mark.parametrize(
    ("figure", "verdict"),
    [
        (Figure("a", 4.9, "%", 5.0), "PASS"),
        (Figure("a", 5.0, "%", 5.0), "miss"),
        (Figure("a", 2001.0, "x", above=2000.0), "PASS"),
        (Figure("a", 2000.0, "x", above=2000.0), "miss"),
        (Figure("a", 1.0, "x", 1.25, above=0.8), "PASS"),
        (Figure("a", 0.7, "x", 1.25, above=0.8), "miss"),
        (Figure("a", 1.3, "x", 1.25, above=0.8), "miss"),
        (Figure("a", 0.2, "%", 0.5, between=(0.1, 0.6)), "open"),
        (Figure("a", 2100.0, "x", above=2000.0, between=(1900.0, 2300.0)), "open"),
        (Figure("a", 12.0, "ms"), ""),
        (not_measured("a", "nothing to measure"), ""),
    ],
)
def test_a_figure_is_judged_by_its_goals(figure: Figure, verdict: str) -> None:
    assert figure.verdict == verdict


@given(st.tuples(NUMBERS, NUMBERS, NUMBERS), st.tuples(NUMBERS, NUMBERS))
def test_a_goal_is_met_only_where_all_of_the_interval_meets_it(
    measured: tuple[float, float, float], goals: tuple[float, float]
) -> None:
    low, value, high = sorted(measured)
    above, below = sorted(goals)
    verdict = Figure("a", value, "x", below, between=(low, high), above=above).verdict
    if verdict == "PASS":
        assert above < low <= high < below
    elif verdict == "miss":
        assert high <= above or low >= below
    else:
        assert any(low <= goal <= high for goal in goals)


def test_the_table_shows_goals_on_either_side_and_what_was_not_measured() -> None:
    table = as_table(
        iter([
            Figure("error", 2.9, "%", 6.0, "median"),
            Figure("speed", 1419.0, "x", above=2000.0),
            Figure("growth", 1.03, "x", 1.25, above=0.8),
            not_measured("accuracy", "no points given"),
        ])
    ).splitlines()  # fmt: skip
    assert [line.split() for line in table[1:5]] == [
        ["error", "2.9", "%", "<", "6", "%", "PASS"],
        ["speed", "1419", "x", ">", "2000", "x", "miss"],
        ["growth", "1.03", "x", "0.8", "to", "1.25", "x", "PASS"],
        ["accuracy", "-"],
    ]
    assert table[-2:] == ["error: median", "accuracy: not measured: no points given"]


def test_a_program_is_told_that_a_figure_is_missing_and_not_that_it_is_zero() -> None:
    (row,) = json.loads(as_json([not_measured("accuracy", "no points given")]))
    assert (row["value"], row["verdict"], row["note"]) == (None, "", "not measured: no points given")
