"""A change of topology, step by step, from what is observed and what `status.transition` recorded.

    Precheck ──► Switch ──► SetLimits ──► Verify ──► Soak ──► done
        │           │            │           │         │
        ▼           └────────────┴─────┬─────┴─────────┘
     given up                          ▼
                                   RollBack ──► rolled back

`next_step` is called again and again, by whichever operator leads; it holds nothing between calls. Roles are reached
by counts (`roles.py`), so engines may die, join or be replaced at any step. A step that finds its work done passes on
to the next within the same call, so a change takes as few round trips as safety allows. A table that does not serve
is mended at once, whatever the step. What each step does is in `transition_steps.py`.
"""

from __future__ import annotations

from dataclasses import replace

from ridgeline.api.fleet import FleetSpec, FleetStatus, Policy, Step, TransitionStatus
from ridgeline.api.times import to_rfc3339
from ridgeline.decide import reasons
from ridgeline.decide.limits import limits_to_set
from ridgeline.decide.plan import Plan
from ridgeline.decide.snapshot import Snapshot
from ridgeline.decide.static_target import is_static_target
from ridgeline.decide.step_plan import Outcome, StepPlan
from ridgeline.decide.transition_case import Answer, Case, cooldown_after, missed_permille, over, permille, under_way
from ridgeline.decide.transition_steps import REPAIRS, STEPS
from ridgeline.decide.wording import change

__all__ = ["begin", "cooldown_after", "give_up_watch", "next_step"]


def begin(plan: Plan, snapshot: Snapshot, now: float) -> TransitionStatus:
    """The record of a transition that starts now; `next_step` takes it from there."""
    return TransitionStatus(
        origin=snapshot.topology,
        to=plan.target,
        step=Step.PRECHECK,
        action=plan.action,
        reason=plan.reason,
        message=plan.message,
        startTime=to_rfc3339(now),
        stepTime=to_rfc3339(now),
        missedPermilleAtStart=missed_permille(snapshot),
        missedPermilleIfUnchanged=permille(plan.unchanged_missed),
        missedPermilleExpected=permille(plan.expected_missed),
    )


def give_up_watch(
    transition: TransitionStatus, merge: Plan, spec: FleetSpec, status: FleetStatus, now: float
) -> StepPlan:
    """The end of a transition whose split the load has outgrown: nothing is judged, so that roll-backs stay counted."""
    message = f"{change(transition)} is no longer watched: {merge.message}"
    rest = cooldown_after(spec, status.rolledBackTransitions)
    return replace(over(Outcome.DONE, reasons.LOAD_TURNED, message), cooldown_until=now + rest)


def next_step(
    transition: TransitionStatus, snapshot: Snapshot, spec: FleetSpec, status: FleetStatus, now: float
) -> StepPlan:
    """What to do now for a transition under way: idempotent until the world has changed."""
    case = Case(snapshot, spec, status, now)
    for _ in range(2 * len(Step)):
        answer = _interruption(case, transition) or STEPS[transition.step](case, transition)
        if isinstance(answer, StepPlan):
            if transition.step in (Step.VERIFY, Step.SOAK) and answer.transition is not None and not answer.limits:
                answer = replace(
                    answer, limits=limits_to_set(snapshot, transition.to, spec.objectives)
                )  # decodes that ended meanwhile
            settled = transition.step in (Step.SET_LIMITS, Step.VERIFY, Step.SOAK) and not answer.roles
            return replace(answer, routed=settled and case.lagging() is None)
        transition = answer
    return under_way(transition, reasons.SWITCHING, "the fleet changes faster than the transition")


def _interruption(case: Case, transition: TransitionStatus) -> Answer | None:
    """What ends or bends a transition whatever its step: engines gone, another wish, a table that does not serve."""
    if not case.snapshot.live:
        return over(Outcome.ROLLED_BACK, reasons.ENGINES_VANISHED, "the fleet has no engine left")
    if transition.step is Step.ROLL_BACK:
        return None
    if transition.reason not in REPAIRS and _superseded(case, transition):
        return over(Outcome.DONE, reasons.SUPERSEDED, "the spec asks for another topology now")
    if transition.step in (Step.PRECHECK, Step.SWITCH) or not case.snapshot.serving or case.table_serves():
        return None
    return case.to_step(transition, Step.SWITCH)


def _superseded(case: Case, transition: TransitionStatus) -> bool:
    static = case.spec.topology.policy is Policy.STATIC
    return static and not is_static_target(transition.to, case.spec, len(case.snapshot.live))
