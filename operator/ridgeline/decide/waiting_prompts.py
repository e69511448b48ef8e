"""The token budget while prompts wait: decided by what the engines hold now, for forecasts come too late.

When a load turns, the window of the rules pairs the arrivals of now with the lengths of before, and no forecast is right
until it has passed. Meanwhile prompts queue, the more so the smaller the token budget is: decodes take their part of it
first. Who comes then waits behind all who came before, for minutes. The engines' own counts tell within one pass.
"""

from __future__ import annotations

from math import inf, isfinite
from statistics import fmean

from ridgeline.api.fleet import Action
from ridgeline.decide import reasons
from ridgeline.decide.candidates import budgets
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

    Where the larger steps would be too long, decodes would pay for the prompts: that is a matter for the forecasts. Once
    in a window of the rules: what was done shows soon. Not while an engine does not follow the last order.
    """
    serving, today = question.snapshot.serving, question.today
    if question.split or today.tokenBudget is None or question.prompts_waited_lately:
        return None
    if len({engine.limit_tokens for engine in serving}) > 1:
        return None
    waiting = [engine.waiting_requests for engine in serving if engine.waiting_requests is not None]
    decoding = [engine.decoding_requests for engine in serving if engine.decoding_requests is not None]
    if not any(waiting) or not len(waiting) == len(decoding) == len(serving):
        return None
    steps, waits, decodes = load.steps, fmean(waiting), max(decoding)
    tokens, depth = waits * mean_length(load.prompts), mean_depth(load.prompts)
    context = mean_context(load.prompts, load.outputs)
    if load.kv_capacity_tokens and decodes * context > load.kv_capacity_tokens:
        return None  # they wait for room in the cache, which no budget makes

    def full_step(budget: int) -> float:
        chunk = max(0, budget - decodes)
        prefill = steps.prefill_seconds(chunk, max(0.0, depth - chunk / 2.0))
        return steps.fixed_seconds + decodes * steps.growth_seconds(context) + prefill

    def wait(budget: int) -> float:
        return tokens / (budget - decodes) * full_step(budget) if budget > decodes else inf

    now, longest_step = wait(today.tokenBudget), load.inter_token_objective_seconds
    if now <= WAIT_SHARE * load.first_token_objective_seconds:
        return None
    budget = next((budget for budget in budgets(question) if full_step(budget) <= longest_step), today.tokenBudget)
    left = wait(budget)
    if budget <= today.tokenBudget or not isfinite(left) or left > LEFT_SHARE * now:
        return None
    work = f"{duration(now)} of work" if isfinite(now) else f"no room for them beside {decodes} decodes"
    message = (
        f"Tune token budget {today.tokenBudget} → {budget}: {waits:.1f} prompts wait at an engine on average, {work} "
        f"(objective {duration(load.first_token_objective_seconds)}); {duration(left)} with the larger budget, "
        f"whose full steps take {duration(full_step(budget))} (objective {duration(longest_step)})"
    )
    return Plan(Action.TUNE, reasons.PROMPTS_WAIT, message, today.model_copy(update={"tokenBudget": budget}))
