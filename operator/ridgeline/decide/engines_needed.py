"""How many engines the load needs: the fewest with which some topology is forecast to meet the objectives.

Advice alone: Ridgeline divides the engines that it is given, it asks for none and stops none. An estimate by the what-if
model (`whatif.py`), with what that gets wrong: it takes the load for steady and knows of no queue from before.

Looked for is the least number from two to `REACH` times today's with which mixed engines, or some division into pools,
would miss no more than the limit at `HEADROOM` times the load. More engines never miss more, so it is found by steps that
double and bisection: for mixed engines with today's best token budget, then with others where fewer would do; for a
split, each pool beside one that has all it could want, then divisions from the sum of both on. That makes some fifteen
forecasts, whatever the size of the fleet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ridgeline.decide.candidates import Assessment, mixed_at_each_budget
from ridgeline.decide.question import Question
from ridgeline.decide.scoreboard import is_due
from ridgeline.decide.whatif import HEADROOM, Load, mixed, split

FEWEST_ENGINES = 2
"""With one there is no topology to choose, and nobody serves while it restarts."""
REACH = 8
"""Times today's engines: farther away an estimate is worth little."""
ROOM_TEXT = f"with room for {100.0 * (HEADROOM - 1.0):.0f} % more requests"
BESIDE_POOLS = 4
"""Engines that a split may need beyond what each pool needs alone; one that needs more is no choice."""


def engines_needed(question: Question, scores: Assessment, load: Load) -> int | None:
    """The fewest engines that would do, worked out anew with each board of the memory, else as the last time.

    Returns:
        None when no number within reach would do.
    """
    boards = question.history.boards
    if not boards or is_due(boards[-1].time, question.now, question.snapshot.rules_window_seconds):
        return fewest_engines(question, scores, load)
    return question.history.engines_needed


def fewest_engines(question: Question, scores: Assessment, load: Load) -> int | None:
    """The fewest engines that would do for the load of now; None when no number within reach would.

    Args:
        question: of this pass.
        scores: say where to begin.
        load: the whole of it: what today's engines do better than modelled, fewer or more of them may not.
    """
    load = replace(load, requests_per_second=HEADROOM * load.requests_per_second)
    limit, most = question.modelled_limit, REACH * question.engines

    def mixed_do(budget: int) -> Callable[[int], bool]:
        return lambda engines: mixed(load, engines, budget).missed <= limit

    def split_does(prefill: int, decode: int) -> bool:
        return split(load, prefill, decode).missed <= limit

    budget = scores.best_mixed.topology.tokenBudget or question.budget
    least = _least(mixed_do(budget), question.history.engines_needed or question.engines, FEWEST_ENGINES, most)
    for topology in mixed_at_each_budget(question):
        other, fewer = topology.tokenBudget or budget, (least or most + 1) - 1
        if other == budget or fewer < FEWEST_ENGINES:
            continue
        do = mixed_do(other)
        if fewer > question.engines or do(question.engines):  # for today's engines, the scores have asked already
            least = _least(do, fewer, FEWEST_ENGINES, fewer) or least
    if scores.best_split is None or least == FEWEST_ENGINES:
        return least
    bounds, best = question.spec.topology, scores.best_split.topology
    share = (least or question.engines) / question.engines
    start = round(share * best.decode)
    decode = _least(lambda engines: split_does(most, engines), start, bounds.minDecodeReplicas, most)
    if decode is None or (least is not None and decode + bounds.minPrefillReplicas >= least):
        return least
    start = round(share * best.prefill)
    prefill = _least(lambda engines: split_does(engines, most), start, bounds.minPrefillReplicas, most)
    if prefill is None:
        return least
    for total in range(prefill + decode, min(prefill + decode + BESIDE_POOLS + 1, least or most + 1)):
        if any(split_does(first, total - first) for first in range(prefill, total - decode + 1)):
            return total
    return least


def needed_text(question: Question, needed: int | None) -> str:
    """What to say of it at the end of a message: nothing when there are as many engines as are needed."""
    if needed is None:
        return f"; even {REACH * question.engines} engines would miss too many"
    if needed == question.engines:
        return ""
    return f"; {ROOM_TEXT}, {needed} engines {'would do' if needed < question.engines else 'are needed'}"


def _least(do: Callable[[int], bool], start: int, fewest: int, most: int) -> int | None:
    """The least number that does, looked for from `start` in steps that double; None when `most` does not do either."""
    at, step = min(max(start, fewest), most), 1
    if do(at):
        low, high = fewest - 1, at
        while high > fewest:
            below = max(fewest, high - step)
            if not do(below):
                low = below
                break
            high, step = below, 2 * step
    else:
        low, high = at, most
        while True:
            if low >= most:
                return None
            above = min(most, low + step)
            if do(above):
                high = above
                break
            low, step = above, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if do(middle) else (middle, high)
    return high
