"""Levers: what to do about it, the cheapest first, read top to bottom; the first that helps is pulled.

Tune       the token budget of mixed engines: live, at once, nothing moves
Rebalance  one engine between the pools of a split
Split      only when the best split beats the best-tuned mixed fleet by more than the tolerance
Merge      when mixed engines at their best budget meet the objectives with margin, or beat every split
"""

from __future__ import annotations

from collections.abc import Callable

from ridgeline.api.fleet import Action, Mode
from ridgeline.decide import reasons
from ridgeline.decide.candidates import Assessment, Candidate
from ridgeline.decide.evidence import explain
from ridgeline.decide.plan import Plan
from ridgeline.decide.question import Question
from ridgeline.decide.triggers import Trigger

TUNE_GAIN = 0.01
"""Points of requests met that another budget must bring: budgets halve, so a smaller gain is noise."""
REBALANCE_GAIN = 0.02
SMALL_MODEL_WEIGHT_BYTES = 32e9
"""A model that fits one GPU: its best token budget hides nearly all stalls, and the what-if model flatters splits."""
SMALL_MODEL_LEAN = 0.03
"""Extra points that a split must bring for a small model."""

Lever = Callable[[Question, Assessment, Trigger], Plan | None]


def tune(question: Question, scores: Assessment, trigger: Trigger) -> Plan | None:
    """Give mixed engines a better token budget, also on the way to a split that takes longer to agree on."""
    if question.split or question.today.tokenBudget is None:  # an engine that does not tell its budget takes none
        return None
    gain = scores.today.missed - scores.best_mixed.missed
    needed = question.spec.rules.tolerancePercent / 100.0 if _split_wins(question, scores) else TUNE_GAIN
    if scores.best_mixed.topology.tokenBudget == question.budget or gain <= max(needed, TUNE_GAIN):
        return None
    return _plan(question, Action.TUNE, scores.best_mixed, scores, trigger)


def rebalance(question: Question, scores: Assessment, trigger: Trigger) -> Plan | None:
    """Move one engine towards the best split; one at a time, so that each move can be judged."""
    best, today = scores.best_split, scores.today
    if not question.split or best is None or trigger.reason in (reasons.CALM, reasons.KV_TRANSFERS_FAIL):
        return None
    if today.missed - best.missed <= REBALANCE_GAIN or _mixed_wins(question, scores):
        return None
    way = (best.topology.prefill > question.today.prefill) - (best.topology.prefill < question.today.prefill)
    neighbour = scores.split_with(question.today.prefill + way)
    if way == 0 or neighbour is None or neighbour.missed > today.missed + TUNE_GAIN:
        return None
    return _plan(question, Action.REBALANCE, neighbour, scores, trigger)


def split(question: Question, scores: Assessment, trigger: Trigger) -> Plan | None:
    """Divide mixed engines into pools, when that beats any token budget clearly."""
    if question.split or scores.best_split is None or not _split_wins(question, scores):
        return None
    return _plan(question, Action.SPLIT, scores.best_split, scores, trigger)


def merge(question: Question, scores: Assessment, trigger: Trigger) -> Plan | None:
    """Make all engines mixed again, when they would do as well or the split does harm."""
    if not question.split:
        return None
    if trigger.reason not in (reasons.CALM, reasons.KV_TRANSFERS_FAIL) and not _mixed_wins(question, scores):
        return None
    return _plan(question, Action.MERGE, scores.best_mixed, scores, trigger)


LEVERS: tuple[Lever, ...] = (tune, rebalance, split, merge)


def _needed_gain(question: Question) -> float:
    weights = question.signals.weight_bytes if question.signals else None
    lean = SMALL_MODEL_LEAN if weights is not None and weights < SMALL_MODEL_WEIGHT_BYTES else 0.0
    return question.spec.rules.tolerancePercent / 100.0 + lean


def _split_wins(question: Question, scores: Assessment) -> bool:
    best = scores.best_split
    return best is not None and scores.best_mixed.missed - best.missed > _needed_gain(question)


def _mixed_wins(question: Question, scores: Assessment) -> bool:
    """Whether mixed engines beat the best split, and today's, by more than the tolerance."""
    splits = min(c.missed for c in (scores.today, scores.best_split or scores.today))
    return splits - scores.best_mixed.missed > question.spec.rules.tolerancePercent / 100.0


def _plan(question: Question, action: Action, chosen: Candidate, scores: Assessment, trigger: Trigger) -> Plan:
    target = chosen.topology
    if target.mode is Mode.SPLIT:  # kept for the way back to mixed engines
        target = target.model_copy(update={"tokenBudget": scores.best_mixed.topology.tokenBudget})
    return Plan(action, trigger.reason, explain(question, action, chosen, scores, trigger), target)
