"""docs/metrics.md lists what the code exports, records and alerts on, and nothing else: its tables are made from it."""

from __future__ import annotations

import re

import pytest

from dashboards.contract import FOREIGN, METRICS_PAGE, exported_series, known_series, rule_files
from dashboards.metrics_page import meanings, page, tables, unit

PAGE = METRICS_PAGE.read_text()


def test_the_page_is_what_make_generate_writes() -> None:
    assert page(PAGE) == PAGE, "run `make generate`"


@pytest.mark.parametrize("marker", sorted(tables()))
def test_nothing_is_listed_twice_or_without_a_meaning(marker: str) -> None:
    rows = [line.strip("|").split(" | ") for line in tables()[marker].splitlines()[2:]]
    assert len({row[0] for row in rows}) == len(rows)
    assert all(row[-1].rstrip(" |").endswith(".") for row in rows)


def test_every_series_that_can_be_read_is_on_the_page() -> None:
    known = known_series()[0]
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exported_series()} | known.recorded
    listed = set(re.findall(r"^\| `([^`]+)`", PAGE, re.MULTILINE))
    assert families <= listed
    alerts = {rule["alert"] for _, rule in rule_files() if "alert" in rule}
    registrar = {name for name in listed if name.startswith("ridgeline_registrar_")}
    assert listed == families | alerts | registrar


def test_a_row_edited_by_hand_is_made_anew() -> None:
    row = "| `ridgeline_leader` | gauge |"
    assert row in PAGE
    assert page(PAGE.replace(row, "| `ridgeline_leads` | counter |")) == PAGE


def test_a_page_without_a_place_for_a_table_is_told() -> None:
    with pytest.raises(ValueError, match="alerts"):
        page(PAGE.replace("<!-- alerts -->", ""))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ridgeline_engine_ridge_flops_per_byte", "FLOP/byte"),
        ("ridgeline_engine_peak_flops", "FLOP/s"),
        ("ridgeline_engine_tokens_total", "tokens"),
        ("fleet:ridgeline_tokens:rate", "tokens/s"),
        ("fleet:ridgeline_kv_transfer_bytes:rate", "bytes/s"),
        ("fleet:ridgeline_requests:rate", "1/s"),
        ("fleet:ridgeline_decode_gap_seconds:p95", "s"),
        ("fleet:ridgeline_sample_timestamp_seconds", "Unix seconds"),
        ("ridgeline_fleet_engines", ""),
    ],
)
def test_the_unit_is_the_one_in_the_name(name: str, expected: str) -> None:
    assert unit(name) == expected


def test_every_rule_says_what_it_is_for() -> None:
    said = meanings()
    names = {rule.get("record") or rule["alert"] for _, rule in rule_files()}
    assert set(said) == names
    assert all(said.values())


def test_foreign_series_are_named() -> None:
    for name in FOREIGN:
        family = re.sub(r"_(total|sum|bucket)$", "", name)
        assert f"`{family}`" in PAGE
