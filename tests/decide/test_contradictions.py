"""Numbers that contradict each other, or what the engines say of themselves, are no basis for a change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ridgeline.api.fleet import Action, FleetStatus
from ridgeline.decide import reasons
from ridgeline.decide.decision import decide
from ridgeline.decide.guards import metrics_verdict
from ridgeline.decide.plan import Decision, History
from ridgeline.decide.snapshot import PhaseSignals, Signals, Snapshot
from tests.decide.fleets import LLAMA_70B, NOW, chat, engines, idle, snapshot, spec

LARGE = spec(8, interTokenLatencyMilliseconds=40, timeToFirstTokenMilliseconds=2000)


def fleet(letters: str, signals: Signals, **held: int | None) -> Snapshot:
    states = [replace(engine, **held) for engine in engines(letters, limit=512, maximum=8192)]  # type: ignore[arg-type]
    return snapshot(states, signals, link_bytes_per_second=48e9)


def after(seen: Snapshot, seconds: float = 120.0) -> Decision:
    history, decision, passed, base = History(), None, 0.0, seen.signals
    while passed <= seconds and (decision is None or decision.plan.action is Action.HOLD):
        assert isinstance(base, Signals)
        fresh = replace(seen, signals=replace(base, sampled_at=NOW + passed))
        decision = decide(fresh, LARGE, FleetStatus(), history, NOW + passed)
        history, passed = decision.history, passed + 5.0
    assert decision is not None
    return decision


STILL = idle(decode=PhaseSignals(tokens_per_second=0.0), prompt_tokens=None, output_tokens=None)
"""Every counter stands still."""


@pytest.mark.parametrize(
    ("signals", "held", "contradictory"),
    [
        pytest.param(STILL, {"running_requests": 0, "decoding_requests": 0}, False, id="nobody is there"),
        pytest.param(STILL, {"running_requests": 3, "decoding_requests": 0}, True, id="prompts that never arrived"),
        pytest.param(STILL, {"running_requests": 3, "decoding_requests": 3}, True, id="decodes without a token"),
        pytest.param(STILL, {"running_requests": 3, "decoding_requests": None}, True, id="an older exporter"),
        pytest.param(STILL, {"running_requests": None}, False, id="engines that do not tell"),
        pytest.param(
            replace(STILL, decode=PhaseSignals(tokens_per_second=80.0)),
            {"running_requests": 2, "decoding_requests": 2},
            False,
            id="the last answers of a load that is over",
        ),
        pytest.param(
            replace(STILL, decode=PhaseSignals()),
            {"running_requests": 2, "decoding_requests": 2},
            False,
            id="nobody knows whether they get tokens",
        ),
        pytest.param(
            replace(chat(20.0, LLAMA_70B), decode=PhaseSignals(tokens_per_second=0.0)),
            {"running_requests": 3, "decoding_requests": 0},
            False,
            id="requests arrive, and the first are being prefilled",
        ),
    ],
)
def test_rates_of_zero_beside_engines_at_work_are_not_calm(
    signals: Signals, held: dict[str, Any], contradictory: bool
) -> None:
    decision = after(fleet("ppppppdd", signals, **held))
    if contradictory:
        assert (decision.plan.action, decision.plan.reason) == (Action.HOLD, reasons.METRICS_CONTRADICTORY)
        assert decision.recommendation is None
    else:
        assert decision.plan.reason != reasons.METRICS_CONTRADICTORY
    assert metrics_verdict(fleet("ppppppdd", signals, **held), NOW).status == "True"


def test_a_split_is_merged_for_calm_only_when_its_engines_are_idle_too() -> None:
    assert after(fleet("ppppppdd", STILL, running_requests=0)).plan.reason == reasons.CALM
    held = after(fleet("ppppppdd", STILL, running_requests=5, decoding_requests=4))
    assert held.plan.action is Action.HOLD


def test_before_anything_is_counted_engines_at_work_get_a_budget_that_keeps_the_objective() -> None:
    plan = after(replace(fleet("mmmmmmmm", STILL), engines=tuple(
        replace(engine, limit_tokens=8192, running_requests=5) for engine in engines("mmmmmmmm", maximum=8192)
    ))).plan  # fmt: skip
    assert (plan.action, plan.reason) == (Action.TUNE, reasons.STARTING_BUDGET)


@pytest.mark.parametrize(
    ("latencies", "merged"),
    [
        pytest.param(
            {"inter_token_p99_seconds": 0.02, "time_to_first_token_p95_seconds": 0.5}, False, id="all in time"
        ),
        pytest.param({"inter_token_p99_seconds": None, "time_to_first_token_p95_seconds": None}, False, id="unknown"),
        pytest.param(
            {"inter_token_p99_seconds": 0.02, "time_to_first_token_p95_seconds": 9.0}, True, id="first tokens"
        ),
        pytest.param({"inter_token_p99_seconds": 0.30, "time_to_first_token_p95_seconds": 0.5}, True, id="gaps"),
    ],
)
def test_a_share_of_misses_that_no_latency_bears_out_does_not_end_a_split(
    latencies: dict[str, Any], merged: bool
) -> None:
    decision = after(fleet("ppppppdd", chat(20.0, missed_ratio=1.0, gaps_late_ratio=1.0, **latencies)))
    assert (decision.plan.reason == reasons.SPLIT_COLLAPSED) is merged
