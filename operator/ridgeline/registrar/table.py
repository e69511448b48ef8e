"""The worker table as it should be, as it is, and the operations between the two. Pure.

A router serves while it has a mixed engine, or a prefill and a decode engine: with one of a pair alone it
answers 503 to everything. Roles are set one worker at a time, so the order of operations matters:

* engines are added first;
* roles change next, always one that leaves a table that serves;
* where there is none (the two engines of a 1P:1D fleet trade places), one of the engines that change is mixed
  on the way: P D -> M D -> M P -> D P;
* engines are removed when the rest serves.

If the table serves before and will serve after, it serves at every step in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from ridgeline.api.fleet import Role


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that should be in the table."""

    pod: str
    url: str
    role: Role


class State(StrEnum):
    """What the router makes of a worker."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    DRAINING = "draining"
    """Removed, but listed until the router has let go of it; cannot be added again before."""


@dataclass(frozen=True, slots=True)
class Worker:
    """An entry of the router's table."""

    id: str
    url: str
    role: Role | None
    """None for a kind of worker that Ridgeline does not use."""
    state: State
    pod: str = ""
    """Engine pod that the entry was made for; empty for an entry made by someone else."""


@dataclass(frozen=True, slots=True)
class Add:
    """Put an engine into the table."""

    engine: Engine


@dataclass(frozen=True, slots=True)
class Update:
    """Make an entry say what the engine is now: its role, or the pod behind its address."""

    worker: Worker
    engine: Engine

    @property
    def changes_role(self) -> bool:
        """Whether the entry's role changes."""
        return self.worker.role is not self.engine.role


@dataclass(frozen=True, slots=True)
class Remove:
    """Take an entry out of the table."""

    worker: Worker


Operation = Add | Update | Remove
Desired = Mapping[str, Engine]
"""URL → engine."""


def serves(roles: Iterable[Role | None]) -> bool:
    """Whether a router with these healthy workers can answer a request."""
    present = set(roles)
    return Role.MIXED in present or {Role.PREFILL, Role.DECODE} <= present


def operations(desired: Desired, table: Iterable[Worker]) -> list[Operation]:
    """What turns the table into the desired one, in an order that keeps it serving.

    Args:
        desired: engines that should take requests.
        table: what the router lists.
    """
    listed = {worker.url: worker for worker in table}
    added = [Add(engine) for url, engine in sorted(desired.items()) if url not in listed]
    pending: list[Update | Remove] = []
    for url, worker in sorted(listed.items()):
        if worker.state is State.DRAINING:
            continue
        if url not in desired:
            pending.append(Remove(worker))
        elif (worker.role, worker.pod) != (desired[url].role, desired[url].pod):
            pending.append(Update(worker, desired[url]))
    roles = {worker.url: worker.role for worker in listed.values() if worker.state is State.HEALTHY}
    roles |= {operation.engine.url: operation.engine.role for operation in added}
    return [*added, *_ordered(pending, roles)]


def differences(desired: Desired, table: Iterable[Worker]) -> list[str]:
    """One phrase per engine whose entry is not as it should be; empty when the table is right."""
    listed = {worker.url: worker for worker in table}
    found = []
    for url, engine in sorted(desired.items()):
        worker = listed.get(url)
        if worker is None:
            found.append(f"{engine.pod} is not in the table yet")
        elif worker.state is not State.HEALTHY:
            found.append(f"{engine.pod} is {worker.state}")
        elif (worker.role, worker.pod) != (engine.role, engine.pod):
            found.append(f"{engine.pod} is {worker.role or 'of another kind'} instead of {engine.role}")
    found += [
        f"{worker.pod or url} is still in the table"
        for url, worker in sorted(listed.items())
        if url not in desired and worker.state is not State.DRAINING
    ]
    return found


def _ordered(pending: list[Update | Remove], roles: dict[str, Role | None]) -> list[Update | Remove]:
    """Order changes so that no step between two serving tables fails to serve; `roles` holds healthy workers."""
    remaining = sorted(pending, key=_preference)
    end = roles
    for operation in remaining:
        end = _after(operation, end)
    ordered: list[Update | Remove] = []
    while remaining:
        chosen = next((o for o in remaining if serves(_after(o, roles).values())), None)
        if chosen is None and serves(roles.values()) and serves(end.values()):
            detour = _mixed_on_the_way(remaining, roles)
            ordered.append(detour)
            roles = _after(detour, roles)
            remaining = [_from(detour, o) for o in remaining]
            continue
        chosen = chosen or remaining[0]
        ordered.append(chosen)
        roles = _after(chosen, roles)
        remaining.remove(chosen)
    return ordered


def _preference(operation: Update | Remove) -> int:
    """Mixed first, since a mixed engine serves alone; removals last."""
    if isinstance(operation, Remove):
        return 2
    return 0 if operation.engine.role is Role.MIXED else 1


def _after(operation: Update | Remove, roles: dict[str, Role | None]) -> dict[str, Role | None]:
    """Healthy roles after an operation: a worker that is not healthy serves under no role."""
    url = operation.worker.url
    if url not in roles:
        return roles
    if isinstance(operation, Remove):
        return {other: role for other, role in roles.items() if other != url}
    return {**roles, url: operation.engine.role}


def _mixed_on_the_way(remaining: list[Update | Remove], roles: dict[str, Role | None]) -> Update:
    """The detour. There is a healthy update to take it: were all remaining removals, the end would serve all along."""
    update = next(o for o in remaining if isinstance(o, Update) and o.worker.url in roles)
    return Update(update.worker, replace(update.engine, role=Role.MIXED))


def _from(detour: Update, operation: Update | Remove) -> Update | Remove:
    """The same operation, seen from the table after the detour."""
    if isinstance(operation, Update) and operation.worker.url == detour.worker.url:
        return Update(replace(operation.worker, role=Role.MIXED), operation.engine)
    return operation
