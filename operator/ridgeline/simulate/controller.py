"""Who steers a simulated fleet: sees a `Snapshot` as late as an operator does, and gives orders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ridgeline.api.fleet import Role
from ridgeline.decide.snapshot import Snapshot
from ridgeline.simulate.fleet import Fleet
from ridgeline.simulate.observer import Observer

SHORTEST_PASS_SECONDS = 0.1
"""A look at the fleet takes this long, however urgent the next is."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What is to be done now, and when to look again."""

    roles: Mapping[str, Role] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    """Engine → token budget."""
    again_seconds: float | None = None
    """Until the next look; None: the operator's interval."""
    start_up_seconds: float | None = None
    """Roles come with a new engine that starts for so long, once the old one has worked off what it had; None: by label."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a policy did or saw end."""

    seconds: float
    """Of the simulation."""
    action: str
    """A plan's action, or the outcome of a transition."""
    reason: str
    message: str


class Controller(Protocol):
    """A policy."""

    @property
    def name(self) -> str:
        """For tables and reports."""
        ...

    def begin(self, engines: tuple[str, ...]) -> Orders:
        """How the fleet is set up before the first request."""
        ...

    def decide(self, now: float, snapshot: Snapshot) -> Orders:
        """Orders for now, in seconds of the simulation; times within the snapshot are Unix seconds."""
        ...


@dataclass(frozen=True, slots=True)
class StaticMixed:
    """All engines mixed, with one token budget."""

    budget_tokens: int

    @property
    def name(self) -> str:
        """Such as `mixed 512`."""
        return f"mixed {self.budget_tokens}"

    def begin(self, engines: tuple[str, ...]) -> Orders:
        """Set the budget."""
        return Orders(dict.fromkeys(engines, Role.MIXED), dict.fromkeys(engines, self.budget_tokens))

    def decide(self, now: float, snapshot: Snapshot) -> Orders:
        """Nothing, ever."""
        return Orders()


@dataclass(frozen=True, slots=True)
class StaticSplit:
    """So many prefill engines, the others decode.

    Raises:
        ValueError: at `begin`, when that leaves a pool empty.
    """

    prefill: int

    @property
    def name(self) -> str:
        """Such as `3 prefill`."""
        return f"{self.prefill} prefill"

    def begin(self, engines: tuple[str, ...]) -> Orders:
        """Divide the engines."""
        if not 0 < self.prefill < len(engines):
            raise ValueError(f"{self.prefill} of {len(engines)} engines for prefill leaves a pool empty")
        roles = {name: Role.PREFILL if i < self.prefill else Role.DECODE for i, name in enumerate(engines)}
        return Orders(roles)

    def decide(self, now: float, snapshot: Snapshot) -> Orders:
        """Nothing, ever."""
        return Orders()


def steer(fleet: Fleet, controller: Controller, observer: Observer | None = None) -> None:
    """Set a fleet up and put a controller in charge of it.

    Args:
        fleet: before its first request.
        controller: gives the orders.
        observer: shows it the fleet; without one it is only asked how to begin.
    """
    first = controller.begin(tuple(fleet.engines))
    fleet.set_roles_at_once(dict(first.roles))
    for name, tokens in first.limits.items():
        fleet.set_limit(name, tokens)
    if observer is None:
        return
    delays = observer.delays

    def look(now: float) -> None:
        orders = controller.decide(now, observer.snapshot(now))
        if orders.roles or orders.limits:
            fleet.at(now + delays.act_seconds, lambda then: obey(fleet, orders))
        again = delays.pass_interval_seconds if orders.again_seconds is None else orders.again_seconds
        acted = delays.act_seconds if orders.roles or orders.limits else 0.0
        fleet.at(now + acted + max(SHORTEST_PASS_SECONDS, again), look)

    fleet.at(fleet.now + delays.pass_interval_seconds, look)


def obey(fleet: Fleet, orders: Orders) -> None:
    """Do what was ordered: labels can be written on any engine, the rest needs one that serves."""
    for name, role in orders.roles.items():
        if orders.start_up_seconds is None:
            fleet.set_role(name, role)
        elif fleet.engines[name].ready:
            fleet.replace(name, role, orders.start_up_seconds)
    for name, tokens in orders.limits.items():
        if fleet.engines[name].ready:
            fleet.set_limit(name, tokens)
