"""Token budgets that the engines should have in force, by role."""

from __future__ import annotations

from ridgeline.api.fleet import Role, TopologyStatus
from ridgeline.decide.snapshot import EngineState, Snapshot

DECODE_BUDGET_TOKENS = 256
"""Least budget of a decode engine: prefills there are the exception (a failed transfer), and must not stall decodes."""


def limit_for(engine: EngineState, token_budget: int | None) -> int | None:
    """Budget that an engine of this role should have; None when there is nothing to ask of it.

    Prefill engines get all they can take, once fewer requests decode there, from when they were mixed, than prompts
    wait: a full step of prefill makes the gaps of the ones late, small steps the first tokens of the others. Decode engines get twice the sequences they hold, in powers of two, so that
    every sequence advances in each step and little prefill fits beside. Mixed engines get the fleet's budget.
    """
    if engine.maximum_tokens is None:
        return None
    if engine.role is Role.PREFILL:
        spared = (engine.decoding_requests or 0) > (engine.waiting_requests or 0)
        return engine.limit_tokens if spared else engine.maximum_tokens
    if engine.role is Role.DECODE:
        room = DECODE_BUDGET_TOKENS
        while room < 2 * (engine.running_requests or 0):
            room *= 2
        return min(engine.maximum_tokens, room)
    return None if token_budget is None else min(engine.maximum_tokens, token_budget)


def limits_to_set(snapshot: Snapshot, topology: TopologyStatus | None) -> dict[str, int]:
    """Pod → budget for every engine that has another one in force, by today's labels.

    Level-triggered: `topology` carries the budget of mixed engines (a plan's target, or the recorded status), and an
    engine that was restarted with its start-up budget is brought back by the same call.
    """
    budget = topology.tokenBudget if topology else None
    wanted = {}
    for engine in snapshot.serving:
        limit = limit_for(engine, budget)
        if limit is not None and engine.limit_tokens is not None and engine.limit_tokens != limit:
            wanted[engine.pod] = limit
    return wanted
