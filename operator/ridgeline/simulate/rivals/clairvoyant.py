"""A policy that knows the future: what any policy could hope for, but for greed.

Before the first request each configuration (mixed engines at a budget from 256 to 8,192, every split), and then every
120 s today's and those near it (two engines more or fewer for prefill; half and twice the budget; mixed engines at
about 512 and splits at about two thirds for prefill, from the other side) are played on copies of the fleet as it is,
with the requests that will really come in the next 180 s. The one in which the fewest requests miss their objectives
is taken, today's if there is none better. When no request is to come any more, nothing is changed. So it looks 60 s further than it
commits itself, and is greedy beyond: no strict upper bound. After the project's regime map (sections 3 and 4).

Exact, not sampled: the copy holds all queues, KV and transfers. A copy is given up as soon as more requests have missed
in it than in the best so far, and nothing is tried against a configuration in which none does; neither changes the
choice. Orders are given as any operator's, with the same delays, all engines at once.

A request has missed when it ended without meeting its objectives, or has not ended after the 180 s and cannot meet them
any more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ridgeline.api.fleet import Role
from ridgeline.decide.snapshot import Snapshot
from ridgeline.simulate.controller import Event, Orders, obey
from ridgeline.simulate.counters import Outcome
from ridgeline.simulate.engine import Engine
from ridgeline.simulate.fleet import Fleet, Stuck
from ridgeline.simulate.observer import Delays
from ridgeline.simulate.request import Request
from ridgeline.simulate.rivals.rival import Rival
from ridgeline.simulate.scheduler import BUDGET_TOKENS
from ridgeline.simulate.traces import Arrival
from ridgeline_exporters.engine.requests import LATE_GAP_SHARE

INTERVAL_SECONDS = 120.0
AHEAD_SECONDS = 180.0
BUDGETS_TOKENS = (256, 512, 1024, 2048, 4096, BUDGET_TOKENS)
USUAL_BUDGET_TOKENS = 512
"""The best budget of mixed engines for most loads: where a split would begin when it merges."""
NEAR_ENGINES = 2
SLICE_SECONDS = 10.0
"""How often a copy is asked whether it can still be the best."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """Engines that prefill (0: all are mixed), and the token budget of all."""

    prefill: int
    budget_tokens: int

    def __str__(self) -> str:
        return f"{self.prefill} prefill" if self.prefill else f"mixed {self.budget_tokens}"

    def orders(self, fleet: Fleet) -> Orders:
        """What brings a fleet there: engines keep their role if they can, the least busy change it."""
        engines = fleet.engines.values()
        if not self.prefill:
            roles = dict.fromkeys(fleet.engines, Role.MIXED)
        else:
            line = sorted(engines, key=lambda e: (_ORDER[e.role], e.in_flight if e.role is Role.DECODE else 0, e.name))
            roles = {e.name: Role.PREFILL if i < self.prefill else Role.DECODE for i, e in enumerate(line)}
        return Orders(
            {e.name: roles[e.name] for e in engines if e.role is not roles[e.name]},
            {e.name: self.budget_tokens for e in engines if e.scheduler.budget_tokens != self.budget_tokens},
        )


_ORDER = {Role.PREFILL: 0, Role.MIXED: 1, Role.DECODE: 2}


def candidates(engines: int, today: Configuration | None) -> list[Configuration]:
    """What is tried: all at the start, later today's configuration and what is near; the most promising first."""
    splits = [Configuration(prefill, BUDGET_TOKENS) for prefill in range(1, engines)]
    mixed = [Configuration(0, tokens) for tokens in BUDGETS_TOKENS]
    split = today.prefill if today is not None and today.prefill else max(1, engines * 2 // 3)
    budget = today.budget_tokens if today is not None and not today.prefill else USUAL_BUDGET_TOKENS
    splits.sort(key=lambda each: abs(each.prefill - split))
    mixed.sort(key=lambda each: max(each.budget_tokens / budget, budget / each.budget_tokens))
    if today is None:
        return [*splits, *mixed]
    near = [each for each in splits if abs(each.prefill - split) <= NEAR_ENGINES]
    near += [each for each in mixed if budget / 2 <= each.budget_tokens <= budget * 2]
    return [today, *(each for each in near if each != today)]


class Clairvoyant(Rival):
    """Chooses every interval, from the true future."""

    interval_seconds = INTERVAL_SECONDS

    def __init__(self, name: str = "clairvoyant") -> None:
        super().__init__(name)
        self._fleet: Fleet | None = None
        self._arrivals: list[Arrival] = []
        self._times: list[float] = []
        self._today: Configuration | None = None
        self._due_seconds = self.interval_seconds

    def attend(self, fleet: Fleet, arrivals: Iterable[Arrival]) -> Iterable[Arrival]:
        """Read the whole trace."""
        self._fleet = fleet
        self._arrivals = list(arrivals)
        self._times = [arrival.seconds for arrival in self._arrivals]
        return self._arrivals

    def begin(self, engines: tuple[str, ...]) -> Orders:
        """The best for the first requests, in force before they come."""
        return self._choose(0.0, 0.0)

    def decide(self, now: float, snapshot: Snapshot) -> Orders:
        """When an interval is over, the best for the next."""
        if now < self._due_seconds:
            return Orders(again_seconds=self._due_seconds - now)
        if now > self._times[-1]:
            return Orders(again_seconds=self.interval_seconds)
        self._due_seconds = now + self.interval_seconds
        orders = self._choose(now, Delays().act_seconds)
        return Orders(orders.roles, orders.limits, self.interval_seconds)

    def coming(self, now: float) -> tuple[list[Arrival], int]:
        """Requests that the rollouts are played with, and the place of the first in the trace."""
        assert self._fleet is not None, "attend comes first"
        # An arrival at this very moment has come already if it was played: arrivals go before looks.
        first = max(bisect_left(self._times, now), self._fleet.counters.arrivals)
        return self._arrivals[first : bisect_left(self._times, now + AHEAD_SECONDS)], first

    def _choose(self, now: float, delay_seconds: float) -> Orders:
        assert self._fleet is not None, "attend comes first"
        choices, (coming, first) = candidates(len(self._fleet.engines), self._today), self.coming(now)
        best, fewest = choices[0], None
        for each in choices:
            missed = self._rollout(each, coming, first, now, delay_seconds, fewest)
            if missed is not None and (fewest is None or missed < fewest):
                best, fewest = each, missed
            if fewest == 0:
                break
        if best != self._today or not self.events:
            self.events.append(Event(now, "Choose", "Foreseen", f"{best}: {fewest} requests will miss"))
        self._today = best
        return best.orders(self._fleet)

    def _rollout(
        self,
        configuration: Configuration,
        coming: list[Arrival],
        first: int,
        now: float,
        delay_seconds: float,
        limit: int | None,
    ) -> int | None:
        """Requests that will miss; None when they are not fewer than the limit, or the fleet gets stuck."""
        assert self._fleet is not None
        missed = late = 0

        def done(request: Request, outcome: Outcome, time: float) -> None:
            nonlocal missed
            missed += outcome is not Outcome.MET

        fleet = self._fleet.twin(done)
        orders = configuration.orders(fleet)
        if delay_seconds > 0.0:
            fleet.at(now + delay_seconds, lambda then: obey(fleet, orders))
        else:
            fleet.set_roles_at_once(dict(orders.roles))
            obey(fleet, Orders(limits=orders.limits))
        place, time, end = 0, now, now + AHEAD_SECONDS
        while time < end:
            time = min(end, time + SLICE_SECONDS)
            after = bisect_left(coming, time, place, key=lambda arrival: arrival.seconds)
            try:
                fleet.run(coming[place:after], until=time, first=first + place)
            except Stuck:
                return None
            place = after
            late = sum(too_late(request, engine, fleet) for engine, request in unfinished(fleet))
            if limit is not None and missed + late >= limit:
                return None
        return missed + late


def unfinished(fleet: Fleet) -> Iterator[tuple[Engine, Request]]:
    """Requests on the engines."""
    for engine in fleet.engines.values():
        scheduler = engine.scheduler
        for group in (
            scheduler.prefilling,
            scheduler.parked,
            scheduler.waiting,
            scheduler.loading,
            (request for _, request in scheduler.loaded),
            scheduler.decodes.members.values(),
        ):
            for request in group:
                yield engine, request


def too_late(request: Request, engine: Engine, fleet: Fleet) -> bool:
    """Whether a request that has not ended can no longer meet its objectives."""
    first = fleet.now if request.first_token_at is None else request.first_token_at
    if first - request.arrived_at > fleet.settings.first_token_objective_seconds:
        return True
    late = request.late_gaps
    if request.order in engine.scheduler.decodes.members:
        late += engine.scheduler.decodes.late_steps - request.late_before_join
    return late > LATE_GAP_SHARE * request.gaps
