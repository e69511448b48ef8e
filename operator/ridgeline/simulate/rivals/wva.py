"""llm-d's Workload Variant Autoscaler: thresholds on KV cache and queues, for each pool.

Rule (`llm-d/llm-d-workload-variant-autoscaler`, docs/saturation-analyzer.md): a replica is saturated at KV use >= 0.80
or 5 waiting requests, by the peaks of the last minute. Over the others, with spare = threshold - use: one replica more
if the mean spare KV is below 0.10 or the mean spare queue below 3; one less if there are two of them at least and,
with their load on one replica fewer, both means would still be at the triggers. A look every 30 s; none while a pod
is pending.

Adapted to a fixed number of engines: the rule knows no roles, so each pool is a variant of its own, and an engine
moves when one pool asks for more and the other can do with less. A pool of saturated replicas only asks for more.
The pod that moves starts anew (`START_UP_SECONDS`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from ridgeline.api.fleet import Role
from ridgeline.decide.snapshot import Snapshot
from ridgeline.simulate.controller import Orders
from ridgeline.simulate.fleet import Fleet
from ridgeline.simulate.rivals.rival import PoolScaler, pool, under_way
from ridgeline.simulate.rivals.sight import Sight
from ridgeline.simulate.traces import Arrival

KV_CACHE_THRESHOLD = 0.80
QUEUE_LENGTH_THRESHOLD = 5
KV_SPARE_TRIGGER = 0.10
QUEUE_SPARE_TRIGGER = 3
INTERVAL_SECONDS = 30.0
PEAK_SECONDS = 60.0


class Wish(Enum):
    """What a pool would do with its number of replicas."""

    MORE = 1
    SAME = 0
    FEWER = -1


def wish(replicas: Sequence[tuple[float, int]]) -> Wish:
    """The rule for one pool.

    Args:
        replicas: KV use and waiting requests of each.
    """
    calm = [(kv, queue) for kv, queue in replicas if kv < KV_CACHE_THRESHOLD and queue < QUEUE_LENGTH_THRESHOLD]
    if not calm:
        return Wish.MORE
    kv, queue = sum(kv for kv, _ in calm), sum(queue for _, queue in calm)
    if not _spare(kv, queue, len(calm)):
        return Wish.MORE
    return Wish.FEWER if len(calm) >= 2 and _spare(kv, queue, len(calm) - 1) else Wish.SAME


def _spare(kv: float, queue: int, replicas: int) -> bool:
    return (
        KV_CACHE_THRESHOLD - kv / replicas >= KV_SPARE_TRIGGER
        and QUEUE_LENGTH_THRESHOLD - queue / replicas >= QUEUE_SPARE_TRIGGER
    )


class Wva(PoolScaler):
    """Moves an engine when one pool is nearly saturated and the other is not."""

    def __init__(self) -> None:
        super().__init__("WVA", INTERVAL_SECONDS)
        self._sight: Sight | None = None

    def attend(self, fleet: Fleet, arrivals: Iterable[Arrival]) -> Iterable[Arrival]:
        """Scrape the fleet."""
        self._sight = Sight(fleet, PEAK_SECONDS)
        return arrivals

    def decide(self, now: float, snapshot: Snapshot) -> Orders:
        """One look."""
        assert self._sight is not None
        if under_way(snapshot):
            return self.hold()
        peaks: dict[str, tuple[float, int]] = {}
        for sample in self._sight.window(now, PEAK_SECONDS):
            for name, engine in sample.engines.items():
                kv, queue = peaks.get(name, (0.0, 0))
                peaks[name] = max(kv, engine.kv_use), max(queue, engine.waiting)
        wishes = {}
        for role in (Role.PREFILL, Role.DECODE):
            seen = [peaks[e.pod] for e in pool(snapshot, role) if e.pod in peaks]
            wishes[role] = wish(seen) if seen else Wish.SAME
        for to, source in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
            if wishes[to] is Wish.MORE and wishes[source] is Wish.FEWER:
                return self.move(now, snapshot, 1, to, f"{to} nearly saturated, {source} with spare replicas")
        return self.hold()
