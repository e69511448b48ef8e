"""A fleet: engines, a router in front of them, and the events between them, in one order that is always the same.

Events are taken from a heap by time, then by kind, then by the order in which they were made: requests before
transfers, transfers before steps, and last what looks on or steers, so that a scrape sees all that happened at its
moment. Arrivals are drawn one at a time, so that a trace of any length takes no memory.

A request that meets a mixed engine stays there. Otherwise the router picks a pair: the request is prefilled at the
first engine, which keeps the KV; after the hand-off it waits at the second, which pulls the KV and gives all tokens.
When an engine dies, requests whose client has seen no token yet are sent again (SMG retries), the others have failed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

from ridgeline.api.fleet import Role
from ridgeline.cost.step_cost import StepCost
from ridgeline.simulate.counters import Counters, Outcome
from ridgeline.simulate.engine import Engine, StepRecord
from ridgeline.simulate.phase_use import PhaseWork
from ridgeline.simulate.request import Request
from ridgeline.simulate.router import Router
from ridgeline.simulate.scheduler import EngineSettings
from ridgeline.simulate.traces import Arrival
from ridgeline_exporters.engine.baseline import StepModel
from ridgeline_exporters.engine.metrics import OUTPUT_TOKENS, longer_than
from ridgeline_exporters.engine.requests import LATE_GAP_SHARE

_HAND_OFF, _PULL, _STEP, _CALL = range(4)
"""Kinds of events, by which those of one moment are ordered; arrivals come before all."""

DRAIN_LOOK_SECONDS = 1.0
"""How often an engine that is to be stopped is asked whether it is done."""

Action = Callable[[float], None]
"""Something to be done, with the time at which it is."""


class Stuck(RuntimeError):  # noqa: N818 - says what happened
    """Requests wait for each other for ever.

    KV that waits for a decode engine without room is kept here until that has room; its lease is not ended meanwhile.
    """


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """What a fleet is made of."""

    engines: int
    engine: EngineSettings
    kv_bytes_per_token: float
    link_bytes_per_second: float
    """One-way speed of the link into each engine."""
    first_token_objective_seconds: float
    inter_token_objective_seconds: float
    hand_off_seconds: float = 0.005
    """From the end of a prefill until the request is at its decode engine."""
    router_delay_seconds: float = 0.5
    """From a change of a label until the router goes by it."""
    health_check_seconds: float = 2.5
    """From the death of an engine until the router sends it nothing more, and from its return until it does again."""
    kv_lease_seconds: float = 30.0
    """KV that nobody comes for is given up after so long."""
    most_attempts: int = 6
    """A request is sent no more often than this (SMG: five retries)."""


class Fleet:
    """Engines and a router.

    Args:
        settings: what the fleet is made of.
        cost: how long steps of its engines take.
        router: how requests are shared.
        done: called with every request that has ended, how, and when.
        record: told of every step of every engine.
        work: counts what each phase computes and moves; without it, that is unknown.

    Raises:
        ValueError: the fleet has no engine.
    """

    def __init__(
        self,
        settings: FleetSettings,
        cost: StepCost,
        router: Router,
        done: Callable[[Request, Outcome, float], None] | None = None,
        record: StepRecord | None = None,
        work: PhaseWork | None = None,
    ) -> None:
        if settings.engines < 1:
            raise ValueError(f"a fleet needs an engine, not {settings.engines}")
        self.settings = settings
        self.counters = Counters()
        self.work = work
        self.now = 0.0
        self.active = 0
        """Requests that have arrived and not ended."""
        self.engines: dict[str, Engine] = {}
        digits = len(str(settings.engines - 1))
        for number in range(settings.engines):
            engine = Engine(
                f"engine-{number:0{digits}d}",
                settings.engine,
                cost,
                settings.link_bytes_per_second,
                settings.kv_bytes_per_token,
                settings.inter_token_objective_seconds,
                self.counters,
                self,
                record,
                work,
            )
            self.engines[engine.name] = engine
        self.seen_roles: dict[str, Role] = {}
        """Engines that the router sends requests to, and the role that it knows them in."""
        self._table: dict[Role, list[Engine]] = {}
        self._router = router
        self._done = done
        self._events: list[tuple[float, int, int, Any, int]] = []
        """Heap of time, kind, number, subject (an engine, a request or an action, as the kind says) and its version."""
        self._sequence = 0
        self._counted_to = 0.0
        self._see(dict.fromkeys(self.engines, Role.MIXED))

    # ------------------------------------------------------------ time

    def run(self, arrivals: Iterable[Arrival], until: float | None = None, first: int = 0) -> None:
        """Play a trace until every request has ended.

        Args:
            arrivals: by rising time.
            until: stop at this time, whatever is left.
            first: place of the first arrival in its trace, when others were played before.

        Raises:
            ValueError: an arrival lies before the one before it.
            Stuck: requests are left and nothing will ever happen to them.
        """
        source = iter(enumerate(arrivals, first))
        following = next(source, None)
        events, limit = self._events, float("inf") if until is None else until
        while following is not None or self.active:
            if following is not None and (not events or following[1].seconds <= events[0][0]):
                number, arrival = following
                if arrival.seconds > limit:
                    break
                if arrival.seconds < self.now:
                    raise ValueError(f"request {number} arrives at {arrival.seconds} s, it is {self.now} s already")
                self.now = arrival.seconds
                self._arrive(Request(number, arrival, self.now))
                following = next(source, None)
                continue
            if not events:
                raise Stuck(
                    f"{self.active} requests wait for each other at {self.now:.1f} s: engines that traded their roles"
                    " with full KV caches each hold what the other has to read"
                )
            if events[0][0] > limit:
                break
            time, kind, _, subject, version = heappop(events)
            self.now = time
            if kind == _STEP:
                if subject.version == version:
                    subject.step_ended(time)
            elif kind == _HAND_OFF:
                self._hand_off(subject, version, time)
            elif kind == _PULL:
                if subject.pull_version == version:
                    subject.pulls_ended(time)
            else:
                subject(time)
        if until is not None and self.active:
            self.now = until

    def at(self, time: float, action: Action) -> None:
        """Do something at a time, after all else that happens then."""
        self._push(time, _CALL, action, 0)

    def every(self, seconds: float, action: Action) -> None:
        """Do something again and again, for the first time in so many seconds, as long as requests come or run."""

        def again(now: float) -> None:
            action(now)
            self.at(now + seconds, again)

        self.at(self.now + seconds, again)

    def twin(self, done: Callable[[Request, Outcome, float], None] | None = None) -> Fleet:
        """A copy that plays on by itself, as this one would if nobody looked on or steered.

        Requests, KV, transfers and steps are as they are. What is to be done at a later time is left out: scrapes and
        looks, but also labels on their way to the router and engines that start.

        Args:
            done: called with every request of the copy that ends.
        """
        twin = Fleet.__new__(Fleet)
        first = next(iter(self.engines.values()))
        shared = (self.settings, first.settings, first.cost, first.learn, first.record)
        memo: dict[int, object] = {id(each): each for each in shared} | {id(self): twin}
        # Empty engines first: requests name engines, which hold requests, and so on, deeper than Python recurses.
        copies = [(engine, Engine.__new__(Engine)) for engine in self.engines.values()]
        memo |= {id(engine): copy for engine, copy in copies}
        for engine, copy in copies:
            vars(copy).update(deepcopy(vars(engine), memo))
            copy.learn = copy.record = None
        for name, value in vars(self).items():
            if name == "_events":
                value = [event for event in value if event[1] != _CALL]
            vars(twin)[name] = done if name == "_done" else deepcopy(value, memo)
        heapify(twin._events)
        return twin

    def settle(self) -> None:
        """Count the steps that are complete by now, as exporters would show them when they are scraped."""
        for engine in self.engines.values():
            engine.settle(self.now)
        self.count_engine_time()

    def scrape(self) -> Counters:
        """What the exporters together show when they are scraped now."""
        self.settle()
        counters = self.counters.copy()
        lengths = [a + b for a, b in zip(counters.output_buckets, counters.cut_buckets, strict=True)]
        for engine in self.engines.values():
            for tokens in engine.scheduler.output_lengths():
                lengths[bisect_left(OUTPUT_TOKENS, tokens)] += 1
        counters.outputs_longer = longer_than(lengths)
        return counters

    def count_engine_time(self) -> None:
        """Count the time of the engines, by role, up to now."""
        passed, self._counted_to = self.now - self._counted_to, self.now
        for engine in self.engines.values():
            if engine.ready:
                self.counters.engine_seconds[engine.role] += passed

    def learn_steps(self, model: StepModel) -> None:
        """Let a model learn from the steps of all engines."""
        for engine in self.engines.values():
            engine.learn = model

    # ------------------------------------------------------------ levers

    def set_role(self, name: str, role: Role) -> None:
        """Label an engine: the router goes by it a little later, what the engine holds stays there."""
        engine = self.engines[name]
        if engine.role is role:
            return
        self.count_engine_time()
        engine.role = role
        self.at(self.now + self.settings.router_delay_seconds, lambda now: self._follow_labels([engine]))

    def set_roles_at_once(self, roles: dict[str, Role]) -> None:
        """Label engines, and let the router know: how a fleet begins."""
        self.count_engine_time()
        for name, role in roles.items():
            self.engines[name].role = role
        self._follow_labels([self.engines[name] for name in roles])

    def set_limit(self, name: str, budget_tokens: int) -> None:
        """Set the token budget of an engine."""
        self.engines[name].set_limit(budget_tokens, self.now)

    def drain(self, name: str) -> None:
        """Send an engine nothing more; it works off what it has."""
        self.engines[name].draining = True
        self.at(self.now + self.settings.router_delay_seconds, lambda now: self._see(self._serving()))

    def fail(self, name: str, back_after_seconds: float | None = None) -> None:
        """Let an engine die; it comes back empty, with the budget that it had, after so many seconds, or never."""
        dead = self.engines[name]
        if not dead.ready:
            return
        self.count_engine_time()
        gone = dead.fail(self.now)
        for engine in self.engines.values():
            if engine is not dead:
                scheduler = engine.scheduler
                for request in sorted([*scheduler.loading, *scheduler.waiting], key=lambda r: r.identifier):
                    if request.kv_source is dead:
                        engine.kv_failed(request, self.now)
        self.at(self.now + self.settings.health_check_seconds, lambda now: self._see(self._serving()))
        if back_after_seconds is not None:
            self.at(self.now + back_after_seconds, lambda now: self._return(dead))
        for request in gone:
            self._lost(request)

    def replace(self, name: str, role: Role, start_up_seconds: float) -> None:
        """Stop an engine once it has worked off what it has, and start one with another role in its place.

        Args:
            name: of the engine, and of the one that follows it.
            role: of the one that follows.
            start_up_seconds: from the end of the old one until the new one is ready.
        """
        engine = self.engines[name]
        if engine.draining or not engine.ready:
            return
        self.drain(name)

        def look(now: float) -> None:
            if engine.in_flight or engine.held_requests:
                self.at(now + DRAIN_LOOK_SECONDS, look)
            elif engine.ready:
                self.fail(name, start_up_seconds)
                engine.role, engine.draining = role, False

        self.at(self.now + DRAIN_LOOK_SECONDS, look)

    def _return(self, engine: Engine) -> None:
        self.count_engine_time()
        engine.ready = True
        self.at(self.now + self.settings.health_check_seconds, lambda now: self._see(self._serving()))

    # ------------------------------------------------------------ the router's table

    def _serving(self) -> dict[str, Role]:
        """What the router knows of the engines that serve; one that it did not know it takes by its label."""
        return {
            engine.name: self.seen_roles.get(engine.name, engine.role)
            for engine in self.engines.values()
            if engine.ready and not engine.draining
        }

    def _follow_labels(self, engines: list[Engine]) -> None:
        self._see(self._serving() | {e.name: e.role for e in engines if e.ready and not e.draining})

    def _see(self, roles: dict[str, Role]) -> None:
        self.seen_roles = {name: roles[name] for name in self.engines if name in roles}
        self._table = {role: [] for role in Role}
        for name, role in self.seen_roles.items():
            self._table[role].append(self.engines[name])

    # ------------------------------------------------------------ the way of a request

    def _arrive(self, request: Request) -> None:
        self.counters.arrived(request.prompt_tokens)
        self.active += 1
        self._send(request)

    def _send(self, request: Request) -> None:
        request.attempts += 1
        pair = self._router.choose(self._table, request) if self._fits(request) else None
        if pair is None:
            self._ended(request, Outcome.REFUSED)
            return
        first, second = pair
        request.decode_engine = second
        self._count(second, request, 1)
        if first is not second:
            request.prefill_engine = first
            request.prefilling_for_another = True
            self._count(first, request, 1)
        if not first.ready:  # the router does not know yet
            self._lost(request)
        else:
            first.enqueue(request, self.now)

    def _fits(self, request: Request) -> bool:
        settings = self.settings.engine
        most = request.prompt_tokens + request.output_tokens - 1
        return -(-most // settings.block_tokens) <= settings.kv_blocks

    def _hand_off(self, request: Request, attempt: int, now: float) -> None:
        if attempt != request.attempts:
            return
        engine = request.decode_engine
        assert engine is not None
        if not engine.ready:
            self._lost(request)
            return
        if request.kv_source is not None and not request.kv_source.holds(request.hold_key):
            engine.kv_failed(request, now)  # its source has died meanwhile
        engine.enqueue(request, now)

    def _lost(self, request: Request) -> None:
        """An engine died with a request on it, or on its way to it."""
        for engine in (request.prefill_engine, request.decode_engine):
            if engine is not None:
                self._count(engine, request, -1)
        source, key = request.kv_source, request.hold_key
        if source is not None:
            self.at(self.now + self.settings.kv_lease_seconds, lambda now: source.release(key, now))
        if request.first_token_at is not None or request.attempts >= self.settings.most_attempts:
            self._ended(request, Outcome.FAILED)
            return
        request.start_over()
        self._send(request)

    def _count(self, engine: Engine, request: Request, sign: int) -> None:
        engine.in_flight += sign
        engine.tokens_in_flight += sign * (request.prompt_tokens + request.output_tokens)

    def _ended(self, request: Request, outcome: Outcome) -> None:
        self.active -= 1
        if outcome in (Outcome.FAILED, Outcome.REFUSED):
            self.counters.cut(outcome, request.generated)
        else:
            self.counters.finished(outcome, request.output_tokens)
        if self._done is not None:
            self._done(request, outcome, self.now)

    # ------------------------------------------------------------ what engines tell

    def step_ends(self, engine: Engine, time: float) -> None:
        """An engine has begun something that ends then."""
        self._sequence += 1  # as `_push`, for the most frequent of all events
        heappush(self._events, (time, _STEP, self._sequence, engine, engine.version))

    def pull_ends(self, engine: Engine, time: float) -> None:
        """The next transfer into an engine ends then."""
        self._push(time, _PULL, engine, engine.pull_version)

    def prefilled(self, request: Request, now: float) -> None:
        """The first of two engines is done with a request."""
        engine = request.prefill_engine
        assert engine is not None
        self._count(engine, request, -1)
        request.prefill_engine = None
        request.kv_source = engine
        request.prefilling_for_another = False
        chosen, second = request.decode_engine, self._router.decode_engine(self._table, request)
        if second is not chosen:
            assert chosen is not None
            self._count(chosen, request, -1)
            self._count(second, request, 1)
            request.decode_engine = second
        if second is engine:
            engine.keep(request, now)
            return
        self._push(now + self.settings.hand_off_seconds, _HAND_OFF, request, request.attempts)

    def finished(self, request: Request, now: float) -> None:
        """A request has all its tokens."""
        assert request.decode_engine is not None
        assert request.first_token_at is not None
        self._count(request.decode_engine, request, -1)
        if request.first_token_at - request.arrived_at > self.settings.first_token_objective_seconds:
            outcome = Outcome.FIRST_TOKEN_LATE
        elif request.late_gaps > LATE_GAP_SHARE * request.gaps:
            outcome = Outcome.GAPS_LATE
        else:
            outcome = Outcome.MET
        self._ended(request, outcome)

    def _push(self, time: float, kind: int, subject: Engine | Request | Action, version: int) -> None:
        self._sequence += 1
        heappush(self._events, (time, kind, self._sequence, subject, version))
