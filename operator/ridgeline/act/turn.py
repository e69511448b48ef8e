"""What one pass over a fleet comes to: a decision, the next step of a transition, or nothing. Pure.

`decide` and `transition` say what should be; this module says what of it is to be carried out now and when to look
again, so that the reconciler has no rules of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ridgeline.act.conditions import shortened
from ridgeline.act.status import arrival_burst_percent, last_decision, observed, recommendation, wanted_budget
from ridgeline.api.conditions import Verdict
from ridgeline.api.fleet import (
    Action,
    FleetStatus,
    InferenceFleet,
    LastDecision,
    Role,
    Step,
    TopologyStatus,
    TransitionStatus,
)
from ridgeline.api.times import from_rfc3339, to_rfc3339
from ridgeline.decide.absent import absent, labels_of_absent, without
from ridgeline.decide.decision import decide, load_turned, settled, with_known_steps
from ridgeline.decide.limits import limits_to_set
from ridgeline.decide.plan import History, Plan
from ridgeline.decide.snapshot import Snapshot
from ridgeline.decide.step_plan import Outcome, StepPlan
from ridgeline.decide.transition import begin, give_up_watch, next_step

AT_ONCE = 0.0
ROUTING_SECONDS = 0.1
"""Pause while routers are to follow: the time to routed is what users notice of a change."""
ROUTING_PATIENCE_SECONDS = 10.0
"""Routers that need longer are asked less often."""
TRANSITION_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One pass, ready to be carried out: first `transition` is written, then the rest is done."""

    history: History
    """For the next pass."""
    verdict: Verdict
    """For the condition Transitioning."""
    again_seconds: float
    """When to look again."""
    plan: Plan | None = None
    """What was decided; None where nothing was to be decided."""
    recommendation: Plan | None = None
    transition: TransitionStatus | None = None
    roles: Mapping[str, Role] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    token_budget: int | None = None
    """Budget that mixed engines should have from now on."""
    step: StepPlan | None = None
    """The step of the transition that was under way, also when it has ended by it."""


def take_turn(
    fleet: InferenceFleet, snapshot: Snapshot, history: History, refusal: Verdict | None, now: float, interval: float
) -> Turn:
    """Decide, or go on with what was decided.

    Args:
        fleet: with the status as stored.
        snapshot: what was seen.
        history: from the pass before.
        refusal: why this spec cannot work: nothing new is begun then, but a transition is brought to its end.
        now: Unix seconds.
        interval: seconds to the next pass when nothing is under way.
    """
    away = absent(snapshot, fleet.spec, now)
    present = without(snapshot, away)
    turn = _turn(fleet, present, history, refusal, now, interval)
    if away and turn.transition is None and refusal is None:
        turn = replace(turn, roles={**turn.roles, **labels_of_absent(away, present)})
    return turn


def _turn(
    fleet: InferenceFleet, snapshot: Snapshot, history: History, refusal: Verdict | None, now: float, interval: float
) -> Turn:
    if fleet.status.transition is not None:
        return _go_on(fleet, fleet.status.transition, snapshot, history, refusal, now, interval)
    recorded = fleet.status.topology
    if refusal is not None:
        return Turn(history, Verdict("False", refusal.reason, refusal.message), interval,
                    token_budget=wanted_budget(recorded, None))  # fmt: skip
    decision = decide(snapshot, fleet.spec, fleet.status, history, now)
    plan = decision.plan
    verdict = Verdict("True" if plan.changes_roles else "False", plan.reason, plan.message)
    budget = wanted_budget(recorded, plan)
    common = Turn(decision.history, verdict, interval, plan, decision.recommendation, token_budget=budget)
    if plan.changes_roles:
        return replace(common, transition=begin(plan, snapshot, now), again_seconds=AT_ONCE)
    return replace(
        common,
        limits=limits_to_set(
            with_known_steps(snapshot, decision.history)[0],
            _with_budget(recorded or snapshot.topology, budget),
            fleet.spec.objectives,
        ),
    )


def _go_on(
    fleet: InferenceFleet,
    transition: TransitionStatus,
    snapshot: Snapshot,
    history: History,
    refusal: Verdict | None,
    now: float,
    interval: float,
) -> Turn:
    known, learned = with_known_steps(snapshot, history)
    step = next_step(transition, known, fleet.spec, fleet.status, now)
    if refusal is None and step.transition is not None and step.transition.step is Step.SOAK:
        merge, history = load_turned(known, fleet.spec, fleet.status, learned, now)
        if merge is not None:
            step = give_up_watch(transition, merge, fleet.spec, fleet.status, now)
    elif step.transition is not None:
        history = settled(history)
    rolled_back = step.outcome is Outcome.ROLLED_BACK
    goal = transition.origin if rolled_back else (step.transition or transition).to
    recorded = fleet.status.topology
    return Turn(
        history=history,
        verdict=step.verdict,
        again_seconds=_pause(transition, step, now, interval),
        transition=step.transition,
        roles=step.roles,
        limits=step.limits,
        token_budget=goal.tokenBudget or (recorded.tokenBudget if recorded else None),
        step=step,
    )


def _pause(transition: TransitionStatus, step: StepPlan, now: float, interval: float) -> float:
    """Seconds to the next look at a transition: none while there is something to do, short until routers follow."""
    if step.transition is None:
        return min(TRANSITION_SECONDS, interval)
    setting = bool(step.limits) and transition.step is Step.SET_LIMITS
    if step.roles or setting or step.transition.step != transition.step:
        return AT_ONCE
    if not step.routed and now - from_rfc3339(step.transition.stepTime) < ROUTING_PATIENCE_SECONDS:
        return ROUTING_SECONDS
    return TRANSITION_SECONDS


def _with_budget(topology: TopologyStatus, budget: int | None) -> TopologyStatus:
    return topology.model_copy(update={"tokenBudget": budget})


def status_after(fleet: InferenceFleet, snapshot: Snapshot, chosen: Turn, now: float) -> FleetStatus:
    """The status that a turn leaves; conditions are as before.

    Args:
        fleet: with the status of the pass before.
        snapshot: what was seen in this pass.
        chosen: what it came to.
        now: Unix seconds.
    """
    before = fleet.status
    after = observed(fleet, snapshot, chosen.transition, chosen.token_budget)
    changed: dict[str, object] = {"arrivalBurstPercent": arrival_burst_percent(before, after, chosen.history.burst)}
    if chosen.plan is not None:
        changed["lastDecision"] = last_decision(before.lastDecision, chosen.plan, now)
        changed["recommendation"] = recommendation(
            before.recommendation, chosen.recommendation, len(snapshot.live), chosen.history.engines_needed, now
        )
    if (step := chosen.step) is not None:
        if step.outcome is Outcome.ROLLED_BACK:
            changed["lastDecision"] = LastDecision(
                action=Action.ROLL_BACK,
                reason=step.verdict.reason,
                message=shortened(step.verdict.message),
                time=to_rfc3339(now),
            )
        if step.rolled_back_transitions is not None:
            changed["rolledBackTransitions"] = step.rolled_back_transitions
        if step.cooldown_until is not None:
            changed["cooldownUntilTime"] = to_rfc3339(step.cooldown_until)
    return after.model_copy(update=changed)


def acts(turn: Turn) -> bool:
    """Whether this turn decided to change something."""
    return turn.plan is not None and turn.plan.action is not Action.HOLD
