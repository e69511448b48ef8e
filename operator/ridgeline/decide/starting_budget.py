"""The token budget of a fleet's first minute.

vLLM starts with a budget that suits throughput: on a large model one full step of prefill takes many times what the
objective allows between two tokens. Until requests have ended there is nothing to weigh, but the roofline tells how
long a full step takes, and that is enough not to begin with misses.

Small steps prefill more slowly, so that prompts may queue. A split works the queue off, unless the load takes all that
it can do: then whoever comes later waits behind those who came first, for as long as the load lasts. Where such a split
is wanted, engines get their own budget back until it begins: gaps are late meanwhile, and fewer prompts wait.
"""

from __future__ import annotations

from ridgeline.api.fleet import Action, Policy
from ridgeline.decide import reasons
from ridgeline.decide.candidates import Assessment, budgets
from ridgeline.decide.guards import STRICT_RESTS, first, tuned_lately
from ridgeline.decide.plan import Plan
from ridgeline.decide.question import Question
from ridgeline.decide.step_times import step_times
from ridgeline.decide.wording import duration, topology_text

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
    ladder = list(budgets(question))
    budget = next((b for b in ladder if full_step(b) <= PREFILL_SHARE * objective), ladder[-1])
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


def given_back(question: Question, wanted: Plan, scores: Assessment) -> Plan | None:
    """The engines' own budget, while a split is waited for that gains much and could not work off a queue.

    Once, in the window after the starting budget: later there are long answers under way, whose late gaps cost more. Not
    while a rest puts the split off, for nobody knows how long.
    """
    last, today = question.status.lastDecision, question.today
    if last is None or last.reason != reasons.STARTING_BUDGET or not tuned_lately(question):
        return None
    if today.tokenBudget is None or today.tokenBudget >= question.maximum_tokens or first(STRICT_RESTS, question):
        return None
    split = scores.split_with(wanted.target.prefill)
    if split is None or not wanted.is_clear or scores.strain(split) < 1.0:
        return None
    message = (
        f"Tune token budget {today.tokenBudget} → {question.maximum_tokens} until {topology_text(split.topology)}, which "
        f"seems to be asked for {scores.strain(split):.2f} times what it can do, and would not work off the prompts that "
        "wait when it begins"
    )
    target = today.model_copy(update={"tokenBudget": question.maximum_tokens})
    return Plan(Action.TUNE, wanted.reason, message, target)
