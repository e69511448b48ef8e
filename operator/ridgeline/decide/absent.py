"""Engines that have been away for so long that nothing waits for them any more.

An engine that dies and comes back at once, or a fleet that starts, is worth waiting for: for a moment the fleet is not
what it is planned for. An engine that stays away leaves a fleet that has to serve without it, divided as it was for one
engine more. Reloading a large model takes minutes, a change of roles a second.
"""

from __future__ import annotations

from dataclasses import replace

from ridgeline.api.fleet import FleetSpec, Mode, Policy, Role
from ridgeline.decide.snapshot import EngineState, Snapshot

PATIENCE_SECONDS = 30.0
"""Longer than a readiness probe fails for a hiccup, shorter than any engine restarts."""


def absent(snapshot: Snapshot, spec: FleetSpec, now: float) -> tuple[EngineState, ...]:
    """Engines that count no longer; none where the policy may not change roles, or fewer than two serve, or half of all.

    A fleet of which half is away is one that starts: it is worth waiting for.
    """
    serving = len(snapshot.serving)
    if spec.topology.policy is not Policy.AUTO or serving < 2 or 2 * serving <= len(snapshot.live):
        return ()
    return tuple(
        engine
        for engine in snapshot.live
        if not engine.ready and engine.unready_since is not None and now - engine.unready_since >= PATIENCE_SECONDS
    )


def without(snapshot: Snapshot, engines: tuple[EngineState, ...]) -> Snapshot:
    """The fleet as if these were not there."""
    if not engines:
        return snapshot
    return replace(snapshot, engines=tuple(e for e in snapshot.engines if e not in engines), away=engines)


def labels_of_absent(engines: tuple[EngineState, ...], present: Snapshot) -> dict[str, Role]:
    """Labels to write on absent engines: beside mixed engines one with another role would come back without a partner."""
    if present.topology.mode is not Mode.MIXED:
        return {}
    return {engine.pod: Role.MIXED for engine in engines if engine.role is not Role.MIXED}
