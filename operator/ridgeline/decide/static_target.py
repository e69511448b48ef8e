"""What `policy: Static` asks for."""

from __future__ import annotations

from ridgeline.api.fleet import FleetSpec, Mode, TopologyStatus


def static_target(spec: FleetSpec, engines: int, token_budget: int | None) -> TopologyStatus:
    """The topology that the spec's `prefillReplicas` makes of so many engines; mixed when they cannot be split so."""
    prefill = spec.topology.prefillReplicas or 0
    if prefill == 0 or engines <= prefill:
        return TopologyStatus(mode=Mode.MIXED, mixed=engines, prefill=0, decode=0, tokenBudget=token_budget)
    return TopologyStatus(mode=Mode.SPLIT, mixed=0, prefill=prefill, decode=engines - prefill, tokenBudget=token_budget)


def is_static_target(topology: TopologyStatus, spec: FleetSpec, engines: int) -> bool:
    """Whether a topology is the one that the spec asks for, whatever its token budget."""
    target = static_target(spec, engines, None)
    same = (topology.mode, topology.prefill, topology.decode) == (target.mode, target.prefill, target.decode)
    return same and topology.mixed == target.mixed
