"""Telling what a pass did: log lines, metrics and events. Nothing here steers anything."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from ridgeline.act.announcements import announcements
from ridgeline.act.events import EventRecorder
from ridgeline.act.turn import Turn, acts
from ridgeline.api.conditions import ConditionType, Verdict
from ridgeline.api.fleet import Action, FleetStatus, InferenceFleet, Policy, TransitionStatus
from ridgeline.api.times import from_rfc3339
from ridgeline.decide.correction import Factor
from ridgeline.decide.snapshot import Signals, Snapshot
from ridgeline.decide.step_times import step_corrections
from ridgeline.metrics import FleetView, Key, OperatorMetrics

log = logging.getLogger(__name__)

STEP_KINDS = {"decode": "steps that only decode", "prefill": "steps that hold a prompt chunk"}


@dataclass(slots=True)
class _Told:
    """What was told of a fleet last."""

    decision: tuple[Action, str] | None = None
    recommended: Action | None = None
    sampled_at: float | None = None
    """Time of the newest signals: their age grows on while there are none."""
    decided_at: float | None = None
    """When the transition under way was decided, monotonic seconds; None once its routing was measured."""
    bounded: set[str] = field(default_factory=set)
    """Kinds of step whose correction was at its bounds."""


class Reporter:
    """Reports of all fleets."""

    def __init__(self, metrics: OperatorMetrics, events: EventRecorder) -> None:
        self._metrics = metrics
        self._events = events
        self._told: dict[Key, _Told] = {}

    def decided(self, key: Key) -> None:
        """A transition was decided on at this moment; called before anything is done for it."""
        self._told.setdefault(key, _Told()).decided_at = time.monotonic()

    def forget(self, key: Key) -> None:
        """Drop the memory and the series of a deleted fleet."""
        self._told.pop(key, None)
        self._metrics.forget(key)
        self._events.forget(*key)

    def refused(self, key: Key, answers: Mapping[ConditionType, Verdict], now: float) -> None:
        """Metrics of a fleet whose spec cannot be understood."""
        self._metrics.show(key, FleetView(conditions=answers, seen_at=now))

    def measure(
        self,
        fleet: InferenceFleet,
        snapshot: Snapshot,
        turn: Turn,
        after: FleetStatus,
        answers: Mapping[ConditionType, Verdict],
        now: float,
    ) -> None:
        """Metrics and log lines of a pass.

        Args:
            fleet: with the status of before the pass.
            snapshot: what was seen.
            turn: what was decided and done.
            after: the status as written.
            answers: the conditions.
            now: Unix seconds.
        """
        key = (fleet.namespace, fleet.name)
        told = self._told.setdefault(key, _Told())
        self._tell_decision(key, told, turn)
        if turn.step is not None and fleet.status.transition is not None:
            self._tell_step(key, told, turn, fleet.status.transition, now)
        corrections: Mapping[str, Factor] = {}
        if isinstance(snapshot.signals, Signals):
            told.sampled_at = snapshot.signals.sampled_at
            corrections = step_corrections(snapshot.signals).measured()
        self._tell_bounds(key, told, corrections)
        self._metrics.show(
            key,
            FleetView(
                roles={engine.pod: engine.role for engine in snapshot.live},
                topology=after.topology,
                recommendation=after.recommendation,
                recommended_action=told.recommended,
                sampled_at=told.sampled_at,
                seen_at=now,
                conditions=answers,
                step_time_corrections={kind: factor.value for kind, factor in corrections.items()},
            ),
        )

    def _tell_decision(self, key: Key, told: _Told, turn: Turn) -> None:
        plan = turn.plan
        if plan is None:
            return
        if acts(turn) or told.decision != (plan.action, plan.reason):
            self._metrics.decided(key, plan.action, plan.reason)
            log.info("%s/%s: %s (%s): %s", *key, plan.action, plan.reason, plan.message)
        told.decision = (plan.action, plan.reason)
        if turn.recommendation is not None:
            told.recommended = turn.recommendation.action

    def _tell_bounds(self, key: Key, told: _Told, corrections: Mapping[str, Factor]) -> None:
        """Warn once of each kind of step that is too far from its model to be corrected."""
        for kind, factor in corrections.items():
            if factor.bounded and kind not in told.bounded:
                told.bounded.add(kind)
                log.warning(
                    "%s/%s: %s take %s than %g times as long as modelled, which is as far as step times are corrected: are"
                    " the peaks in spec.hardware those of these GPUs, are these throttled or shared with something else?",
                    *key, STEP_KINDS[kind], "more" if factor.value > 1.0 else "less", factor.value,
                )  # fmt: skip

    def _tell_step(self, key: Key, told: _Told, turn: Turn, transition: TransitionStatus, now: float) -> None:
        step = turn.step
        assert step is not None, "the caller has looked"
        if step.routed and told.decided_at is not None:
            seconds = time.monotonic() - told.decided_at
            self._metrics.routed(key, transition.action, seconds)
            log.info("%s/%s: every router shows the roles %.2f s after the decision", *key, seconds)
            told.decided_at = None
        if step.outcome is not None:
            seconds = now - from_rfc3339(transition.startTime)
            self._metrics.transition_over(key, transition.action, step.outcome, seconds)
            told.decided_at = None
        if step.transition is None or step.transition.step != transition.step or step.roles or step.limits:
            log.info("%s/%s: %s: %s", *key, step.verdict.reason, step.verdict.message)

    async def announce(
        self,
        key: Key,
        uid: str,
        policy: Policy | None,
        before: FleetStatus,
        after: FleetStatus,
        turn: Turn | None,
        now: float,
    ) -> None:
        """Write the events of a pass; arguments as of `announcements`."""
        for told in announcements(policy, before, after, turn):
            await self._events.record(
                *key, uid, type_=told.type, action=told.action, reason=told.reason, message=told.message, now=now
            )
