"""Token budgets that the engines should have in force, by role."""

from __future__ import annotations

from ridgeline.api.fleet import Objectives, Role, TopologyStatus
from ridgeline.decide.observed import decodes_held
from ridgeline.decide.snapshot import EngineState, Signals, Snapshot
from ridgeline.decide.step_times import step_times
from ridgeline.decide.whatif import mean_context

DECODE_BUDGET_TOKENS = 256
"""Least budget of a decode engine: prefills there are the exception (a failed transfer), and must not stall decodes."""
FULL_SHARE = 0.95
"""Share of the inter-token objective that decode steps may take before prefill engines slow down."""


def limit_for(engine: EngineState, token_budget: int | None, decodes_full: bool = False) -> int | None:
    """Budget that an engine of this role should have; None when there is nothing to ask of it.

    Prefill engines get all they can take, once fewer requests decode there, from when they were mixed, than prompts
    wait: a full step of prefill makes the gaps of the ones late, small steps the first tokens of the others. While the
    decode engines are full they get the budget of mixed engines, with which they prefill more slowly: a queue makes the
    first tokens of some late, too many decodes side by side every token of all. Decode engines get twice the sequences
    they hold, in powers of two, so that every sequence advances in each step and little prefill fits beside; but all
    they can take while most of what they hold are prompts, from when they were mixed, behind which KV waits. Mixed
    engines get the fleet's budget.
    """
    if engine.maximum_tokens is None:
        return None
    if engine.role is Role.PREFILL:
        if decodes_full and token_budget is not None:
            return min(engine.maximum_tokens, token_budget)
        spared = (engine.decoding_requests or 0) > (engine.waiting_requests or 0)
        return engine.limit_tokens if spared else engine.maximum_tokens
    if engine.role is Role.DECODE:
        if 2 * (engine.waiting_requests or 0) > (engine.running_requests or 0):
            return engine.maximum_tokens
        room = DECODE_BUDGET_TOKENS
        while room < 2 * (engine.running_requests or 0):
            room *= 2
        return min(engine.maximum_tokens, room)
    return None if token_budget is None else min(engine.maximum_tokens, token_budget)


def limits_to_set(snapshot: Snapshot, topology: TopologyStatus | None, objectives: Objectives) -> dict[str, int]:
    """Pod → budget for every engine that has another one in force, by today's labels.

    Level-triggered: `topology` carries the budget of mixed engines (a plan's target, or the recorded status), and an
    engine that was restarted with its start-up budget is brought back by the same call.
    """
    budget = topology.tokenBudget if topology else None
    full = decodes_full(snapshot, objectives)
    wanted = {}
    for engine in snapshot.serving:
        limit = limit_for(engine, budget, full)
        if limit is not None and engine.limit_tokens is not None and engine.limit_tokens != limit:
            wanted[engine.pod] = limit
    return wanted


def decodes_full(snapshot: Snapshot, objectives: Objectives) -> bool:
    """Whether decode engines decode more requests, on average, than a step within the objective has room for."""
    batch, signals = decodes_held(snapshot), snapshot.signals
    if batch is None or not isinstance(signals, Signals) or not signals.prompt_tokens or not signals.output_tokens:
        return False
    context = mean_context(signals.prompt_tokens, signals.output_tokens)
    steps = step_times(signals, context_tokens=context)
    if steps is None:
        return False
    step = steps.fixed_seconds + steps.growth_seconds(context) * batch
    return step > FULL_SHARE * objectives.interTokenLatencyMilliseconds / 1000.0
