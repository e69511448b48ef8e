"""What a transition asks for now: the only thing the executor needs to read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ridgeline.api.conditions import Verdict
from ridgeline.api.fleet import Role, TransitionStatus


class Outcome(StrEnum):
    """How a transition ended: also the label of the metric."""

    DONE = "done"
    ROLLED_BACK = "rolled_back"


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One pass over a transition. Carry out `roles` and `limits` in any order, write `transition`, come again soon."""

    verdict: Verdict
    """For the condition Transitioning: "True" while under way, "False" when over."""
    transition: TransitionStatus | None
    """For `status.transition`; None when the transition is over."""
    roles: Mapping[str, Role] = field(default_factory=dict)
    """Pod → role label to write now. Any order is safe, also when only some are written."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Pod → token budget to set now (`max_num_scheduled_tokens`)."""
    routed: bool = False
    """Every router shows exactly the roles that this transition wants: the first such pass is when traffic moved."""
    outcome: Outcome | None = None
    """Set when the transition is over."""
    rolled_back_transitions: int | None = None
    """For `status.rolledBackTransitions`; None leaves it."""
    cooldown_until: float | None = None
    """Unix seconds for `status.cooldownUntilTime`; None leaves it."""
