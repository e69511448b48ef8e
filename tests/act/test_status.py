from __future__ import annotations

from typing import Any

import pytest

from ridgeline.act.status import (
    arrival_burst_percent,
    as_object,
    last_decision,
    must_write,
    observed,
    recommendation,
    wanted_budget,
)
from ridgeline.api.fleet import Action, FleetStatus, InferenceFleet, LastDecision, Mode, Role, TopologyStatus
from ridgeline.decide.plan import Plan
from ridgeline.decide.snapshot import EngineState, Snapshot
from ridgeline.decide.transition import begin

NOW = 1_790_000_000.0


def topology(prefill: int = 0, decode: int = 0, budget: int | None = None) -> TopologyStatus:
    mode = Mode.SPLIT if prefill else Mode.MIXED
    return TopologyStatus(mode=mode, mixed=0 if prefill else 2, prefill=prefill, decode=decode, tokenBudget=budget)


def plan(action: Action, reason: str = "Why", message: str = "because", target: TopologyStatus | None = None) -> Plan:
    return Plan(action, reason, message, target or topology())


def decision(action: Action, reason: str = "Why") -> LastDecision:
    return LastDecision(action=action, reason=reason, message="before", time="2026-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("before", "now", "action", "keeps_time"),
    [
        pytest.param(None, plan(Action.HOLD), Action.HOLD, False, id="the first hold is told"),
        pytest.param(decision(Action.HOLD), plan(Action.HOLD), Action.HOLD, True, id="the same hold keeps its time"),
        pytest.param(
            decision(Action.HOLD, "Else"), plan(Action.HOLD), Action.HOLD, False, id="another hold replaces it"
        ),
        pytest.param(
            decision(Action.SPLIT), plan(Action.HOLD), Action.SPLIT, True, id="a hold does not hide what was done"
        ),
        pytest.param(decision(Action.SPLIT), plan(Action.MERGE), Action.MERGE, False, id="an act replaces an act"),
        pytest.param(
            decision(Action.TUNE), plan(Action.TUNE), Action.TUNE, False, id="the same act again is a new one"
        ),
    ],
)
def test_the_last_decision(before: LastDecision | None, now: Plan, action: Action, keeps_time: bool) -> None:
    found = last_decision(before, now, NOW)
    assert found.action is action
    assert (before is not None and found.time == before.time) == keeps_time


def test_a_recommendation_keeps_its_time_while_it_stays_the_same() -> None:
    first = recommendation(None, plan(Action.SPLIT, message="8 % miss", target=topology(1, 1)), 3, 2, NOW)
    assert first is not None
    same = recommendation(first, plan(Action.SPLIT, message="9 % miss", target=topology(1, 1)), 3, 5, NOW + 60)
    other = recommendation(first, plan(Action.SPLIT, message="9 % miss", target=topology(2, 1)), 3, None, NOW + 60)
    assert same is not None
    assert other is not None
    assert (same.time, same.message) == (first.time, "9 % miss")
    assert (first.enginesNeeded, same.enginesNeeded, other.enginesNeeded) == (2, 5, None)
    assert other.time != first.time
    assert recommendation(first, None, 2, None, NOW) == first, "without evidence the last one stands"
    assert recommendation(first, None, 1, None, NOW) is None, "there are too few engines for it now"


@pytest.mark.parametrize(
    ("recorded", "decided", "budget"),
    [
        pytest.param(None, None, None, id="nothing known"),
        pytest.param(topology(budget=512), None, 512, id="recorded"),
        pytest.param(topology(budget=512), plan(Action.TUNE, target=topology(budget=1024)), 1024, id="tuned"),
        pytest.param(
            topology(budget=512), plan(Action.HOLD, target=topology(budget=2048)), 512, id="a hold changes nothing"
        ),
        pytest.param(
            topology(budget=512), plan(Action.SPLIT, target=topology(1, 1)), 512, id="a split without a budget"
        ),
    ],
)
def test_the_budget_of_mixed_engines(recorded: TopologyStatus | None, decided: Plan | None, budget: int | None) -> None:
    assert wanted_budget(recorded, decided) == budget


STORED: dict[str, Any] = {"replicas": 2, "conditions": [{"type": "Ready", "status": "True", "message": "8 % miss"}]}


@pytest.mark.parametrize(
    ("change", "seconds", "expected"),
    [
        pytest.param({}, None, False, id="equal, never written"),
        pytest.param(
            {"conditions": [*STORED["conditions"], {"type": "Audited"}]}, None, False, id="a foreign condition"
        ),
        pytest.param({"replicas": 3}, 0.1, True, id="a fact changed"),
        pytest.param(
            {"conditions": [{"type": "Ready", "status": "True", "message": "9 % miss"}]}, 5, False, id="numbers"
        ),
        pytest.param(
            {"conditions": [{"type": "Ready", "status": "True", "message": "9 % miss"}]}, 61, True, id="old numbers"
        ),
        pytest.param(
            {"conditions": [{"type": "Ready", "status": "True", "message": "9 % miss"}]}, None, True, id="first write"
        ),
        pytest.param(
            {"conditions": [{"type": "Ready", "status": "False", "message": "8 % miss"}]}, 1, True, id="status"
        ),
    ],
)
def test_the_status_is_written_when_it_says_something_new(
    change: dict[str, Any], seconds: float | None, expected: bool
) -> None:
    assert must_write(STORED, {**STORED, **change}, seconds) is expected


@pytest.mark.parametrize(
    ("recorded", "seen", "moving", "expected"),
    [
        pytest.param(None, topology(), False, None, id="mixed engines show it themselves"),
        pytest.param(None, topology(), True, 250, id="a split begins"),
        pytest.param(400, topology(1, 1), True, 400, id="a split under way"),
        pytest.param(400, topology(1, 1), False, 400, id="a split"),
        pytest.param(400, topology(), False, None, id="mixed again"),
        pytest.param(None, topology(1, 1), False, 250, id="a split of an operator that kept none"),
    ],
)
def test_how_bursty_arrivals_were_is_kept_while_the_fleet_is_split(
    recorded: int | None, seen: TopologyStatus, moving: bool, expected: int | None
) -> None:
    transition = begin(plan(Action.SPLIT, target=topology(1, 1)), Snapshot(), NOW) if moving else None
    before = FleetStatus(arrivalBurstPercent=recorded)
    after = before.model_copy(update={"topology": seen, "transition": transition})
    assert arrival_burst_percent(before, after, 2.5) == expected


def test_the_status_mirrors_the_labels_and_keeps_the_budget() -> None:
    fleet = InferenceFleet.from_object(
        {
            "metadata": {"namespace": "ns", "name": "chat", "uid": "u", "generation": 7},
            "spec": {
                "model": {"id": "m", "servedName": "m"},
                "hardware": {"accelerator": "H100-SXM5-80GB"},
                "engine": {"image": "i"},
            },
        }
    )
    engines = (
        EngineState("a", "10.0.0.1", Role.PREFILL, ready=True),
        EngineState("b", "10.0.0.2", Role.DECODE, ready=False),
        EngineState("c", "10.0.0.3", Role.MIXED, ready=True, terminating=True),
    )
    status = as_object(observed(fleet, Snapshot(engines), None, 512))
    assert status["topology"] == {"mode": "Split", "mixed": 0, "prefill": 1, "decode": 1, "tokenBudget": 512}
    assert (status["replicas"], status["readyReplicas"], status["observedGeneration"]) == (2, 1, 7)
    assert status["selector"] == "ridgeline.dev/fleet=chat,ridgeline.dev/component=engine"
    assert "transition" not in status, "nothing under way leaves no field behind"
    assert FleetStatus.model_validate(status).topology is not None
