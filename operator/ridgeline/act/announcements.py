"""Which events a pass gives rise to. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.act.events import NORMAL, WARNING
from ridgeline.act.status import recommended
from ridgeline.act.turn import Turn, acts
from ridgeline.api.conditions import ConditionType
from ridgeline.api.fleet import Action, Condition, FleetStatus, Policy
from ridgeline.decide.step_plan import Outcome

TOLD_CONDITIONS = {
    # condition: the status that is good news
    ConditionType.AVAILABLE: "True",
    ConditionType.METRICS_AVAILABLE: "True",
    ConditionType.DEGRADED: "False",
}


@dataclass(frozen=True, slots=True)
class Announcement:
    """One event."""

    type: str
    action: str
    reason: str
    message: str


def announcements(
    policy: Policy | None, before: FleetStatus, after: FleetStatus, turn: Turn | None
) -> list[Announcement]:
    """Events of one pass.

    Args:
        policy: of the fleet; None when its spec cannot be understood.
        before: the status as stored.
        after: the status as written now.
        turn: what was decided and done; None when nothing was.
    """
    told: list[Announcement] = []
    if turn is not None and turn.plan is not None and acts(turn):
        told.append(Announcement(NORMAL, turn.plan.action, turn.plan.reason, turn.plan.message))
    if turn is not None and turn.step is not None and turn.step.outcome is not None:
        kind = WARNING if turn.step.outcome is Outcome.ROLLED_BACK else NORMAL
        action = "RollBack" if turn.step.outcome is Outcome.ROLLED_BACK else "Transition"
        told.append(Announcement(kind, action, turn.step.verdict.reason, turn.step.verdict.message))
    if policy is Policy.RECOMMEND and turn is not None and _recommends_anew(before, after, turn):
        assert after.recommendation is not None, "it has just been compared"
        told.append(Announcement(NORMAL, "Recommend", after.recommendation.reason, after.recommendation.message))
    return [*told, *_condition_changes(before, after)]


def _recommends_anew(before: FleetStatus, after: FleetStatus, turn: Turn) -> bool:
    """Whether another change is recommended than before; to stay as it is, is no news."""
    if turn.recommendation is None or turn.recommendation.action is Action.HOLD or after.recommendation is None:
        return False
    return before.recommendation is None or recommended(before.recommendation) != recommended(after.recommendation)


def _condition_changes(before: FleetStatus, after: FleetStatus) -> list[Announcement]:
    """Conditions that turned bad, or good again; a fleet that merely starts has nothing to tell."""
    old = {condition.type: condition for condition in before.conditions}
    told = []
    for condition in after.conditions:
        good = TOLD_CONDITIONS.get(ConditionType(condition.type))
        if good is None:
            continue
        previous = old.get(condition.type)
        if previous is not None and (previous.status, previous.reason) == (condition.status, condition.reason):
            continue
        if condition.status == good:
            if previous is not None and previous.status != good:
                told.append(_announcement(NORMAL, condition))
        elif condition.type == ConditionType.DEGRADED or (previous is not None and previous.status == good):
            told.append(_announcement(WARNING, condition))
    return told


def _announcement(kind: str, condition: Condition) -> Announcement:
    return Announcement(kind, condition.type, condition.reason, condition.message)
