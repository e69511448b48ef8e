"""What rival policies share: an even split to begin with, a router of their own if they bring one, and moved engines.

The published autoscalers add and remove pods; here the number of engines is fixed. An engine that changes its pool
works off what it has, stops, and another starts in its place: that takes as long as a pod of vLLM takes to start.
"""

from __future__ import annotations

from collections.abc import Iterable

from ridgeline.api.fleet import Role
from ridgeline.decide.snapshot import EngineState, Snapshot
from ridgeline.simulate.controller import Event, Orders
from ridgeline.simulate.fleet import Fleet
from ridgeline.simulate.router import Router, least_load
from ridgeline.simulate.traces import Arrival

START_UP_SECONDS = 240.0
"""From a stopped pod to one that serves: the mean of `inference-sim/inference-sim`; llm-d's autoscaler says 2 to 7 min."""


class Rival:
    """A policy that is not ours; without changes, an even split that is left alone.

    Args:
        name: for tables and reports.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.events: list[Event] = []
        """What was done, in order."""

    def router(self) -> Router:
        """The router in front of the fleet."""
        return least_load()

    def attend(self, fleet: Fleet, arrivals: Iterable[Arrival]) -> Iterable[Arrival]:
        """Meet the fleet before its first request.

        Returns:
            The trace to play: the same.
        """
        return arrivals

    def begin(self, engines: tuple[str, ...]) -> Orders:
        """Half of the engines prefill, the others (of an odd number, one more) decode.

        Raises:
            ValueError: a single engine cannot be split.
        """
        if len(engines) < 2:
            raise ValueError("a split needs two engines")
        return Orders({name: Role.PREFILL if i < len(engines) // 2 else Role.DECODE for i, name in enumerate(engines)})

    def decide(self, now: float, snapshot: Snapshot) -> Orders:
        """Nothing."""
        return Orders()


class PoolScaler(Rival):
    """A rival that moves whole pods between a prefill and a decode pool.

    Args:
        name: for tables and reports.
        interval_seconds: between two looks.
        start_up_seconds: of a pod.
    """

    def __init__(self, name: str, interval_seconds: float, start_up_seconds: float = START_UP_SECONDS) -> None:
        super().__init__(name)
        self.interval_seconds = interval_seconds
        self.start_up_seconds = start_up_seconds

    def hold(self) -> Orders:
        """Nothing until the next look."""
        return Orders(again_seconds=self.interval_seconds)

    def move(self, now: float, snapshot: Snapshot, count: int, to: Role, why: str) -> Orders:
        """Restart so many engines of the other pool in this one, the least busy first; the other keeps at least one."""
        source = Role.DECODE if to is Role.PREFILL else Role.PREFILL
        donors = sorted(pool(snapshot, source), key=lambda e: (e.running_requests or 0, e.pod))
        donors = donors[: min(count, len(donors) - 1)]
        if not donors:
            return self.hold()
        self.events.append(Event(now, "Rebalance", self.name, f"{len(donors)} {source} → {to}: {why}"))
        return Orders(dict.fromkeys((e.pod for e in donors), to), {}, self.interval_seconds, self.start_up_seconds)


def pool(snapshot: Snapshot, role: Role) -> list[EngineState]:
    """Engines of a role that serve."""
    return [engine for engine in snapshot.serving if engine.role is role]


def under_way(snapshot: Snapshot) -> bool:
    """Whether a pod is about to stop or to start."""
    return len(snapshot.serving) < len(snapshot.engines)
