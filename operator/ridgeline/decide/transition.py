"""A change of topology, step by step (placeholder for its first callers)."""

from __future__ import annotations

from ridgeline.api.fleet import FleetSpec, FleetStatus, Step, TransitionStatus
from ridgeline.api.times import to_rfc3339
from ridgeline.decide.plan import Plan
from ridgeline.decide.snapshot import Signals, Snapshot
from ridgeline.decide.step_plan import StepPlan


def begin(plan: Plan, snapshot: Snapshot, now: float) -> TransitionStatus:
    """The record of a transition that starts now; `next_step` takes it from there."""
    missed = snapshot.signals.missed_ratio if isinstance(snapshot.signals, Signals) else None
    return TransitionStatus(
        origin=snapshot.topology,
        to=plan.target,
        step=Step.PRECHECK,
        action=plan.action,
        reason=plan.reason,
        message=plan.message,
        startTime=to_rfc3339(now),
        stepTime=to_rfc3339(now),
        missedPermilleAtStart=None if missed is None else round(1000 * min(1.0, max(0.0, missed))),
    )


def next_step(
    transition: TransitionStatus, snapshot: Snapshot, spec: FleetSpec, status: FleetStatus, now: float
) -> StepPlan:
    """What to do now for a transition under way."""
    raise NotImplementedError
