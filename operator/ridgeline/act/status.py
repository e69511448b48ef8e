"""The status of a fleet: what is written, and when it is worth writing. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ridgeline.act.conditions import shortened
from ridgeline.api.conditions import ConditionType
from ridgeline.api.fleet import (
    Action,
    Condition,
    FleetStatus,
    InferenceFleet,
    LastDecision,
    Mode,
    Recommendation,
    TopologyStatus,
    TransitionStatus,
)
from ridgeline.api.names import COMPONENT_ENGINE, LABEL_COMPONENT, LABEL_FLEET
from ridgeline.api.times import to_rfc3339
from ridgeline.decide.plan import Plan
from ridgeline.decide.snapshot import Snapshot

MESSAGE_REFRESH_SECONDS = 60.0
"""Messages carry measured numbers; when nothing but those changed, the status is written no more often than this."""


def selector(fleet: str) -> str:
    """Selector of the engine pods, for the scale subresource."""
    return f"{LABEL_FLEET}={fleet},{LABEL_COMPONENT}={COMPONENT_ENGINE}"


def observed(
    fleet: InferenceFleet, snapshot: Snapshot, transition: TransitionStatus | None, token_budget: int | None
) -> FleetStatus:
    """The status with what was seen in this pass; decisions and conditions are as before.

    Args:
        fleet: with the status of the pass before.
        snapshot: what was seen.
        transition: the one under way, to be written before anything is done for it.
        token_budget: budget that mixed engines should have; None leaves them as they are.
    """
    topology = snapshot.topology
    return fleet.status.model_copy(
        update={
            "observedGeneration": fleet.generation,
            "replicas": sum(not engine.terminating for engine in snapshot.engines),
            "readyReplicas": len(snapshot.serving),
            "selector": selector(fleet.name),
            "topology": topology.model_copy(update={"tokenBudget": token_budget or topology.tokenBudget}),
            "transition": transition,
        }
    )


def wanted_budget(recorded: TopologyStatus | None, plan: Plan | None) -> int | None:
    """Token budget of mixed engines from now on: the plan's when it acts, else the recorded one."""
    if plan is not None and plan.action is not Action.HOLD and plan.target.tokenBudget is not None:
        return plan.target.tokenBudget
    return recorded.tokenBudget if recorded else None


def last_decision(before: LastDecision | None, plan: Plan, now: float) -> LastDecision:
    """The last thing done stays until something else is done; a hold shows only while nothing was done yet."""
    if plan.action is Action.HOLD and before is not None and before.action is not Action.HOLD:
        return before
    same = before is not None and (before.action, before.reason) == (plan.action, plan.reason)
    keeps_time = same and plan.action is Action.HOLD
    return LastDecision(
        action=plan.action,
        reason=plan.reason,
        message=shortened(plan.message),
        time=before.time if before is not None and keeps_time else to_rfc3339(now),
    )


def recommendation(
    before: Recommendation | None, plan: Plan | None, engines: int, needed: int | None, now: float
) -> Recommendation | None:
    """The best topology by the what-if model; its time is when it last became another one.

    Without evidence the last one stands, as long as there are as many engines as it divides.

    Args:
        before: as stored.
        plan: what is best now; None without evidence.
        engines: that there are.
        needed: engines that the load needs; None when no number would do.
        now: Unix seconds.
    """
    if plan is None:
        return before if before is not None and before.prefill + before.decode <= engines else None
    target = plan.target
    key = (target.mode, target.prefill, target.decode, target.tokenBudget, plan.reason)
    same = before is not None and key == recommended(before)
    return Recommendation(
        mode=target.mode,
        prefill=target.prefill,
        decode=target.decode,
        tokenBudget=target.tokenBudget,
        enginesNeeded=needed,
        reason=plan.reason,
        message=shortened(plan.message),
        time=before.time if before is not None and same else to_rfc3339(now),
    )


def arrival_burst_percent(before: FleetStatus, after: FleetStatus, burst: float) -> int | None:
    """What mixed engines showed of bursts, kept from the moment they are split until they are mixed again.

    Args:
        before: the status of the pass before.
        after: with the topology seen and the transition under way in this pass.
        burst: what is known of it now, 1 for independent arrivals.
    """
    if after.transition is None and (after.topology is None or after.topology.mode is Mode.MIXED):
        return None
    return before.arrivalBurstPercent or round(100 * max(1.0, burst))


def recommended(recommendation: Recommendation) -> tuple[object, ...]:
    """What makes two recommendations the same, whatever their words."""
    r = recommendation
    return (r.mode, r.prefill, r.decode, r.tokenBudget, r.reason)


def as_object(status: FleetStatus) -> dict[str, Any]:
    """The status as the API server stores it."""
    dumped: dict[str, Any] = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dumped


def must_write(stored: Mapping[str, Any], wanted: Mapping[str, Any], seconds_since_write: float | None) -> bool:
    """Whether the wanted status differs from the stored one in more than the numbers within its sentences.

    Args:
        stored: as read in this pass.
        wanted: as it should be.
        seconds_since_write: since this process last wrote it; None if it never did.
    """
    stored = _ours(stored)
    wanted = _ours(wanted)
    if stored == wanted:
        return False
    if seconds_since_write is None or seconds_since_write >= MESSAGE_REFRESH_SECONDS:
        return True
    return bool(_essence(stored) != _essence(wanted))


def _ours(status: Mapping[str, Any]) -> dict[str, Any]:
    """A status without the conditions of others, and with ours by their type: their order means nothing."""
    conditions = {c["type"]: c for c in status.get("conditions") or () if c.get("type") in set(ConditionType)}
    return {**status, "conditions": conditions}


def _essence(value: Any) -> Any:
    """A status without its messages."""
    if isinstance(value, Mapping):
        return {key: _essence(part) for key, part in value.items() if key != "message"}
    if isinstance(value, list):
        return [_essence(part) for part in value]
    return value


def with_conditions(status: FleetStatus, conditions: list[Condition]) -> FleetStatus:
    """The status with its conditions."""
    return status.model_copy(update={"conditions": conditions})
