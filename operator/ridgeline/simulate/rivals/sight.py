"""What rivals scrape of each engine, as late as Ridgeline's operator sees its own signals (`observer.py`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.simulate.counters import Counters
from ridgeline.simulate.engine import Engine
from ridgeline.simulate.fleet import Fleet
from ridgeline.simulate.observer import Delays


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One engine at one scrape."""

    waiting: int
    """Requests (`vllm:num_requests_waiting`)."""
    kv_use: float
    """Share of the KV blocks that requests hold (`vllm:kv_cache_usage_perc`)."""
    queued_prefill_tokens: int
    """Of prompts that wait to be computed here."""
    decodes: int
    decode_kv_tokens: int
    """In the contexts of sequences that decode."""
    queued_decode_kv_tokens: int
    """In prompts whose KV was computed elsewhere and that do not decode yet."""


@dataclass(frozen=True, slots=True)
class Sample:
    """All engines at one scrape, and what the fleet had counted."""

    seconds: float
    engines: Mapping[str, EngineSample]
    """Those that answered."""
    counters: Counters


class Sight:
    """Scrapes a fleet.

    Args:
        fleet: before its first request.
        keep_seconds: samples older than this are forgotten.
        delays: how late things are seen.
    """

    def __init__(self, fleet: Fleet, keep_seconds: float, delays: Delays | None = None) -> None:
        self._fleet = fleet
        self._keep_seconds = keep_seconds
        self._interval_seconds = (delays or Delays()).scrape_interval_seconds
        self._samples: deque[Sample] = deque()
        self._scrape(fleet.now)
        fleet.every(self._interval_seconds, self._scrape)

    def window(self, now: float, seconds: float) -> list[Sample]:
        """Samples of the last so many seconds that are known now: those at least half an interval old."""
        known = now - self._interval_seconds / 2.0
        return [s for s in self._samples if known - seconds <= s.seconds <= known]

    def latest(self, now: float) -> Sample | None:
        """The newest sample that is known now."""
        known = self.window(now, self._keep_seconds)
        return known[-1] if known else None

    def _scrape(self, now: float) -> None:
        fleet = self._fleet
        fleet.settle()
        engines = {e.name: _sample(e) for e in fleet.engines.values() if e.ready and not e.draining}
        self._samples.append(Sample(now, engines, fleet.counters.copy()))
        while self._samples[0].seconds < now - self._keep_seconds - 2.0 * self._interval_seconds:
            self._samples.popleft()


def _sample(engine: Engine) -> EngineSample:
    scheduler = engine.scheduler
    prompts = [r for r in scheduler.waiting if r.kv_source is None]
    pulled = [r for r in scheduler.waiting if r.kv_source is not None]
    pulled += [*scheduler.loading, *(request for _, request in scheduler.loaded)]
    return EngineSample(
        waiting=scheduler.queued,
        kv_use=1.0 - scheduler.cache.free / scheduler.cache.total,
        queued_prefill_tokens=sum(r.known_tokens for r in prompts),
        decodes=len(scheduler.decodes),
        decode_kv_tokens=scheduler.decodes.kv_tokens,
        queued_decode_kv_tokens=sum(r.known_tokens for r in pulled),
    )
