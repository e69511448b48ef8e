"""The token budget of engines that nobody has seen at work yet.

vLLM starts with a budget that suits throughput: on a large model one full step of prefill takes many times what the
objective allows between two tokens. Until requests have ended there is nothing to weigh, but the roofline tells how
long a full step takes, and that is enough not to begin with misses.
"""

from __future__ import annotations

from ridgeline.api.fleet import Action, Policy
from ridgeline.decide import reasons
from ridgeline.decide.candidates import mixed_at_each_budget
from ridgeline.decide.plan import Plan
from ridgeline.decide.question import Question
from ridgeline.decide.step_times import step_times
from ridgeline.decide.wording import duration

PREFILL_SHARE = 0.8
"""Part of the objective that a full step without decodes may take: the rest is theirs."""


def starting_budget(question: Question) -> Plan | None:
    """The largest budget whose full step keeps the objective, before any request has ended."""
    signals, last = question.signals, question.status.lastDecision
    begun = last is not None and last.action is not Action.HOLD
    if signals is None or signals.output_tokens or signals.measured_steps or begun or question.split:
        return None
    if question.spec.topology.policy is not Policy.AUTO or question.today.tokenBudget is None:
        return None
    steps = step_times(signals)
    if steps is None:
        return None

    def full_step(budget: int) -> float:
        return steps.fixed_seconds + steps.prefill_seconds(budget)

    objective = question.spec.objectives.interTokenLatencyMilliseconds / 1000.0
    budgets = [topology.tokenBudget or 0 for topology in mixed_at_each_budget(question)]
    budget = next((b for b in budgets if full_step(b) <= PREFILL_SHARE * objective), budgets[-1])
    if budget >= question.budget:
        return None
    message = (
        f"Tune token budget {question.budget} → {budget}: no request has ended yet; a full step of {question.budget} "
        f"tokens would take {duration(full_step(question.budget))} by the roofline, one of {budget} "
        f"{duration(full_step(budget))} (objective {duration(objective)})"
    )
    return Plan(
        Action.TUNE, reasons.STARTING_BUDGET, message, question.today.model_copy(update={"tokenBudget": budget})
    )
