"""vLLM's real schedulers, driven without a model: asynchronous scheduling and preemption, which CPU engines lack."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines import by_hand
from tests.engines.engine_python import SCHEDULER_SCRIPTS, answer_of

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


@pytest.mark.parametrize("kind", ["sync", "async", "async-drafts", "async-delivery"])
def test_positions_are_counted_right_one_step_ahead_and_after_preemption(folder: Path, kind: str) -> None:
    counted = answer_of(
        SCHEDULER_SCRIPTS / "count_positions.py", folder / "model", kind, plugin=folder / "plugin",
        RIDGELINE_EXPORTER_HOST="127.0.0.1", RIDGELINE_EXPORTER_PORT="0",
    )  # fmt: skip
    expected = counted["by_hand"]
    assert counted["up"]
    assert counted["preemptions"] > 0, "the cache was meant to be too small"
    assert (expected["rejected"] > 0) == (expected["optimistic"] > 0) == (kind == "async-drafts")
    assert counted["steps"] == expected["steps"]
    linear = 2 * by_hand.LAYERS * (by_hand.QKV + by_hand.OUTPUT + by_hand.MLP)
    pair = 4 * by_hand.LAYERS * by_hand.QUERY_HEADS * by_hand.HEAD
    logits = 0.0
    for phase in ("prefill", "decode"):
        tokens, pairs = expected[phase], expected[f"{phase}_pairs"]
        assert counted["tokens"][phase] == tokens
        assert counted["kv_write"][phase] == tokens * by_hand.KV_TOKEN_BYTES
        logits += (counted["flops"][phase] - tokens * linear - pairs * pair) / (2 * by_hand.HEAD_MATRIX)
    assert logits == pytest.approx(expected["logits"]), "each position whose logits were used went through the head"
    assert counted["outputs"] == 8 * 60
    assert counted["prefills_finished"] == counted["finished"] == 8
    assert counted["arrived"] == [8, counted["prompts"]], "once, however often they were preempted"
    assert counted["remembered"] == 0, "requests that are gone are forgotten"


def test_requests_count_as_they_arrive_and_each_turn_of_a_session_is_one(folder: Path) -> None:
    told = answer_of(
        SCHEDULER_SCRIPTS / "count_arrivals.py", folder / "model", plugin=folder / "plugin",
        RIDGELINE_EXPORTER_HOST="127.0.0.1", RIDGELINE_EXPORTER_PORT="0",
    )  # fmt: skip
    assert told["counted"] == {
        "plain, before any step": [1, 100],
        "first leg": [1, 90],
        "second leg": [0, 0],
        "computing them": [0, 0],
        "first turn": [1, 40],
        "turn of a session that waits for it": [1, 20],
        "turn of a session that still runs": [1, 10],
        "end of a session": [0, 0],
    }
    assert told["up"]
    assert told["requests"] == 0
    assert told["turns finished"] == 3, "as many as arrived"
