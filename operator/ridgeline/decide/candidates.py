"""Candidates: what the fleet could be, read top to bottom, and how each would do.

The order is the order of preference: of those that come within `TIE` of the best, the first is taken, so that ties
keep today's topology, then what the last passes wanted, then the larger token budget and today's neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import isnan

from ridgeline.api.fleet import Mode, TopologyStatus
from ridgeline.decide.observed import held_requests
from ridgeline.decide.question import Question
from ridgeline.decide.scoreboard import Board, Key, key_of, remembered
from ridgeline.decide.whatif import HEADROOM, Forecast, Load, mixed, split

SMALLEST_BUDGET_TOKENS = 128
TIE = 0.005
MEMORY_WEIGHT = 0.5
"""What the loads of the last minutes weigh beside the load of now."""
BUDGET_MEMORY_WEIGHT = 0.25
"""The same between token budgets of mixed engines: the next one is at hand when the load turns back."""
MIXED_COST = 0.10
"""What mixed engines may be forecast to miss more than a split that does not fit the load: they take any as it comes."""
RELIEF_SHARE = 0.95
"""In an overload roles change for what is strained by at most this share of today: it works off a twentieth more."""
CALM_LOAD = 1.3
"""A fleet is merged only when mixed engines would do at this multiple of the load: room for it to come back."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A topology and what the what-if model says of it."""

    topology: TopologyStatus
    forecast: Forecast
    """At the measured load."""
    missed: float
    """Mean share of misses at the measured load and with headroom."""
    remembered: float | None = None
    """The same on the loads of lately, on average; None without memory."""

    @property
    def score(self) -> float:
        """Share of misses now and lately together: what candidates are compared by."""
        return self.weighed(MEMORY_WEIGHT)

    @property
    def budget_score(self) -> float:
        """The same to compare token budgets by."""
        return self.weighed(BUDGET_MEMORY_WEIGHT)

    def weighed(self, memory: float) -> float:
        """Share of misses now and, by this weight, lately."""
        if self.remembered is None:
            return self.missed
        return (1.0 - memory) * self.missed + memory * self.remembered


@dataclass(frozen=True)
class Assessment:
    """All candidates of one pass on its load, each scored when it is first asked for.

    A mixed fleet that does well asks for today's topology alone.
    """

    question: Question
    load: Load

    @cached_property
    def today(self) -> Candidate:
        """The topology of now."""
        return score(self.load, self.question.today, self.question.budget, self.question.history.boards)

    @cached_property
    def mixed(self) -> tuple[Candidate, ...]:
        """Mixed engines, by preference."""
        return _scored(self.load, MIXED_CANDIDATES, self.question)

    @cached_property
    def splits(self) -> tuple[Candidate, ...]:
        """Divisions of the engines, by preference."""
        return _scored(self.load, SPLIT_CANDIDATES, self.question)

    @cached_property
    def best_mixed(self) -> Candidate:
        """Mixed engines at the best token budget."""
        return _best(self.mixed)

    @cached_property
    def best_budget(self) -> Candidate:
        """Mixed engines at the budget to tune to."""
        least = min(c.budget_score for c in self.mixed)
        return next(c for c in self.mixed if c.budget_score <= least + TIE)

    @cached_property
    def best_split(self) -> Candidate | None:
        """None where no division leaves each pool its minimum."""
        return _best(self.splits) if self.splits else None

    @cached_property
    def mixed_when_busier(self) -> float:
        """Least share of misses of mixed engines at `CALM_LOAD` times the load."""
        busier = replace(self.load, requests_per_second=CALM_LOAD * self.load.requests_per_second)
        least = 1.0
        for candidate in sorted(self.mixed, key=lambda c: c.missed):
            least = min(least, forecast(busier, candidate.topology, self.question.budget).missed)
            if least == 0.0:
                break  # nobody misses less
        return least

    @property
    def overloaded(self) -> bool:
        """Whether every candidate misses more than it meets: their order is noise then."""
        return self.least_missed > 0.5

    @property
    def least_missed(self) -> float:
        """Least share of misses of any candidate at the measured load."""
        return min(c.forecast.missed for c in (self.today, *self.mixed, *self.splits))

    def strain(self, candidate: Candidate) -> float:
        """How much more than it can do a candidate is asked for: time of its engines, room for KV, length of a step."""
        load = candidate.forecast
        longest_step = load.worst_step_seconds / self.load.inter_token_objective_seconds
        return max(load.prefill_utilization, load.decode_utilization, longest_step)

    @cached_property
    def least_strained_mixed(self) -> Candidate:
        """Mixed engines at the token budget that works off most."""
        return min(self.mixed, key=self.strain)

    def board(self, now: float) -> Board:
        """What is to be remembered of this pass."""
        everyone = (*self.mixed, *self.splits)
        missed = {key_of(c.topology): c.missed for c in everyone}
        return Board(now, missed, self.mixed_when_busier, held_requests(self.question.snapshot))

    def split_with(self, prefill: int) -> Candidate | None:
        """The candidate with so many prefill engines."""
        return next((c for c in self.splits if c.topology.prefill == prefill), None)


# ---------------------------------------------------------------- the list


def mixed_at_todays_budget(question: Question) -> Iterator[TopologyStatus]:
    """Mixed engines with the budget that they have, or that the last passes wanted."""
    yield _mixed(question, question.budget)
    wanted = question.history.wanted
    if wanted is not None and wanted.target.mode is Mode.MIXED and wanted.target.tokenBudget:
        yield _mixed(question, min(wanted.target.tokenBudget, question.maximum_tokens))


def mixed_at_each_budget(question: Question) -> Iterator[TopologyStatus]:
    """Mixed engines with every budget there is to choose."""
    for budget in budgets(question):
        yield _mixed(question, budget)


def budgets(question: Question) -> Iterator[int]:
    """Token budgets, the largest first: a ladder that halves from the engines' own maximum."""
    budget = question.maximum_tokens
    yield budget
    while (budget := budget // 2) >= SMALLEST_BUDGET_TOKENS:
        yield budget


def todays_split(question: Question) -> Iterator[TopologyStatus]:
    """The split that there is, or that the last passes wanted."""
    wanted = question.history.wanted
    plans = [question.today] + ([wanted.target] if wanted is not None else [])
    for topology in plans:
        if topology.mode is Mode.SPLIT and topology.prefill + topology.decode == question.engines:
            yield from _feasible(question, [topology.prefill])


def neighbours_of_todays_split(question: Question) -> Iterator[TopologyStatus]:
    """Today's split with one engine moved."""
    if question.split:
        yield from _feasible(question, [question.today.prefill + 1, question.today.prefill - 1])


def every_split(question: Question) -> Iterator[TopologyStatus]:
    """Every division that leaves each pool its minimum."""
    yield from _feasible(question, range(1, question.engines))


MIXED_CANDIDATES: tuple[Callable[[Question], Iterator[TopologyStatus]], ...] = (
    mixed_at_todays_budget,
    mixed_at_each_budget,
)
SPLIT_CANDIDATES: tuple[Callable[[Question], Iterator[TopologyStatus]], ...] = (
    todays_split,
    neighbours_of_todays_split,
    every_split,
)


def _mixed(question: Question, budget: int) -> TopologyStatus:
    return TopologyStatus(mode=Mode.MIXED, mixed=question.engines, prefill=0, decode=0, tokenBudget=budget)


def _feasible(question: Question, prefills: Iterable[int]) -> Iterator[TopologyStatus]:
    bounds = question.spec.topology
    for prefill in prefills:
        decode = question.engines - prefill
        if prefill >= bounds.minPrefillReplicas and decode >= bounds.minDecodeReplicas:
            yield TopologyStatus(mode=Mode.SPLIT, mixed=0, prefill=prefill, decode=decode)


# ---------------------------------------------------------------- the scores


def score(load: Load, topology: TopologyStatus, budget: int, boards: tuple[Board, ...] = ()) -> Candidate:
    """One candidate on this load; `budget` is that of mixed engines where the topology does not tell."""
    now = forecast(load, topology, budget)
    busier = replace(load, requests_per_second=HEADROOM * load.requests_per_second)
    missed = (now.missed + forecast(busier, topology, budget).missed) / 2.0
    known = topology if topology.tokenBudget else topology.model_copy(update={"tokenBudget": budget})
    return Candidate(topology, now, missed, remembered(boards, key_of(known)))


def forecast(load: Load, topology: TopologyStatus, budget: int) -> Forecast:
    """The what-if model on a topology; mixed engines beside a split take their share of requests by count."""
    if topology.mode is Mode.MIXED:
        return mixed(load, topology.mixed, topology.tokenBudget or budget)
    if topology.prefill == 0 or topology.decode == 0:
        return mixed(load, max(1, topology.mixed), topology.tokenBudget or budget)
    share = (topology.prefill + topology.decode) / (topology.prefill + topology.decode + topology.mixed)
    part = replace(load, requests_per_second=share * load.requests_per_second)
    return split(part, topology.prefill, topology.decode)


def _scored(
    load: Load, generators: tuple[Callable[[Question], Iterator[TopologyStatus]], ...], question: Question
) -> tuple[Candidate, ...]:
    found: dict[Key, TopologyStatus] = {}
    for generate in generators:
        for topology in generate(question):
            found.setdefault(key_of(topology), topology)
    return tuple(score(load, topology, question.budget, question.history.boards) for topology in found.values())


def _best(candidates: tuple[Candidate, ...]) -> Candidate:
    assert not any(isnan(c.score) for c in candidates)
    least = min(c.score for c in candidates)
    return next(c for c in candidates if c.score <= least + TIE)
