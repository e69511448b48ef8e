"""Which engine changes its role next, so that every worker table on the way serves.

A table serves when it has a mixed engine, or a prefill and a decode engine: a router answers 503 when one
role is left without its partner and without a mixed engine. Labels are written one by one and routers see them
one by one, so a batch must be safe in any order, also half done. That holds when

    (a) the engines that the batch leaves alone serve by themselves, or
    (b) the batch is one engine, and the table serves after it.

Everything is counted, nothing is named: a pod that vanishes half-way is just one engine fewer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ridgeline.api.fleet import Mode, Role, TopologyStatus
from ridgeline.decide.snapshot import EngineState

Counts = Mapping[Role, int]


def counts(roles: Iterable[Role]) -> dict[Role, int]:
    """How many engines have each role."""
    found = dict.fromkeys(Role, 0)
    for role in roles:
        found[role] += 1
    return found


def serves(roles: Iterable[Role]) -> bool:
    """Whether a worker table with these roles can answer requests."""
    found = counts(roles)
    return found[Role.MIXED] > 0 or (found[Role.PREFILL] > 0 and found[Role.DECODE] > 0)


def scaled_split(prefill: int, decode: int, engines: int) -> tuple[int, int]:
    """The split of `engines` nearest in proportion to prefill:decode, with at least one engine a side.

    Raises:
        ValueError: fewer than two engines cannot be split.
    """
    if engines < 2:
        raise ValueError("a split needs two engines")
    share = prefill / max(1, prefill + decode)
    wanted = min(engines - 1, max(1, round(engines * share)))
    return wanted, engines - wanted


def wanted_counts(target: TopologyStatus, engines: int) -> dict[Role, int] | None:
    """Roles for so many serving engines: `target` itself, or what it comes to with more or fewer of them.

    More engines than the target names stay mixed; with fewer, the split shrinks in proportion. None when a split
    is wanted and fewer than two engines are left.
    """
    if target.mode is Mode.MIXED:
        return {Role.MIXED: engines, Role.PREFILL: 0, Role.DECODE: 0}
    if engines < 2:
        return None
    prefill, decode = target.prefill, target.decode
    if prefill < 1 or decode < 1 or prefill + decode > engines:
        prefill, decode = scaled_split(prefill, decode, engines)
    return {Role.MIXED: engines - prefill - decode, Role.PREFILL: prefill, Role.DECODE: decode}


def changes(engines: Sequence[EngineState], wanted: Counts) -> list[tuple[EngineState, Role]]:
    """Every change that leads from today's roles to the wanted counts, in the order to make them.

    The role that has the least of what it wants comes first (prefill before decode before mixed), so that pairs form
    early. It takes the least busy engine of a role that has too many (one that is not ready has no work, one that does
    not tell counts as busy), so that as little work as possible is left behind on an engine that no longer fits it.
    """
    have = counts(e.role for e in engines)
    free = sorted(engines, key=_busyness)
    made: list[tuple[EngineState, Role]] = []
    while lacking := [role for role in _ORDER if have[role] < wanted[role]]:
        role = min(lacking, key=lambda r: have[r] / wanted[r])
        donor = next((e for e in free if have[e.role] > wanted[e.role]), None)
        if donor is None:
            break
        free.remove(donor)
        have[donor.role] -= 1
        have[role] += 1
        made.append((donor, role))
    return made


_ORDER = (Role.PREFILL, Role.DECODE, Role.MIXED)


def _busyness(engine: EngineState) -> tuple[float, str]:
    running = engine.running_requests if engine.ready else 0
    return (float("inf") if running is None else running, engine.pod)


def next_batch(engines: Sequence[EngineState], wanted: Counts, at_once: int) -> dict[str, Role]:
    """The roles to write now: at most `at_once` of them, safe in any order; empty when nothing is left to do.

    Only ready engines count as serving; the others may be given any role, since one that becomes ready meanwhile only
    adds to a table. A table that serves is never given up: then nothing safe means nothing at all, until an engine
    becomes ready. A table that does not serve has nothing to lose: one change is made all the same.
    """
    todo = changes(engines, wanted)
    if not todo:
        return {}
    batch: dict[str, Role] = {}
    for engine, role in todo:
        if len(batch) >= at_once:
            break
        if serves(e.role for e in engines if e.ready and e.pod not in batch and e.pod != engine.pod):
            batch[engine.pod] = role
    if batch:
        return batch
    for engine, role in todo:
        if serves(role if e.pod == engine.pod else e.role for e in engines if e.ready):
            return {engine.pod: role}
    if serves(e.role for e in engines if e.ready):
        return {}
    engine, role = todo[0]
    return {engine.pod: role}
