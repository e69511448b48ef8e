from __future__ import annotations

from typing import Any

import pytest

from ridgeline.act.announcements import announcements
from ridgeline.act.turn import Turn, acts, take_turn
from ridgeline.api.conditions import Verdict
from ridgeline.api.fleet import (
    Action,
    Condition,
    FleetStatus,
    InferenceFleet,
    Mode,
    Policy,
    Recommendation,
    Role,
    Step,
    TopologyStatus,
)
from ridgeline.api.times import to_rfc3339
from ridgeline.decide.plan import History, Plan
from ridgeline.decide.snapshot import EngineState, MetricsProblem, RouterState, Snapshot
from ridgeline.decide.step_plan import Outcome, StepPlan

NOW = 1_790_000_000.0
INTERVAL = 5.0
BLIND = MetricsProblem("PrometheusUnreachable", "no answer")


def fleet(status: dict[str, Any] | None = None, **spec: Any) -> InferenceFleet:
    return InferenceFleet.from_object(
        {
            "metadata": {"namespace": "ns", "name": "chat", "uid": "u", "generation": 1},
            "spec": {
                "model": {"id": "m", "servedName": "m"},
                "hardware": {"accelerator": "H100-SXM5-80GB"},
                "engine": {"image": "i"},
                "replicas": 2,
                **spec,
            },
            "status": status or {},
        }
    )


def static(status: dict[str, Any] | None = None) -> InferenceFleet:
    return fleet(status, topology={"policy": "Static", "prefillReplicas": 1})


def world(*roles: Role, shown: tuple[Role, ...] | None = None, limit: int = 8192) -> Snapshot:
    """Ready engines with these roles, and one router that shows them (or others)."""
    engines = tuple(
        EngineState(
            f"e{n}", f"10.0.0.{n}", role, ready=True, limit_tokens=limit, maximum_tokens=8192, running_requests=n
        )
        for n, role in enumerate(roles)
    )
    table = {f"e{n}": role for n, role in enumerate(shown or roles)}
    return Snapshot(engines, (RouterState("r", ready=True, workers=table, synchronized=True),), BLIND)


def transition(step: Step, seconds_ago: float = 0.0) -> dict[str, Any]:
    """A split of two mixed engines under way."""
    mixed = {"mode": "Mixed", "mixed": 2, "prefill": 0, "decode": 0, "tokenBudget": 512}
    return {
        "transition": {
            "from": mixed,
            "to": {"mode": "Split", "mixed": 0, "prefill": 1, "decode": 1},
            "step": step,
            "action": "Split",
            "reason": "StaticTopology",
            "message": "asked for",
            "startTime": to_rfc3339(NOW - seconds_ago),
            "stepTime": to_rfc3339(NOW - seconds_ago),
        },
        "topology": mixed,
    }


def turn_of(of: InferenceFleet, seen: Snapshot, refusal: Verdict | None = None) -> Turn:
    return take_turn(of, seen, History(), refusal, NOW, INTERVAL)


MIXED = world(Role.MIXED, Role.MIXED)


def test_without_metrics_nothing_is_done_and_the_reason_is_told() -> None:
    turn = turn_of(fleet(topology={"policy": "Auto"}), MIXED)
    assert not acts(turn)
    assert (turn.roles, turn.limits, turn.transition) == ({}, {}, None)
    assert turn.verdict.reason == "PrometheusUnreachable"
    assert turn.again_seconds == INTERVAL


def test_a_change_of_roles_is_recorded_before_any_label_is_written() -> None:
    turn = turn_of(static(), MIXED)
    assert turn.transition is not None
    assert turn.transition.step is Step.PRECHECK
    assert (turn.roles, turn.limits) == ({}, {})
    assert turn.again_seconds == 0
    assert acts(turn)


def test_a_refused_spec_begins_nothing() -> None:
    turn = turn_of(static(), MIXED, Verdict("True", "UnknownAccelerator", "use another"))
    assert turn.transition is None
    assert turn.verdict == Verdict("False", "UnknownAccelerator", "use another")


def test_a_refused_spec_does_not_strand_a_transition() -> None:
    turn = turn_of(static(transition(Step.SWITCH)), MIXED, Verdict("True", "UnknownAccelerator", "use another"))
    assert turn.roles, "half a split serves worse than either end"


def test_labels_are_written_and_the_next_look_follows_at_once() -> None:
    turn = turn_of(static(transition(Step.SWITCH)), MIXED)
    assert turn.roles
    assert turn.again_seconds == 0


@pytest.mark.parametrize(
    ("seconds_ago", "again"),
    [
        pytest.param(1.0, 0.1, id="users wait"),
        pytest.param(20.0, 1.0, id="a router that needs long is asked less often"),
    ],
)
def test_routers_are_looked_at_until_they_follow(seconds_ago: float, again: float) -> None:
    lagging = world(Role.PREFILL, Role.DECODE, shown=(Role.MIXED, Role.MIXED))
    turn = turn_of(static(transition(Step.VERIFY, seconds_ago)), lagging)
    assert turn.step is not None
    assert not turn.step.routed
    assert turn.again_seconds == again


def test_once_routed_a_transition_is_looked_at_each_second() -> None:
    turn = turn_of(static(transition(Step.VERIFY)), world(Role.PREFILL, Role.DECODE, limit=256))
    assert turn.step is not None
    assert turn.step.routed
    assert turn.again_seconds == 1.0


def test_an_engine_that_restarted_gets_its_budget_again() -> None:
    split = {"mode": "Split", "mixed": 0, "prefill": 1, "decode": 1, "tokenBudget": 512}
    turn = turn_of(static({"topology": split}), world(Role.PREFILL, Role.DECODE))
    assert turn.plan is not None
    assert turn.plan.action is Action.HOLD
    assert list(turn.limits) == ["e1"], "the decode engine came back with its start-up budget"
    assert turn.token_budget == 512, "kept for the way back"


def test_mixed_engines_are_held_to_the_recorded_budget() -> None:
    recorded = {"mode": "Mixed", "mixed": 2, "prefill": 0, "decode": 0, "tokenBudget": 512}
    turn = turn_of(fleet({"topology": recorded}), MIXED)
    assert turn.limits == {"e0": 512, "e1": 512}


# ---------------------------------------------------------------- events


def topology(prefill: int) -> TopologyStatus:
    return TopologyStatus(mode=Mode.SPLIT, mixed=0, prefill=prefill, decode=1)


def recommended(prefill: int) -> Recommendation:
    return Recommendation(mode=Mode.SPLIT, prefill=prefill, decode=1, reason="DecodeStalled", message="m", time="t")


def condition(kind: str, status: str, reason: str = "Why") -> Condition:
    return Condition.model_validate(
        {"type": kind, "status": status, "reason": reason, "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    )


def status(*conditions: Condition, recommendation: Recommendation | None = None) -> FleetStatus:
    return FleetStatus(conditions=list(conditions), recommendation=recommendation)


def test_a_decision_that_acts_is_an_event_and_a_hold_is_none() -> None:
    split = Turn(History(), Verdict("True", "R"), 0, plan=Plan(Action.SPLIT, "DecodeStalled", "why", topology(1)))
    hold = Turn(History(), Verdict("False", "R"), 5, plan=Plan(Action.HOLD, "ObjectivesMet", "fine", topology(1)))
    (told,) = announcements(Policy.AUTO, status(), status(), split)
    assert (told.type, told.action, told.reason, told.message) == ("Normal", "Split", "DecodeStalled", "why")
    assert announcements(Policy.AUTO, status(), status(), hold) == []


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [pytest.param(Outcome.DONE, "Normal", id="done"), pytest.param(Outcome.ROLLED_BACK, "Warning", id="back")],
)
def test_the_end_of_a_transition_is_an_event(outcome: Outcome, kind: str) -> None:
    step = StepPlan(Verdict("False", "KVNotMoving", "why"), None, outcome=outcome)
    (told,) = announcements(Policy.AUTO, status(), status(), Turn(History(), step.verdict, 1, step=step))
    assert (told.type, told.reason) == (kind, "KVNotMoving")


def test_a_recommendation_is_told_when_it_becomes_another_one() -> None:
    first, other = status(recommendation=recommended(1)), status(recommendation=recommended(2))

    def told(policy: Policy, before: FleetStatus, after: FleetStatus, action: Action = Action.SPLIT) -> list[str]:
        advice = Plan(action, "DecodeStalled", "m", topology(1))
        turn = Turn(History(), Verdict("False", "RecommendOnly"), 5, recommendation=advice)
        return [a.action for a in announcements(policy, before, after, turn)]

    assert told(Policy.RECOMMEND, status(), first) == ["Recommend"]
    assert told(Policy.RECOMMEND, first, other) == ["Recommend"]
    assert told(Policy.RECOMMEND, first, first) == []
    assert told(Policy.RECOMMEND, status(), first, Action.HOLD) == [], "to stay as it is, is no news"
    assert told(Policy.AUTO, status(), first) == [], "there the decision itself is told"


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        pytest.param([], [condition("MetricsAvailable", "False")], [], id="a fleet that starts has no metrics yet"),
        pytest.param([], [condition("Degraded", "True")], ["Warning"], id="broken from the start"),
        pytest.param(
            [condition("MetricsAvailable", "True")],
            [condition("MetricsAvailable", "False")],
            ["Warning"],
            id="metrics lost",
        ),
        pytest.param(
            [condition("MetricsAvailable", "False")],
            [condition("MetricsAvailable", "True")],
            ["Normal"],
            id="metrics back",
        ),
        pytest.param([condition("Degraded", "True")], [condition("Degraded", "False")], ["Normal"], id="mended"),
        pytest.param(
            [condition("Degraded", "True", "A")], [condition("Degraded", "True", "B")], ["Warning"], id="broken anew"
        ),
        pytest.param([condition("Degraded", "True")], [condition("Degraded", "True")], [], id="still broken"),
        pytest.param([], [condition("Ready", "False")], [], id="the sum tells nothing of its own"),
    ],
)
def test_conditions_that_turn_are_events(before: list[Condition], after: list[Condition], told: list[str]) -> None:
    assert [a.type for a in announcements(Policy.AUTO, status(*before), status(*after), None)] == told
