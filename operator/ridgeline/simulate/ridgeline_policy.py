"""Ridgeline's own policy on a simulated fleet: the code that decides live, pass by pass, with the same status.

Nothing is decided here. Each look is a pass of the reconciler without Kubernetes: `take_turn` on the snapshot, the
status that it leaves kept for the next, its role labels and limits as orders.
"""

from __future__ import annotations

from ridgeline.act.turn import status_after, take_turn
from ridgeline.api.conditions import Verdict
from ridgeline.api.fleet import Action, FleetSpec, FleetStatus, InferenceFleet
from ridgeline.decide.plan import History
from ridgeline.decide.snapshot import Snapshot
from ridgeline.simulate.controller import Event, Orders
from ridgeline.simulate.observer import EPOCH_SECONDS


class RidgelinePolicy:
    """Decides as the operator does.

    Args:
        spec: the fleet's; its policy says whether anything is done (Auto) or only recommended.
        epoch_seconds: Unix time of the simulation's start; the observer's.
        name: for tables and reports.
    """

    def __init__(self, spec: FleetSpec, epoch_seconds: float = EPOCH_SECONDS, name: str = "Ridgeline") -> None:
        self.name = name
        self.events: list[Event] = []
        """What was done, in order."""
        self.most_engines_needed: int | None = None
        """The most that the load was ever estimated to need; None before the first estimate."""
        self.verdict: Verdict | None = None
        """What the last look came to: a plan or a hold with its reason, or the step of a transition."""
        self._epoch_seconds = epoch_seconds
        self._fleet = InferenceFleet(
            namespace="simulation", name="fleet", uid="simulation", generation=1, spec=spec, status=FleetStatus()
        )
        self._history = History()

    @property
    def status(self) -> FleetStatus:
        """The fleet's status after the last look."""
        return self._fleet.status

    def begin(self, engines: tuple[str, ...]) -> Orders:
        """As a fleet starts: all engines mixed, with their start-up budget."""
        return Orders()

    def decide(self, now: float, snapshot: Snapshot) -> Orders:
        """One pass."""
        unix = self._epoch_seconds + now
        before = self._fleet.status.transition
        turn = take_turn(self._fleet, snapshot, self._history, None, unix, 0.0)
        self._history, self.verdict = turn.history, turn.verdict
        after = status_after(self._fleet, snapshot, turn, unix)
        self._fleet = self._fleet.model_copy(update={"status": after})
        needed = turn.history.engines_needed
        if needed is not None and needed > (self.most_engines_needed or 0):
            self.most_engines_needed = needed
        if turn.plan is not None and turn.plan.action is not Action.HOLD:
            self.events.append(Event(now, turn.plan.action, turn.plan.reason, turn.plan.message))
        if before is not None and turn.step is not None and turn.step.outcome is not None:
            self.events.append(Event(now, turn.step.outcome, turn.step.verdict.reason, turn.step.verdict.message))
        under_way = turn.transition is not None
        return Orders(turn.roles, turn.limits, turn.again_seconds if under_way else None)
