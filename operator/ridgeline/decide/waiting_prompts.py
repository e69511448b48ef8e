"""The token budget while prompts wait: decided by what the engines hold now, for forecasts come too late.

When a load turns, the window of the rules pairs the arrivals of now with the lengths of before, and no forecast is right
until it has passed. Meanwhile prompts queue, the more so the smaller the token budget is: decodes take their part of it
first. Who comes then waits behind all who came before, for minutes. The engines' own counts tell within one pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from ridgeline.api.fleet import Action
from ridgeline.decide import reasons
from ridgeline.decide.candidates import budgets
from ridgeline.decide.guards import tuned_lately
from ridgeline.decide.plan import Plan
from ridgeline.decide.question import Question
from ridgeline.decide.whatif import Load, mean_context, mean_depth, mean_length
from ridgeline.decide.wording import duration

WAIT_SHARE = 0.5
"""Part of the objective for first tokens that the prompts of now may wait before there is something to do."""
LEFT_SHARE = 0.8
"""Part of the wait that may be left with another budget: for less, budgets would go to and fro with the forecasts."""


def budget_for_waiting_prompts(question: Question, load: Load) -> Plan | None:
    """The largest budget whose full step keeps the objective between tokens, where today's lets prompts wait too long.

    Where the larger steps would be too long, decodes would pay for the prompts: that is a matter for the forecasts.
    """
    today, last = question.today, question.status.lastDecision
    if last is not None and last.reason == reasons.PROMPTS_WAIT and tuned_lately(question):
        return None  # it was done, and shows soon; or an engine does not follow
    if question.split or today.tokenBudget is None or today.tokenBudget >= question.maximum_tokens:
        return None
    waiting = _mean(engine.waiting_requests for engine in question.snapshot.serving)
    decodes = _mean(engine.decodes for engine in question.snapshot.serving)
    if not waiting or decodes is None:
        return None
    steps, prompts = load.steps, waiting * mean_length(load.prompts)
    growth = steps.seconds_per_decode_sequence + steps.seconds_per_kv_token * mean_context(load.prompts, load.outputs)

    def full_step(budget: int) -> float:
        chunk = max(0.0, budget - decodes)
        prefill = steps.prefill_seconds(chunk, depth=max(0.0, mean_depth(load.prompts) - chunk / 2.0))
        return steps.fixed_seconds + decodes * growth + prefill

    def wait(budget: int) -> float:
        return prompts / max(1.0, budget - decodes) * full_step(budget)

    now, longest_step = wait(today.tokenBudget), load.inter_token_objective_seconds
    if now <= WAIT_SHARE * load.first_token_objective_seconds:
        return None
    larger = [budget for budget in budgets(question) if budget > today.tokenBudget]
    budget = next((budget for budget in larger if full_step(budget) <= longest_step), None)
    if budget is None or wait(budget) > LEFT_SHARE * now:
        return None
    message = (
        f"Tune token budget {today.tokenBudget} → {budget}: {waiting:.0f} prompts wait at each engine, {duration(now)} of "
        f"work (objective {duration(load.first_token_objective_seconds)}) and {duration(wait(budget))} with the larger "
        f"budget, whose full steps take {duration(full_step(budget))} (objective {duration(longest_step)})"
    )
    return Plan(Action.TUNE, reasons.PROMPTS_WAIT, message, today.model_copy(update={"tokenBudget": budget}))


def _mean(counts: Iterable[int | None]) -> float | None:
    """Of what the engines tell; None where one does not."""
    known = list(counts)
    told = [count for count in known if count is not None]
    return fmean(told) if told and len(told) == len(known) else None
