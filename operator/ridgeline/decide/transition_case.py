"""What the steps of a transition share: the case at hand, how engines are divided, and the answers a step can give."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ridgeline.api.conditions import Verdict
from ridgeline.api.fleet import FleetSpec, FleetStatus, Mode, Role, Step, TopologyStatus, TransitionStatus
from ridgeline.api.times import from_rfc3339, to_rfc3339
from ridgeline.decide.observed import routers_lagging
from ridgeline.decide.roles import Counts, counts, serves, wanted_counts
from ridgeline.decide.snapshot import EngineState, Signals, Snapshot
from ridgeline.decide.step_plan import Outcome, StepPlan
from ridgeline.decide.wording import change, topology_text

LONGEST_COOLDOWN_SECONDS = 3600

Answer = StepPlan | TransitionStatus
"""What to do now, or the step to go on with at once."""


def cooldown_after(spec: FleetSpec, rolled_back_transitions: int) -> float:
    """Seconds of rest after a transition: the spec's, doubled for each roll-back in a row, at most an hour."""
    rest = spec.rules.cooldownSeconds * 2.0 ** min(rolled_back_transitions, 12)
    return min(rest, float(max(LONGEST_COOLDOWN_SECONDS, spec.rules.cooldownSeconds)))


def missed_permille(snapshot: Snapshot) -> int | None:
    """Requests in a thousand that miss their objectives now; None when that is not known."""
    return permille(snapshot.signals.missed_ratio if isinstance(snapshot.signals, Signals) else None)


def permille(share: float | None) -> int | None:
    """A share as it is recorded; None when it is not known."""
    if share is None or share != share:  # NaN
        return None
    return round(1000 * min(1.0, max(0.0, share)))


@dataclass(frozen=True, slots=True)
class Case:
    """One pass over a transition."""

    snapshot: Snapshot
    spec: FleetSpec
    status: FleetStatus
    now: float

    def since(self, time: str) -> float:
        """Seconds that have passed since a time of the status."""
        return max(0.0, self.now - from_rfc3339(time))

    def lagging(self) -> str | None:
        """What keeps the routers from showing the labels, if anything."""
        return routers_lagging(self.snapshot, self.spec)

    def table_serves(self) -> bool:
        """Whether the ready engines can answer requests with today's labels."""
        return serves(e.role for e in self.snapshot.serving)

    def division(self, target: TopologyStatus) -> tuple[tuple[EngineState, ...], Counts | None]:
        """Engines to divide, and how: all live ones, or the ready ones alone while those do not serve.

        None when a split is wanted of fewer than two engines.
        """
        mend = target.mode is Mode.SPLIT and self.snapshot.serving and not self.table_serves()
        pool = self.snapshot.serving if mend else self.snapshot.live
        return pool, wanted_counts(target, len(pool))

    def to_step(self, transition: TransitionStatus, step: Step, **fields: Any) -> TransitionStatus:
        """The record of the same transition at another step, which begins now."""
        return transition.model_copy(update={"step": step, "stepTime": to_rfc3339(self.now), **fields})

    def roll_back(self, transition: TransitionStatus, reason: str, why: str) -> TransitionStatus:
        """The record of the same transition on its way back."""
        back = f"back to {topology_text(transition.origin)}: {why}"
        return self.to_step(transition, Step.ROLL_BACK, reason=reason, message=back)


def progress(snapshot: Snapshot, wanted: Counts) -> tuple[int, int]:
    """Engines that have their role, and all."""
    have = counts(e.role for e in snapshot.live)
    return sum(min(have[role], wanted[role]) for role in Role), len(snapshot.live)


def under_way(transition: TransitionStatus, reason: str, message: str) -> StepPlan:
    """Come again: nothing to do, or what the caller adds."""
    return StepPlan(Verdict("True", reason, f"{change(transition)}, {transition.step}: {message}"), transition)


def over(outcome: Outcome, reason: str, message: str) -> StepPlan:
    """The end, without a rest."""
    return StepPlan(Verdict("False", reason, message), None, outcome=outcome)


def done(case: Case, reason: str, message: str) -> StepPlan:
    """The end that was wanted."""
    return replace(
        over(Outcome.DONE, reason, message),
        rolled_back_transitions=0,
        cooldown_until=case.now + cooldown_after(case.spec, 0),
    )


def rolled_back(case: Case, reason: str, message: str) -> StepPlan:
    """The end where it began: the rest doubles."""
    times = min(case.status.rolledBackTransitions + 1, 1024)
    return replace(
        over(Outcome.ROLLED_BACK, reason, message),
        rolled_back_transitions=times,
        cooldown_until=case.now + cooldown_after(case.spec, times),
    )
