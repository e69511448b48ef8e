"""`decide`: one pass over one fleet (placeholder for its first callers)."""

from __future__ import annotations

from ridgeline.api.fleet import FleetSpec, FleetStatus
from ridgeline.decide.plan import Decision, History
from ridgeline.decide.snapshot import Snapshot


def decide(snapshot: Snapshot, spec: FleetSpec, status: FleetStatus, history: History, now: float) -> Decision:
    """What to do for a fleet now: a plan, and "do nothing" is one."""
    raise NotImplementedError
