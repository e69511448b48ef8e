"""Every series and label that a rule or panel reads exists; every series that is exported is documented and used."""

from __future__ import annotations

import pytest

from dashboards.contract import (
    Known,
    PanelQuery,
    check,
    check_query,
    dashboards,
    engine_families,
    exported_series,
    gpu_families,
    known_series,
    operator_families,
    panel_queries,
)

QUERIES = [query for name, board in dashboards().items() for query in panel_queries(name, board)]

REFERENCE_ONLY: dict[str, str] = {}
"""Exported but read by no rule and no panel, with the reason."""


@pytest.fixture(scope="module")
def known() -> Known:
    return known_series()[0]


def test_rules_read_what_exists() -> None:
    assert known_series()[1] == []


@pytest.mark.parametrize("query", [pytest.param(query, id=query.place) for query in QUERIES])
def test_a_query_reads_what_exists(query: PanelQuery, known: Known) -> None:
    assert check_query(query, known) == []


def test_every_exported_family_is_used_or_for_reference(known: Known) -> None:
    for query in QUERIES:
        check_query(query, known)
    families = {family.name: family for family in (*engine_families(), *gpu_families(), *operator_families())}
    unused = {name for name, family in families.items() if not set(family.series(frozenset())) & known.read}
    assert unused == set(REFERENCE_ONLY)


def test_every_recorded_series_is_shown_or_read_by_the_operator(known: Known) -> None:
    known.read.clear()
    for query in QUERIES:
        check_query(query, known)
    assert known.recorded - known.read == set()


FAULTS = [
    (
        "an unknown series",
        "sum(ridgeline_engine_token_total)",
        "nobody exports or records ridgeline_engine_token_total",
    ),
    ("a label that a matcher invents", 'up{fleet="x", phase="decode"}', "up names label phase"),
    ("a label that by invents", "sum by (rank) (fleet:ridgeline_requests:rate)", "sum by names label rank"),
    ("a label lost in a rule", "sum by (pod) (fleet:ridgeline_requests:rate)", "sum by names label pod"),
    ("a counter without a rate", "ridgeline_engine_tokens_total", "is a counter and read without a range"),
    ("a bucket without a rate", "histogram_quantile(0.9, ridgeline_engine_step_seconds_bucket)", "without a range"),
    (
        "a quantile without le",
        "histogram_quantile(0.9, sum by (pod) (rate(ridgeline_engine_step_seconds_bucket[5m])))",
        "histogram_quantile names label le",
    ),
    (
        "sides that never match",
        "fleet:ridgeline_requests:rate / fleet:ridgeline_tokens:rate",
        "the sides of / never match",
    ),
    (
        "a join on a label that one side lacks",
        "fleet:ridgeline_requests:rate * on (pod) group_left (role) engine:ridgeline_role:current",
        "on of *, left side, names label pod",
    ),
    (
        "a label that a join does not bring",
        "up * on (pod) group_left (phase) engine:ridgeline_role:current",
        "group_left names label phase",
    ),
    ("a parenthesis", "sum(up", "does not parse"),
    ("a rate of nothing that has a range", "rate(up)", "does not parse"),
]


@pytest.mark.parametrize(("expression", "problem"), [pytest.param(e, p, id=name) for name, e, p in FAULTS])
def test_a_planted_fault_is_found(expression: str, problem: str, known: Known) -> None:
    found = check(expression, known)[1]
    assert any(problem in each for each in found), found


@pytest.mark.parametrize(
    ("legend", "columns"),
    [
        pytest.param("{{pod}}", frozenset(), id="in a legend"),
        pytest.param("", frozenset({"reason"}), id="in a column"),
    ],
)
def test_a_shown_label_that_is_not_there_is_found(legend: str, columns: frozenset[str], known: Known) -> None:
    query = PanelQuery("here", "fleet:ridgeline_requests:rate", legend, columns)
    assert len(check_query(query, known)) == 1


def test_exported_series_are_read_from_the_code_that_exports_them() -> None:
    series = exported_series()
    assert "phase" in series["ridgeline_engine_tokens_total"]
    assert "le" in series["ridgeline_engine_decode_gap_seconds_bucket"]
    assert {"pod", "role"} <= series["ridgeline_fleet_engine_role"]
    assert "outcome" in series["ridgeline_fleet_transitions_total"]
