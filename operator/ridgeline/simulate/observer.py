"""What an operator sees of a simulated fleet, and how late: scrapes, recording rules, and one `Snapshot`.

Exporters are scraped every interval; the rules are evaluated as often, half an interval after a scrape (neither waits
for the other); whoever decides reads the last evaluation. A rate is the difference between the newest and the oldest
scrape within the window, by the time between them, which is what Prometheus' `rate` comes to when all scrapes succeed.
Numbers go through the same buckets as those of the exporters, and quantiles out of them as `histogram_quantile` does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf

from ridgeline.decide.snapshot import (
    Distribution,
    EngineState,
    MetricsProblem,
    PhaseSignals,
    RouterState,
    Signals,
    Snapshot,
    StepsTaken,
    StepTimes,
)
from ridgeline.observe.distributions import distribution
from ridgeline.simulate.counters import Counters, Outcome, StepSums
from ridgeline.simulate.engine import Engine
from ridgeline.simulate.fleet import Fleet
from ridgeline_exporters.engine.baseline import StepModel
from ridgeline_exporters.engine.metrics import FINE_SECONDS, FIRST_TOKEN_SECONDS, OUTPUT_TOKENS, PROMPT_TOKENS

EPOCH_SECONDS = 1_700_000_000.0
"""Unix time at which a simulation starts unless told otherwise: decisions and conditions carry times."""
_JUDGED = (Outcome.MET, Outcome.FIRST_TOKEN_LATE, Outcome.GAPS_LATE)
"""What the engine exporters count: of a request that failed they know nothing."""


@dataclass(frozen=True, slots=True)
class Delays:
    """How late an operator learns and acts."""

    scrape_interval_seconds: float = 5.0
    rules_window_seconds: float = 45.0
    pass_interval_seconds: float = 5.0
    """Between two looks of an operator that has nothing under way."""
    act_seconds: float = 0.2
    """From a look until its orders are in force."""


class Observer:
    """Scrapes a fleet and answers with snapshots.

    Args:
        fleet: to look at.
        facts: what engines say of themselves, such as weight and KV bytes; rates in it are ignored.
        delays: how late things are seen.
        epoch_seconds: Unix time of the simulation's start.
    """

    def __init__(
        self, fleet: Fleet, facts: Signals, delays: Delays | None = None, epoch_seconds: float = EPOCH_SECONDS
    ) -> None:
        self._fleet = fleet
        self._facts = facts
        self.delays = delays or Delays()
        self.epoch_seconds = epoch_seconds
        self._scrapes: deque[tuple[float, Counters, int, StepTimes | None]] = deque()
        """Time, counters, engines that answered, and what they know of their steps."""
        self._model = StepModel()
        fleet.learn_steps(self._model)
        self._scrape(fleet.now)
        fleet.every(self.delays.scrape_interval_seconds, self._scrape)

    def snapshot(self, now: float) -> Snapshot:
        """The fleet as an operator finds it now; times in it are Unix seconds."""
        fleet = self._fleet
        engines = tuple(_state(engine, self.epoch_seconds) for engine in fleet.engines.values())
        router = RouterState(pod="router", ready=True, workers=dict(fleet.seen_roles), synchronized=True)
        return Snapshot(
            engines=engines,
            routers=(router,),
            signals=self.signals(now),
            link_bytes_per_second=fleet.settings.link_bytes_per_second,
            rules_window_seconds=self.delays.rules_window_seconds,
        )

    def signals(self, now: float) -> Signals | MetricsProblem:
        """The last evaluation of the recording rules before now."""
        interval = self.delays.scrape_interval_seconds
        seen = [scrape for scrape in self._scrapes if scrape[0] + interval / 2.0 <= now]
        if not seen:
            return MetricsProblem("NoSamples", "no engine has been scraped yet")
        time, counters, engines, steps = seen[-1]
        oldest = next(s for s in seen if s[0] + self.delays.rules_window_seconds >= time + interval / 2.0)
        facts = replace(
            self._facts,
            sampled_at=self.epoch_seconds + time,
            engines_reporting=engines,
            measured_steps=steps,
        )
        seconds = time - oldest[0]
        return _rates(facts, oldest[1], counters, seconds) if seconds > 0.0 else facts

    def _scrape(self, now: float) -> None:
        counters = self._fleet.scrape()
        steps = StepTimes.measured(self._model.terms())
        ready = sum(engine.ready for engine in self._fleet.engines.values())
        self._scrapes.append((now, counters, ready, steps))
        while self._scrapes[0][0] < now - self.delays.rules_window_seconds - 2.0 * self.delays.scrape_interval_seconds:
            self._scrapes.popleft()


def _state(engine: Engine, epoch_seconds: float) -> EngineState:
    """What an engine tells of itself: one that is not ready, nothing."""
    if not engine.ready:
        return EngineState(
            pod=engine.name,
            address=engine.name,
            role=engine.role,
            ready=False,
            terminating=engine.draining,
            unready_since=epoch_seconds + engine.died_at,
        )
    scheduler, queued = engine.scheduler, engine.scheduler.queued
    return EngineState(
        pod=engine.name,
        address=engine.name,
        role=engine.role,
        ready=True,
        terminating=engine.draining,
        running_requests=scheduler.running + queued,
        waiting_requests=queued,
        decoding_requests=len(scheduler.decodes.members),
        limit_tokens=scheduler.budget_tokens,
        maximum_tokens=engine.settings.max_num_batched_tokens,
        kv_bytes_received=engine.kv_bytes_received,
        kv_failures=float(engine.kv_failures),
        prompt_requests=float(engine.prefills_finished),
    )


def _rates(facts: Signals, before: Counters, after: Counters, seconds: float) -> Signals:
    judged = {outcome: after.outcomes[outcome] - before.outcomes[outcome] for outcome in _JUDGED}
    requests = sum(judged.values())
    late_first, late_gaps = judged[Outcome.FIRST_TOKEN_LATE], judged[Outcome.GAPS_LATE]
    gaps = differences(before.gap_buckets, after.gap_buckets)
    decode_seconds = after.decode_seconds - before.decode_seconds
    return replace(
        facts,
        requests_per_second=(after.arrivals - before.arrivals) / seconds,
        missed_ratio=_share(late_first + late_gaps, requests),
        first_token_late_ratio=_share(late_first, requests),
        gaps_late_ratio=_share(late_gaps, requests),
        decode_stall_ratio=_share(after.stall_seconds - before.stall_seconds, decode_seconds),
        time_to_first_token_p95_seconds=bucket_quantile(
            0.95, FIRST_TOKEN_SECONDS, differences(before.first_token_buckets, after.first_token_buckets)
        ),
        inter_token_p95_seconds=bucket_quantile(0.95, FINE_SECONDS, gaps),
        inter_token_p99_seconds=bucket_quantile(0.99, FINE_SECONDS, gaps),
        prompt_tokens=lengths(
            PROMPT_TOKENS,
            differences(before.prompt_buckets, after.prompt_buckets),
            after.prompt_tokens - before.prompt_tokens,
        ),
        output_tokens=lengths(
            OUTPUT_TOKENS,
            differences(before.output_buckets, after.output_buckets),
            after.output_tokens - before.output_tokens,
            dict(zip(map(float, OUTPUT_TOKENS), differences(before.outputs_longer, after.outputs_longer), strict=True)),
        ),
        decode_steps=_steps_taken(before.decode_steps, after.decode_steps, seconds),
        prefill_steps=_steps_taken(before.prefill_steps, after.prefill_steps, seconds),
        prefill=PhaseSignals(tokens_per_second=(after.prefill_tokens - before.prefill_tokens) / seconds),
        decode=PhaseSignals(tokens_per_second=(after.decode_tokens - before.decode_tokens) / seconds),
        kv_transfer_bytes_per_second=(after.kv_bytes_moved - before.kv_bytes_moved) / seconds,
        kv_transfer_failures_per_second=(after.kv_transfer_failures - before.kv_transfer_failures) / seconds,
    )


def _share(part: float, whole: float) -> float:
    """`a / (b > 0) or (b == 0)`: 0 while nothing runs."""
    return part / whole if whole > 0 else 0.0


def differences(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """What came into each bucket between two looks."""
    return [b - a for a, b in zip(before, after, strict=True)]


def _steps_taken(before: StepSums, after: StepSums, seconds: float) -> StepsTaken:
    def rate(name: str) -> float:
        return float(getattr(after, name) - getattr(before, name)) / seconds

    return StepsTaken(**{name: rate(name) for name in StepSums.__slots__})


def lengths(
    bounds: Sequence[int], counts: Sequence[int], tokens: int, longer: Mapping[float, float] | None = None
) -> Distribution | None:
    """Lengths out of buckets, the tokens of all in them, and how many grew beyond each bound; None of no request."""
    requests = sum(counts)
    cumulative = dict(zip((*map(float, bounds), inf), map(float, accumulate(counts)), strict=True))
    return distribution(cumulative, tokens / requests, longer) if requests else None


def bucket_quantile(quantile: float, bounds: Sequence[float], counts: Sequence[int]) -> float | None:
    """A quantile out of buckets, as Prometheus' `histogram_quantile` has it.

    Args:
        quantile: from 0 to 1.
        bounds: upper bounds of all buckets but the last, which has none.
        counts: what is in each bucket.

    Returns:
        Linear between the bounds of the bucket in which it lies, the largest bound in the last; None without a count.
    """
    total = sum(counts)
    if total <= 0:
        return None
    rank, below = quantile * total, 0
    for place, count in enumerate(counts):
        if count and below + count >= rank:
            if place == len(bounds):
                return bounds[-1]
            lower = bounds[place - 1] if place else 0.0
            return lower + (bounds[place] - lower) * (rank - below) / count
        below += count
    return bounds[-1]
