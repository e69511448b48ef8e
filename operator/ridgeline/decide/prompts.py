"""What prompts make of an engine's steps: the time of its prefills, the queue before them, and the steps that come late.

The formulas are the what-if model's (`whatif.py`). A step takes `step` seconds without prefill and has room for `room`
prefill tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, fsum
from operator import mul

from ridgeline.decide.chance import late, longer_wait, waiting
from ridgeline.decide.snapshot import Distribution, StepTimes

CHUNK_DEPTHS = (0.125, 0.375, 0.625, 0.875)
"""Where in a prompt its full chunks are looked at, as parts of its length."""
HORIZON_SECONDS = 360.0
"""How far ahead a topology is judged: a queue that grows has this long to make requests late."""


@dataclass(frozen=True, slots=True)
class Queue:
    """The prompts before the engines that prefill."""

    services: Sequence[float]
    """Seconds from the first step of each prompt to the end of its last."""
    utilization: float
    """Share of time that the queue is busy; at 1 and above it grows without end."""
    squares: float
    """Of the services that come in a second, in s²/s."""
    engines: int
    """That share it."""

    def longer_wait(self, variability: float) -> Callable[[float], float]:
        """Probability that a prompt waits longer than so many seconds, with arrivals of this variability."""
        if self.utilization <= 0.0:
            return lambda seconds: float(seconds <= 0.0)
        busy, drift = waiting(self.engines, self.utilization), self.utilization - 1.0
        variance = self.squares * (variability + 1.0) / 2.0 / self.engines
        return lambda seconds: busy * longer_wait(seconds, drift, variance, HORIZON_SECONDS)


@dataclass(frozen=True, slots=True)
class LateSteps:
    """Steps that hold decodes and are made late by prompts."""

    a_prompt: float
    """That one makes, on average."""
    in_a_row: float
    """Of those prompts that make any."""
    longest_seconds: float
    """Longest step that there is."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts of a load on engines with these step times."""

    steps: StepTimes
    lengths: Distribution
    """Tokens and shares."""
    shares: Sequence[float]
    """Those of `lengths` alone."""
    mean_tokens: float
    single_chunks: Sequence[float]
    """Seconds that each adds to a step as a single chunk."""

    @classmethod
    def of(cls, steps: StepTimes, lengths: Distribution) -> Prompts:
        """Prompts of these lengths."""
        shares = [share for _, share in lengths]
        mean_tokens = fsum([share * tokens for tokens, share in lengths])
        return cls(steps, lengths, shares, mean_tokens, [steps.prefill_seconds(tokens) for tokens, _ in lengths])

    def mean_seconds(self, room: float) -> float:
        """What the chunks of a prompt add to their steps, on average, full chunks at no depth."""
        prefill_seconds = self.steps.prefill_seconds
        chunk_seconds, mean = prefill_seconds(room), 0.0
        for (tokens, share), seconds in zip(self.lengths, self.single_chunks, strict=True):
            if tokens > room:
                full = floor(tokens / room)
                seconds = full * chunk_seconds + prefill_seconds(tokens - full * room)
            mean += share * seconds
        return mean

    def queue(self, rate: float, engines: int, step: float, room: float) -> Queue:
        """The queue that so many engines share, each of which gets so many requests per second."""
        prefill_seconds = self.steps.prefill_seconds
        full_step = step + prefill_seconds(room)
        alone, shared = [], []  # with steps for itself; with steps that are always full
        for (tokens, _), seconds in zip(self.lengths, self.single_chunks, strict=True):
            fills = tokens / room  # full steps
            if tokens <= room:
                alone.append(step + seconds)
                shared.append(fills * full_step)
                continue
            full = floor(fills)
            # Full chunks lie half their prompt deep on average, so that the pairs of all chunks add up to tokens² / 2.
            seconds = full * prefill_seconds(room, (full - 1) * room / 2.0)
            seconds += prefill_seconds(tokens - full * room, full * room)
            alone.append(ceil(fills) * step + seconds)
            shared.append(fills * (step + prefill_seconds(room, (tokens - room) / 2.0)))
        shares = self.shares
        sharing = min(1.0, rate * fsum(map(mul, shares, shared)))
        services = [(1.0 - sharing) * own + sharing * full for own, full in zip(alone, shared, strict=True)]
        utilization = rate * fsum(map(mul, services, shares))
        squares = rate * fsum(map(mul, map(mul, services, services), shares))
        return Queue(services, utilization, squares, engines)

    def late_steps(self, rate: float, step: float, room: float, objective: float) -> LateSteps:
        """Steps longer than the objective, on an engine that gets so many requests per second."""
        prefill_seconds = self.steps.prefill_seconds
        rate_tokens = rate * self.mean_tokens
        late_steps, prompts_with, longest = 0.0, 0.0, step
        for (tokens, share), alone in zip(self.lengths, self.single_chunks, strict=True):
            rest, rest_alone, own_late = tokens, alone, 0.0
            if full := floor(tokens / room):
                rest = tokens - full * room
                rest_alone = prefill_seconds(rest)
                # The deeper a chunk lies in its prompt, the longer it takes: a few depths stand for all.
                chunks = [step + prefill_seconds(room, depth * full * room) for depth in CHUNK_DEPTHS]
                own_late = full * fsum([late(seconds, objective) for seconds in chunks]) / len(CHUNK_DEPTHS)
                longest = max(longest, *chunks)
            if rest >= 1.0:
                # Prompts that arrive during a step share the next: a rest is seldom alone on a busy engine.
                joined = min(room, rest + rate_tokens * (step + rest_alone))
                seconds = step + prefill_seconds(joined, full * room)
                own_late += late(seconds, objective)
                if seconds > longest:
                    longest = seconds
            late_steps += share * own_late
            prompts_with += share * (own_late if own_late < 1.0 else 1.0)
        return LateSteps(late_steps, max(1.0, late_steps / max(prompts_with, 1e-12)), longest)
