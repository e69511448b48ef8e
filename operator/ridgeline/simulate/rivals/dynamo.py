"""NVIDIA Dynamo's planner, for objectives ("sla"), with its two loops.

Rule (`ai-dynamo/dynamo`, components/src/dynamo/planner: config/defaults.py, core/load_scaling.py,
core/throughput_scaling.py, core/budget.py):

* Load loop, every 5 s, for each pool. From the steps seen of late it estimates the time to first token of a prompt
  that comes now (queued prompt tokens and its own, in steps of the token budget) for each prefill engine, and the next
  step of each decode engine (KV of its sequences and of those that wait). Above the objective on **every** engine of a
  pool: one replica more. One less, when with the load of N on N - 1 engines every estimate stays below 80 % of the
  objective (of prefill: the part that queueing adds, of what the prompt's own time leaves) and the KV fits.
* Throughput loop, every 180 s: replicas for the rate and mean lengths predicted for the next interval, with what an
  engine does within the objectives: `ceil(rate / engine rate)`; prefill at least `ceil(own time / objective)`. They
  are the floor of the load loop. Predictor: constant, the last interval (the default, ARIMA, needs a history).

Adapted to a fixed number of engines. The planner scales totals within a GPU budget; here the least and the most GPUs
are what there is. Then its budget guard lets a pool grow only when the other gives way in the same look, so an engine
moves when one pool asks for more and the other for one less. Floors that exceed the total are scaled down in
proportion, as the planner does; a pool below its floor takes engines that the other has above its own. Dynamo moves no
pod between pools: one stops and one starts (`START_UP_SECONDS`), and nothing is decided meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from ridgeline.api.fleet import Role
from ridgeline.decide.snapshot import Signals, Snapshot, StepTimes
from ridgeline.decide.step_times import step_times
from ridgeline.simulate.controller import Orders
from ridgeline.simulate.counters import Counters
from ridgeline.simulate.fleet import Fleet
from ridgeline.simulate.rivals.capacity import (
    decode_step_seconds,
    decode_tokens_per_second,
    prefill_seconds,
    prefill_tokens_per_second,
    shares,
)
from ridgeline.simulate.rivals.rival import PoolScaler, pool, under_way
from ridgeline.simulate.rivals.sight import EngineSample, Sight
from ridgeline.simulate.traces import Arrival

LOAD_INTERVAL_SECONDS = 5.0
THROUGHPUT_INTERVAL_SECONDS = 180.0
SENSITIVITY = 0.80
"""`load_scaling_down_sensitivity`."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the frontends counted in an interval."""

    requests_per_second: float
    prompt_tokens: float
    """Mean of a request."""
    output_tokens: float

    @classmethod
    def between(cls, before: Counters, after: Counters, seconds: float) -> Traffic | None:
        """None when no request ended, so that lengths are not known."""
        arrived = after.arrivals - before.arrivals
        ended = sum(after.output_buckets) - sum(before.output_buckets)
        if not arrived or not ended or seconds <= 0.0:
            return None
        return cls(
            arrived / seconds,
            (after.prompt_tokens - before.prompt_tokens) / arrived,
            (after.output_tokens - before.output_tokens) / ended,
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """What the planner is told of the service."""

    first_token_seconds: float
    inter_token_seconds: float
    kv_capacity_tokens: float | None


def prefill_change(queued_tokens: Sequence[int], prompt_tokens: float, steps: StepTimes, limits: Limits) -> int:
    """Replicas more (1) or less (-1) of the prefill pool, by the load loop.

    Args:
        queued_tokens: of prompts that wait, for each engine.
        prompt_tokens: mean of a request.
        steps: how long steps take.
        limits: objectives.
    """
    engines, objective = len(queued_tokens), limits.first_token_seconds
    if all(prefill_seconds(steps, queued + prompt_tokens) > objective for queued in queued_tokens):
        return 1
    if engines < 2:
        return 0
    own = prefill_seconds(steps, prompt_tokens)
    budget, more = SENSITIVITY * (objective - own), engines / (engines - 1)
    added = (prefill_seconds(steps, queued * more + prompt_tokens) - own for queued in queued_tokens)
    return -1 if all(seconds < budget for seconds in added) else 0


def decode_change(engines: Sequence[EngineSample], steps: StepTimes, limits: Limits) -> int:
    """Replicas more (1) or less (-1) of the decode pool, by the load loop."""

    def step(engine: EngineSample, more: float) -> float:
        tokens = engine.decode_kv_tokens + engine.queued_decode_kv_tokens
        return decode_step_seconds(steps, more * engine.decodes, more * tokens)

    if all(step(engine, 1.0) > limits.inter_token_seconds for engine in engines):
        return 1
    if len(engines) < 2:
        return 0
    more = len(engines) / (len(engines) - 1)
    room = float("inf") if limits.kv_capacity_tokens is None else limits.kv_capacity_tokens
    for engine in engines:
        if more * (engine.decode_kv_tokens + engine.queued_decode_kv_tokens) >= room:
            return 0
        if step(engine, more) >= SENSITIVITY * limits.inter_token_seconds:
            return 0
    return -1


def floors(traffic: Traffic, steps: StepTimes, limits: Limits, engines: int) -> tuple[int, int]:
    """Least prefill and decode engines, by the throughput loop."""
    own = prefill_seconds(steps, traffic.prompt_tokens)
    prefill_load = traffic.requests_per_second * traffic.prompt_tokens / prefill_tokens_per_second(steps)
    context = traffic.prompt_tokens + traffic.output_tokens / 2.0
    rate = decode_tokens_per_second(steps, context, limits.inter_token_seconds, limits.kv_capacity_tokens)
    prefill = max(1, ceil(prefill_load), ceil(own / limits.first_token_seconds))
    decode = max(1, ceil(traffic.requests_per_second * traffic.output_tokens / rate))
    return (prefill, decode) if prefill + decode <= engines else shares(prefill, decode, engines)


def moves_to_prefill(now: tuple[int, int], floor: tuple[int, int], change: tuple[int, int]) -> int:
    """Engines that go from decode to prefill (below 0: the other way), each argument for (prefill, decode)."""
    short, spare = (floor[0] - now[0], floor[1] - now[1]), (now[0] - floor[0], now[1] - floor[1])
    if short[0] > 0 < spare[1]:
        return min(short[0], spare[1])
    if short[1] > 0 < spare[0]:
        return -min(short[1], spare[0])
    if change == (1, -1) and spare[1] > 0:
        return 1
    if change == (-1, 1) and spare[0] > 0:
        return -1
    return 0


class Dynamo(PoolScaler):
    """Both loops.

    Args:
        first_token_objective_seconds: of the fleet.
        inter_token_objective_seconds: of the fleet.
    """

    def __init__(self, first_token_objective_seconds: float, inter_token_objective_seconds: float) -> None:
        super().__init__("Dynamo", LOAD_INTERVAL_SECONDS)
        self._objectives = first_token_objective_seconds, inter_token_objective_seconds
        self._sight: Sight | None = None
        self._floors = 1, 1
        self._before, self._before_seconds = Counters(), 0.0
        self._next_throughput = THROUGHPUT_INTERVAL_SECONDS

    def attend(self, fleet: Fleet, arrivals: Iterable[Arrival]) -> Iterable[Arrival]:
        """Scrape the fleet."""
        self._sight = Sight(fleet, THROUGHPUT_INTERVAL_SECONDS)
        return arrivals

    def decide(self, now: float, snapshot: Snapshot) -> Orders:
        """One look: of the load loop, and when it is due of the throughput loop."""
        assert self._sight is not None
        sample = self._sight.latest(now)
        steps = step_times(snapshot.signals) if isinstance(snapshot.signals, Signals) else None
        if sample is None or steps is None or not isinstance(snapshot.signals, Signals):
            return self.hold()
        limits = Limits(*self._objectives, snapshot.signals.kv_capacity_tokens)
        if now >= self._next_throughput:
            traffic = Traffic.between(self._before, sample.counters, sample.seconds - self._before_seconds)
            if traffic is not None:
                self._floors = floors(traffic, steps, limits, len(snapshot.engines))
            self._before, self._before_seconds = sample.counters, sample.seconds
            self._next_throughput = now + THROUGHPUT_INTERVAL_SECONDS
        if under_way(snapshot) or not snapshot.signals.prompt_tokens:
            return self.hold()
        prompt = sum(tokens * weight for tokens, weight in snapshot.signals.prompt_tokens)
        prefill = [sample.engines[e.pod] for e in pool(snapshot, Role.PREFILL) if e.pod in sample.engines]
        decode = [sample.engines[e.pod] for e in pool(snapshot, Role.DECODE) if e.pod in sample.engines]
        if len(prefill) + len(decode) < len(snapshot.engines):
            return self.hold()
        change = (
            prefill_change([engine.queued_prefill_tokens for engine in prefill], prompt, steps, limits),
            decode_change(decode, steps, limits),
        )
        moves = moves_to_prefill((len(prefill), len(decode)), self._floors, change)
        if not moves:
            return self.hold()
        why = f"floors {self._floors[0]} + {self._floors[1]}, load asks for {change[0]:+d} and {change[1]:+d}"
        return self.move(now, snapshot, abs(moves), Role.PREFILL if moves > 0 else Role.DECODE, why)
