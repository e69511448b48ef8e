"""The policy benchmark's own arithmetic: the rate it searches, what it keeps, and what it compares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench import policy, policy_table


@given(st.lists(st.floats(0.5, 900.0), min_size=len(policy.STATICS), max_size=len(policy.STATICS)))
def test_the_search_finds_the_rate_of_the_best_static_choice(limits: list[float]) -> None:
    carried = dict(zip(policy.STATICS, limits, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy, "carries", lambda _c, _k, _d, rate, name: rate <= carried[name])
        found = policy.find_rate(("8b", "abrupt", 1))
    best = max(limits)
    assert best / (1.0 + policy.RATE_PRECISION) <= found["rate"] <= best
    assert carried[found["best"]] >= found["rate"]


def row(draw: int, name: str, attainment: float) -> dict[str, Any]:
    return {
        "case": "8b", "kind": "anti", "draw": draw, "level": 1.0, "policy": name,
        "attainment": attainment, "attainment_settled": None, "transitions": 2,
    }  # fmt: skip


def test_ridgeline_is_compared_draw_by_draw_with_the_best_of_that_draw() -> None:
    rows = [
        row(1, "ridgeline", 0.90), row(1, "mixed:512", 0.95), row(1, "split:6", 0.80),
        row(2, "ridgeline", 0.90), row(2, "mixed:512", 0.60), row(2, "split:6", 0.85),
    ]  # fmt: skip
    lines = {
        line.split("ridgeline")[1].strip()
        for line in policy_table.table(rows).splitlines()
        if "best " in line and "ridgeline" in line
    }
    assert any(line.startswith("best static") and line.split()[-4:] == ["+0.0", "-5.0", "+5.0", "2"] for line in lines)
    assert any(line.startswith("best mixed") and line.split()[-4:] == ["+12.5", "-5.0", "+30.0", "2"] for line in lines)


def test_the_last_row_of_a_name_counts_and_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    whole = [json.dumps(row(1, "ridgeline", value)) for value in (0.1, 0.2)]
    path.write_text("\n".join(whole) + "\n" + whole[0][:40])
    assert [each["attainment"] for each in policy_table.read_rows(path)] == [0.2]
    assert policy_table.read_rows(tmp_path / "none.jsonl") == []
