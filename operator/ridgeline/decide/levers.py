"""Levers: what to do about it, the cheapest first, read top to bottom; the first that helps is pulled.

Tune       the token budget of mixed engines: live, at once, nothing moves
Rebalance  one engine between the pools of a split; more at once only where the next split would not do
Split      only when the best split beats the best-tuned mixed fleet by more than the tolerance, or by half of it for
           minutes, and it alone meets the limit of misses
Merge      when mixed engines at their best budget meet the objectives with margin, beat every split, carry a load that
           has become another one, or when a split has collapsed

Candidates are compared by their scores: the load of now, and those of the last minutes (`scoreboard.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isinf

from ridgeline.api.fleet import Action, Mode
from ridgeline.decide import reasons
from ridgeline.decide.candidates import MIXED_COST, RELIEF_SHARE, Assessment, Candidate
from ridgeline.decide.evidence import explain
from ridgeline.decide.plan import CLEAR_GAIN, Plan
from ridgeline.decide.question import Question
from ridgeline.decide.scoreboard import CALM_WINDOWS
from ridgeline.decide.triggers import DECODE_BAND, PREFILL_BAND, Trigger
from ridgeline.decide.wording import topology_text

TUNE_GAIN = 0.01
"""Points of requests met that another budget must bring: budgets halve, so a smaller gain is noise."""
REBALANCE_GAIN = 0.02
ROLES_RELIEF = (RELIEF_SHARE, 1.5)
"""In an overload, the strain that another division of the engines may have to be worth a change: of today's, and at all."""
BUDGET_RELIEF = (0.8, 1.2)
"""The same of another token budget: one strains the gaps, the other the queue, so that their errors do not cancel."""
FAR_GAIN = 0.25
"""Where the next split would still miss so much more than the best one, engines are not moved one at a time."""
SMALL_MODEL_WEIGHT_BYTES = 32e9
"""A model that fits one GPU: its best token budget hides nearly all stalls, and the what-if model flatters splits."""
SMALL_MODEL_LEAN = 0.03
"""Extra points that a split must bring for a small model."""

WITHOUT_COMPARISON = frozenset({reasons.CALM, reasons.KV_TRANSFERS_FAIL, reasons.SPLIT_COLLAPSED})
"""Reasons to merge that do not ask which split the what-if model likes best."""

PRESSURES = frozenset({reasons.PREFILL_PRESSURE, reasons.DECODE_PRESSURE})
"""Reasons with which nothing is late yet."""

Lever = Callable[[Question, Assessment, Trigger], Plan | None]


def tune(question: Question, scores: Assessment, trigger: Trigger) -> Plan | None:
    """Give mixed engines a better token budget, unless a split is better still and may begin."""
    if question.split or question.today.tokenBudget is None:  # an engine that does not tell its budget takes none
        return None
    if _split_wins(question, scores) and not question.cooling_down:  # its misses would be those of two changes
        return None
    best = scores.best_budget
    if (best.topology.tokenBudget or 0) < question.budget and question.prompts_waited_lately:
        return None  # its misses would be, in part, those of the smaller one
    if best.topology.tokenBudget == question.budget or scores.today.budget_score - best.budget_score <= TUNE_GAIN:
        return None
    return _plan(question, Action.TUNE, best, scores, trigger)


def rebalance(question: Question, scores: Assessment, trigger: Trigger) -> Plan | None:
    """Move one engine towards the best split, so that each move can be judged; all of them where one is not enough."""
    best, today = scores.best_split, scores.today
    if not question.split or best is None or trigger.reason in (reasons.CALM, reasons.KV_TRANSFERS_FAIL):
        return None
    if today.score - best.score <= REBALANCE_GAIN or _mixed_wins(question, scores) or _far_off(question, scores):
        return None
    way = (best.topology.prefill > question.today.prefill) - (best.topology.prefill < question.today.prefill)
    neighbour = scores.split_with(question.today.prefill + way)
    if neighbour is not None and neighbour.missed - best.missed > FAR_GAIN:
        neighbour = best
    if way == 0 or neighbour is None or neighbour.score > today.score + TUNE_GAIN:
        return None
    if trigger.reason in PRESSURES and _pressure(neighbour) >= _pressure(today):
        return None  # nothing is late, and there would be less room
    if neighbour.forecast.missed > today.forecast.missed + TUNE_GAIN:  # room for more load is no reason to miss now
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
    if trigger.reason not in WITHOUT_COMPARISON and not (_mixed_wins(question, scores) or _far_off(question, scores)):
        return None
    if trigger.reason in PRESSURES and _pressure(scores.best_mixed) >= _pressure(scores.today):
        return None  # as of a rebalance
    # Where all miss most, their order by misses is noise.
    chosen = scores.least_strained_mixed if scores.overloaded else scores.best_mixed
    return _plan(question, Action.MERGE, chosen, scores, trigger)


LEVERS: tuple[Lever, ...] = (tune, rebalance, split, merge)


def relieve(question: Question, scores: Assessment, trigger: Trigger) -> Plan | None:
    """In an overload all candidates miss about the same: what works off more of the load, if anything does."""
    relief = [c for c in (*scores.mixed, *scores.splits) if _relieves(question, scores, c)]
    if not relief:
        return None
    best = min(relief, key=scores.strain)
    now, least = scores.strain(_to_relieve(question, scores, best)), scores.strain(best)
    name = topology_text(best.topology)
    if best.topology.mode is Mode.MIXED:
        action = Action.MERGE if question.split else Action.TUNE
        name = f"budget {best.topology.tokenBudget}" if action is Action.TUNE else name
    else:
        action = Action.REBALANCE if question.split else Action.SPLIT
    much = "what today's engines never work off" if isinf(now) else f"{now / least:.2g} times as much"
    evidence = f"{trigger.evidence}; all would miss in this overload, but {name} works off {much}"
    plan = _plan(question, action, best, scores, replace(trigger, evidence=evidence))
    return replace(plan, gain=max(CLEAR_GAIN, 1.0 - least / now))  # the queue grows meanwhile, for all that come


def _to_relieve(question: Question, scores: Assessment, candidate: Candidate) -> Candidate:
    """Today's topology; for a split of mixed engines, these at the budget that works off most: it costs nothing."""
    splits = candidate.topology.mode is Mode.SPLIT and not question.split
    return scores.least_strained_mixed if splits else scores.today


def _relieves(question: Question, scores: Assessment, candidate: Candidate) -> bool:
    """Whether a candidate works off clearly more; a smaller budget spares the gaps, and only lengthens the queue."""
    before = _to_relieve(question, scores, candidate)
    tunes = candidate.topology.mode is question.today.mode is Mode.MIXED
    share, most = BUDGET_RELIEF if tunes else ROLES_RELIEF
    if tunes and question.today.tokenBudget is None:
        return False
    if tunes and candidate.forecast.prefill_utilization > share * before.forecast.prefill_utilization:
        return False
    return scores.strain(candidate) <= min(most, share * scores.strain(before))


def _split_wins(question: Question, scores: Assessment) -> bool:
    """Whether the best split gains more than the tolerance, or half of it where it alone meets the limit for long."""
    best, mixed = scores.best_split, scores.best_mixed
    if best is None:
        return False
    remembered = len(question.history.boards) >= CALM_WINDOWS
    meets_alone = remembered and best.score <= question.missed_limit < mixed.score
    tolerance = question.spec.rules.tolerancePercent / 100.0
    weights = question.signals.weight_bytes if question.signals else None
    lean = SMALL_MODEL_LEAN if weights is not None and weights < SMALL_MODEL_WEIGHT_BYTES else 0.0
    return mixed.score - best.score > (tolerance / 2.0 if meets_alone else tolerance) + lean


def _mixed_wins(question: Question, scores: Assessment) -> bool:
    """Whether mixed engines beat the best split, and today's, by more than the tolerance."""
    splits = min(c.score for c in (scores.today, scores.best_split or scores.today))
    return splits - scores.best_mixed.score > question.spec.rules.tolerancePercent / 100.0


def _far_off(question: Question, scores: Assessment) -> bool:
    """Whether mixed engines carry what the load has become: today's decodes drown, or the best split lies engines away.

    Decodes that are more than their engines can do are, as a rule, the beginning of another load, of which the lengths
    that have been seen say too little: one decode engine more is soon too few.
    """
    best, today = scores.best_split, scores.today
    if best is None:
        return False
    if today.forecast.decode_utilization > 1.0 and scores.best_mixed.forecast.missed <= MIXED_COST:
        return True
    if abs(best.topology.prefill - question.today.prefill) < 2:
        return False
    if today.forecast.missed - scores.best_mixed.forecast.missed <= FAR_GAIN:
        return False
    return scores.best_mixed.forecast.missed <= best.forecast.missed + MIXED_COST


def _pressure(candidate: Candidate) -> float:
    """The tighter of the two phases, 1 at the edge of its band."""
    load = candidate.forecast
    return max(load.prefill_utilization / PREFILL_BAND, load.decode_utilization / DECODE_BAND)


def _plan(question: Question, action: Action, chosen: Candidate, scores: Assessment, trigger: Trigger) -> Plan:
    target = chosen.topology
    if target.mode is Mode.SPLIT:  # kept for the way back to mixed engines
        target = target.model_copy(update={"tokenBudget": scores.best_mixed.topology.tokenBudget})
    return Plan(
        action,
        trigger.reason,
        explain(question, action, chosen, scores, trigger),
        target,
        gain=scores.today.score - chosen.score,
        unchanged_missed=scores.today.missed,
        expected_missed=chosen.missed,
    )
