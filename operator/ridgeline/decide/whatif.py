"""What would happen: the share of requests that miss their objectives, for a topology and a load (version 1).

Seconds, tokens and requests per second throughout. Of one engine with rate λ, prompts I, outputs O and the step model
(fixed f, per decode sequence c, per KV token k, prefill x tokens e(x) = max(0, b·x - hidden): `step_times.py`):

**Decode batch.** Mean context C = E[I] + E[O²] / 2E[O]; growth of a step with the batch g = c + kC. Prefills take the
share w = λ·E[e(chunks of a prompt)] of the time (0 on a decode engine). A sequence stays for O steps, so by Little's
law B = λ·E[O]·(f + gB) / (1 - w), that is B = λ·E[O]·f / (1 - w - λ·E[O]·g); without a positive denominator decodes
never catch up. s = f + gB is a step without prefill; (1 - w)/s steps run in a second.

**Prefill queue.** A step takes at most X = T - B prefill tokens (T the token budget), so a prompt needs n = ⌈I/X⌉
steps, less when prompts share steps: at saturation u = λ·E[I]·(s + e(X))/X it is I/X, between them by u. Service
time S = n·s + e(chunks) (on a prefill engine s = f), U = λ·E[S]. Deep in a prompt a chunk attends to all before it; that
time comes with the pairs. Routers send a prompt where fewest requests are, so that the k prefill engines of a split
share one queue, and of mixed engines k = 3: all are busy with Erlang's probability C(k, U), and the wait then is a
Brownian motion reflected at zero, of drift U - 1 and, with arrivals of variability a (1 = Poisson), of variance
λ·E[S²]·(a + 1)/2k a second. It is looked at for six minutes from an empty queue: long enough that a topology which slowly
falls behind does not pass for one that carries the load, too short for a moment of U above 1 to bury everybody.

**Late first token.** P(wait + half a step + S > objective), over the prompts; in a split S is followed by a hand-off
(5 ms), the transfer of I tokens of KV over a link of which the share v = λ_d·E[I]·KV bytes / link is taken, so
I·KV bytes / link / (1 - v), and a decode step.

**Late gaps.** A prompt of I tokens makes ⌊I/X⌋ full chunks and a rest, in steps of s + e(chunk); those longer than the
objective are late. q is the share of late steps, m = O - 1 the gaps of a request, κ the late steps in a row that one
such prompt makes. A request misses when more than 5 % of its gaps are late, that is when it meets at least
j = ⌊m/20κ⌋ + 1 of such rows. It begins inside one with probability q and meets more at rate q/κ a step:
P = q·P[N ≥ j-1] + (1 - q)·P[N ≥ j], N Poisson of mean m·q/κ.  A step without prefill that is late makes all late;
its length spreads with the batch, whose variance is its mean, and a sequence adds itself to the batch it meets.
Prompts that come together hit each other's decodes more often than strangers would: a burst factor multiplies q here.

**KV.** B·C tokens, with the spread of B, must stay below 90 % of what an engine holds.

A step is never exactly as long as modelled: lateness is a normal tail of 5 % relative width, which keeps all results
smooth. The parts count as independent: missed = 1 - Π(1 - part). Known limits: averages over the window, no prefix
cache, no lasting queues from before.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import erfc, fsum, isfinite, sqrt

from ridgeline.decide.chance import NOTHING, either, late, late_rows
from ridgeline.decide.prompts import LateSteps, Prompts, Queue
from ridgeline.decide.snapshot import Distribution, StepTimes

KV_SHARE = 0.90
HAND_OFF_SECONDS = 0.005
MIXED_SHARE_A_QUEUE = 3
"""Routers go by requests in flight. Of mixed engines most of these decode, so that the count tells little of the queue:
of 4, 8 and 16 as many first tokens of long prompts are late as if three at a time shared one."""
FIXED_POINT_ROUNDS = 4
FEWEST_CHUNK_TOKENS = 16
HEADROOM = 1.15
FORECASTS_KEPT = 64
"""Calibration, scores and comparisons of one pass ask for the same forecasts again: some thirty different ones."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the fleet is asked and promised, and what its engines can do."""

    requests_per_second: float
    prompts: Distribution
    outputs: Distribution
    steps: StepTimes
    first_token_objective_seconds: float
    inter_token_objective_seconds: float
    maximum_tokens: int
    """Token budget of an engine at start: what a prefill engine schedules."""
    kv_capacity_tokens: float | None = None
    kv_bytes_per_token: float | None = None
    link_bytes_per_second: float | None = None
    arrival_variability: float = 1.5
    """Squared coefficient of variation of the time between arrivals: 1 is Poisson, real traffic is burstier."""
    burst: float = 1.0
    """How many times more often than by chance a decode meets somebody's prefill."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the model says of one topology at one load."""

    missed: float
    first_token_late: float
    gaps_late: float
    prefill_utilization: float
    """Share of time that the prefill queue is busy; at 1 and above it grows without end."""
    decode_utilization: float
    """The tightest of step time ÷ objective, KV ÷ capacity and, in a split, ingress ÷ link."""
    decode_batch: float
    decode_step_seconds: float
    worst_step_seconds: float
    """Longest step that holds decodes."""
    ingress_ratio: float = 0.0
    """Share of a decode engine's link that KV takes."""

    @property
    def overloaded(self) -> bool:
        """Whether the load is more than the topology can work off."""
        return self.prefill_utilization >= 1.0 or not isfinite(self.decode_batch)


IDLE = Forecast(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class _Lengths:
    prompts: Distribution
    """With shares that sum to 1, like the outputs."""
    outputs: Distribution
    prompt_mean: float
    output_mean: float
    context_mean: float


@dataclass(frozen=True, slots=True)
class MixedEngines:
    """Mixed engines at their fixed point, which is the same however bursty arrivals are."""

    load: Load
    lengths: _Lengths
    prompts: Prompts
    rate: float
    """Requests per second of one engine."""
    busy: float
    """Share of its time that prefills take."""
    batch: float
    step: float
    """Seconds of a step without prefill."""
    queue: Queue
    late_steps: LateSteps

    def first_token_late(self, variability: float) -> float:
        """Share of requests whose first token comes late, with arrivals of this variability."""
        return _first_token_late(self.load, self.prompts, self.queue, variability, self.step / 2.0)

    def gaps_late(self, burst: float) -> float:
        """Share of requests with too many late gaps, by this burst factor."""
        return either(_step_late(self.load, self.lengths, self.batch), self._chunk_late(burst))

    def _chunk_late(self, burst: float) -> float:
        """Share of requests with too many gaps made late by prefills."""
        late_steps = self.late_steps
        if late_steps.a_prompt <= 0.0:
            return 0.0
        steps_per_second = max(1e-9, 1.0 - self.busy) / self.step
        share_late, row = min(1.0, burst * self.rate * late_steps.a_prompt / steps_per_second), late_steps.in_a_row
        missed = fsum([share * late_rows(tokens - 1.0, share_late, row) for tokens, share in self.lengths.outputs])
        return min(1.0, missed)

    def forecast(self) -> Forecast:
        """For the load's own arrivals."""
        load, kv_late = self.load, _kv_overflow(self.load, self.lengths, self.batch)
        first_late, gaps_late = self.first_token_late(load.arrival_variability), self.gaps_late(load.burst)
        kv_ratio = _kv_ratio(load, self.lengths, self.batch)
        return Forecast(
            missed=either(first_late, gaps_late, kv_late),
            first_token_late=first_late,
            gaps_late=gaps_late,
            prefill_utilization=self.queue.utilization,
            decode_utilization=max(self.step / load.inter_token_objective_seconds, kv_ratio),
            decode_batch=self.batch,
            decode_step_seconds=self.step,
            worst_step_seconds=self.late_steps.longest_seconds,
        )


@lru_cache(FORECASTS_KEPT)
def mixed_engines(load: Load, engines: int, token_budget: int) -> MixedEngines | Forecast:
    """So many mixed engines with this token budget, at a load above 0; a forecast where that is more than they can do."""
    rate = load.requests_per_second / max(1, engines)
    lengths = _lengths(load.prompts, load.outputs)
    prompts = _prompts(load.steps, lengths.prompts)
    room, batch, step, busy = float(token_budget), 0.0, load.steps.fixed_seconds, 0.0
    for _ in range(FIXED_POINT_ROUNDS):  # the room for prefill depends on the batch, the batch on the prefills' share
        busy = rate * prompts.mean_seconds(room)
        batch, step = _decode_batch(load, lengths, rate, busy)
        before, room = room, token_budget - batch
        if room < FEWEST_CHUNK_TOKENS:
            return _overload(batch, step)
        if room == before:  # where every prompt is one chunk, for example
            break
    return MixedEngines(
        load,
        lengths,
        prompts,
        rate,
        busy,
        batch,
        step,
        queue=prompts.queue(rate, min(max(1, engines), MIXED_SHARE_A_QUEUE), step, room),
        late_steps=prompts.late_steps(rate, step, room, load.inter_token_objective_seconds),
    )


@lru_cache(FORECASTS_KEPT)
def mixed(load: Load, engines: int, token_budget: int) -> Forecast:
    """Forecast for `engines` mixed engines with this token budget."""
    if load.requests_per_second <= 0.0:
        return IDLE
    found = mixed_engines(load, engines, token_budget)
    return found.forecast() if isinstance(found, MixedEngines) else found


@lru_cache(FORECASTS_KEPT)
def split(load: Load, prefill: int, decode: int) -> Forecast:
    """Forecast for so many prefill and decode engines."""
    if load.requests_per_second <= 0.0:
        return IDLE
    lengths = _lengths(load.prompts, load.outputs)
    rate_decode = load.requests_per_second / max(1, decode)
    batch, step = _decode_batch(load, lengths, rate_decode, 0.0)
    ingress, transfer = _transfer(load, lengths, rate_decode)
    if not isfinite(batch) or ingress >= 1.0:
        return _overload(batch, step, ingress)
    prompts = _prompts(load.steps, lengths.prompts)
    rate_prefill = load.requests_per_second / max(1, prefill)
    queue = prompts.queue(rate_prefill, max(1, prefill), load.steps.fixed_seconds, float(load.maximum_tokens))
    first_late = _first_token_late(load, prompts, queue, load.arrival_variability, HAND_OFF_SECONDS + step, transfer)
    gaps_late = _step_late(load, lengths, batch)
    kv_ratio = _kv_ratio(load, lengths, batch)
    return Forecast(
        missed=either(first_late, gaps_late, _kv_overflow(load, lengths, batch)),
        first_token_late=first_late,
        gaps_late=gaps_late,
        prefill_utilization=queue.utilization,
        decode_utilization=max(step / load.inter_token_objective_seconds, kv_ratio, ingress),
        decode_batch=batch,
        decode_step_seconds=step,
        worst_step_seconds=step,
        ingress_ratio=ingress,
    )


# ---------------------------------------------------------------- parts


def mean_context(prompts: Distribution, outputs: Distribution) -> float:
    """Tokens in the context of a decode, on average over the steps of all requests."""
    return _lengths(prompts, outputs).context_mean


def mean_length(lengths: Distribution) -> float:
    """Tokens of a prompt or an output, on average over the requests."""
    return max(1.0, _mean(lengths, 1))


def mean_depth(lengths: Distribution) -> float:
    """Tokens before a token of a prompt or an output, on average over the tokens of all of them."""
    return _mean(lengths, 2) / (2.0 * mean_length(lengths))


@lru_cache(FORECASTS_KEPT)
def _lengths(prompts: Distribution, outputs: Distribution) -> _Lengths:
    prompt_mean, output_mean = mean_length(prompts), mean_length(outputs)
    context_mean = prompt_mean + mean_depth(outputs)
    return _Lengths(_shares(prompts), _shares(outputs), prompt_mean, output_mean, context_mean)


@lru_cache(FORECASTS_KEPT)
def _prompts(steps: StepTimes, lengths: Distribution) -> Prompts:
    return Prompts.of(steps, lengths)


def _mean(distribution: Distribution, power: int) -> float:
    """Mean of a power of the lengths; weights need not sum to 1."""
    total = fsum([weight for _, weight in distribution])
    if total <= 0.0:
        return 0.0
    return fsum([weight * max(0.0, tokens) ** power for tokens, weight in distribution]) / total


def _shares(distribution: Distribution) -> Distribution:
    total = fsum([weight for _, weight in distribution if weight > 0.0])
    shares = tuple([(max(1.0, tokens), weight / total) for tokens, weight in distribution if weight > 0.0])
    return shares or ((1.0, 1.0),)


def _step_late(load: Load, lengths: _Lengths, batch: float) -> float:
    """Probability that a step without prefill is late for a sequence that shares it with the batch of the moment."""
    growth = load.steps.growth_seconds(lengths.context_mean)
    step = load.steps.fixed_seconds + growth * (batch + 1.0)
    return late(step, load.inter_token_objective_seconds, growth * sqrt(batch))


def _decode_batch(load: Load, lengths: _Lengths, rate: float, busy: float) -> tuple[float, float]:
    """Decoding sequences of one engine and the length of its step without prefill; infinite without a fixed point."""
    steps, growth = load.steps, load.steps.growth_seconds(lengths.context_mean)
    offered = rate * lengths.output_mean
    left = 1.0 - busy - offered * growth
    if left <= 0.0:
        return float("inf"), float("inf")
    batch = offered * steps.fixed_seconds / left
    return batch, steps.fixed_seconds + growth * max(1.0, batch)


def _first_token_late(
    load: Load, prompts: Prompts, queue: Queue, variability: float, extra: float, transfer: float = 0.0
) -> float:
    """Share of requests whose first token comes late: `extra` seconds, and `transfer` a token, after its prefill."""
    objective, longer_wait, missed = load.first_token_objective_seconds, queue.longer_wait(variability), 0.0
    own = [
        service + extra + tokens * transfer
        for (tokens, _), service in zip(prompts.lengths, queue.services, strict=True)
    ]
    slowest = max(own)
    if late(slowest, objective) < NOTHING and longer_wait(objective - slowest) == 0.0:
        return 0.0
    for (_, share), seconds in zip(prompts.lengths, own, strict=True):
        missed += share * either(late(seconds, objective), longer_wait(objective - seconds))
    return min(1.0, missed)


def _kv_ratio(load: Load, lengths: _Lengths, batch: float) -> float:
    capacity = load.kv_capacity_tokens
    return batch * lengths.context_mean / (KV_SHARE * capacity) if capacity and capacity > 0.0 else 0.0


def _kv_overflow(load: Load, lengths: _Lengths, batch: float) -> float:
    """Probability that an engine has no room for another sequence: the batch spreads like a Poisson variable."""
    ratio = _kv_ratio(load, lengths, batch)
    if ratio <= 0.0:
        return 0.0
    spread = ratio / sqrt(max(1.0, batch))
    return 0.5 * erfc((1.0 - ratio) / (sqrt(2.0) * spread))


def _transfer(load: Load, lengths: _Lengths, rate: float) -> tuple[float, float]:
    """Share of a decode engine's link that KV takes, and seconds per token of a transfer beside the others."""
    link, per_token = load.link_bytes_per_second, load.kv_bytes_per_token
    if not link or not per_token or link <= 0.0 or per_token <= 0.0:
        return 0.0, 0.0
    ingress = rate * lengths.prompt_mean * per_token / link
    return ingress, per_token / link / (1.0 - ingress) if ingress < 1.0 else float("inf")


def _overload(batch: float, step: float, ingress: float = 0.0) -> Forecast:
    return Forecast(1.0, 1.0, 1.0, float("inf"), float("inf"), batch, step, step, ingress)
