"""What `decide` answers: a Plan, and "do nothing" is one of them."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.api.fleet import Action, TopologyStatus
from ridgeline.decide.scoreboard import Board
from ridgeline.decide.snapshot import StepTimes

CLEAR_GAIN = 0.25
"""Share of all requests: what saves so many is not in doubt."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A decision with its reason, ready to become condition, event, log line and metric."""

    action: Action
    reason: str
    message: str
    target: TopologyStatus
    """Topology to reach; today's for a Hold."""
    gain: float = 0.0
    """Share of requests that it saves from missing, by the what-if model."""
    unchanged_missed: float | None = None
    """Share that would miss without it, by the same model, with room for the load to grow; None where nothing was weighed."""
    expected_missed: float | None = None
    """Share that would miss after it, likewise."""

    @property
    def changes_roles(self) -> bool:
        """Whether engines change their role (a transition), not only their limits."""
        return self.action in (Action.SPLIT, Action.MERGE, Action.REBALANCE, Action.ROLL_BACK)

    @property
    def is_clear(self) -> bool:
        """Whether waiting to be surer would cost more than a change too many."""
        return self.gain >= CLEAR_GAIN


@dataclass(frozen=True, slots=True)
class History:
    """What earlier cycles leave to the next: kept in memory, rebuilt from status after a restart."""

    wanted: Plan | None = None
    """The change that the last cycles agreed on, not yet acted on."""
    wanted_since: float | None = None
    """Unix seconds since when."""
    cooldown_until: float | None = None
    split: tuple[int, int] | None = None
    """Prefill and decode engines of the last complete split: where a replaced engine belongs."""
    burst: float = 1.0
    """How bursty arrivals were when the fleet was last mixed (`calibration.py`): a split cannot show it, so that the
    status keeps it meanwhile."""
    loaded_since: float | None = None
    """Unix seconds since when requests have been seen to arrive, without a pause."""
    boards: tuple[Board, ...] = ()
    """How the candidates would have done lately, oldest first."""
    steps: StepTimes | None = None
    """What the engines told last of their steps."""
    steps_of: tuple[float | None, ...] = ()
    """Weight bytes, FLOPs per token and peaks of those engines: what was learned of others says nothing."""
    prompts_waited_at: float | None = None
    """When engines last got a larger budget for prompts that waited, Unix seconds."""
    engines_needed: int | None = None
    """Fewest engines that would have done for the load of the last board (`engines_needed.py`); None when no number
    would, or without a board."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One pass of `decide`."""

    plan: Plan
    """What to do now."""
    recommendation: Plan | None
    """Best topology by the what-if model, whether or not anyone acts on it; None without evidence."""
    history: History
    """To be handed to the next pass."""
