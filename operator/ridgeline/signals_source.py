"""Signals of all fleets, read once per interval and shared by their reconciles."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from ridgeline.decide.snapshot import MetricsProblem, Signals

Key = tuple[str, str]
"""Namespace and name of a fleet."""

NOT_READ_YET = MetricsProblem("NotReadYet", "Prometheus has not been asked yet")

log = logging.getLogger(__name__)


class Reader(Protocol):
    """Reads the signals of all fleets, such as `observe.metrics.MetricsReader`."""

    async def read(self, now: float) -> Mapping[Key, Signals | MetricsProblem]:
        """Signals of every fleet at `now`, Unix seconds."""
        ...


class SharedSignals:
    """The last answer of a reader, and nothing older."""

    def __init__(
        self,
        reader: Reader,
        *,
        interval_seconds: float,
        stale_after_seconds: float,
        clock: Callable[[], float],
        on_read: Callable[[], None] = lambda: None,
    ) -> None:
        """Set up without reading.

        Args:
            reader: asked once per interval.
            interval_seconds: pause between two reads.
            stale_after_seconds: age at which an answer, or the samples in it, count no longer.
            clock: Unix seconds.
            on_read: called after each read, to have the fleets looked at while the signals are fresh.
        """
        self._reader = reader
        self._interval = interval_seconds
        self._stale_after = stale_after_seconds
        self._clock = clock
        self._on_read = on_read
        self._answer: Mapping[Key, Signals | MetricsProblem] | None = None
        self._read_at = 0.0

    async def run(self) -> None:
        """Read for ever. A reader that fails leaves the last answer to grow old."""
        while True:
            now = self._clock()
            try:
                self._answer = await self._reader.read(now)
                self._read_at = now
            except Exception:
                log.exception("the signals could not be read")
            self._on_read()
            await asyncio.sleep(self._interval)

    def of(self, key: Key, now: float) -> Signals | MetricsProblem:
        """Signals of one fleet, or why there are none that count."""
        if self._answer is None:
            return NOT_READ_YET
        if (age := now - self._read_at) > self._stale_after:
            return MetricsProblem("StaleSamples", f"Prometheus was last read {age:.0f} s ago; see the operator's log")
        found = self._answer[key]
        if isinstance(found, Signals) and found.sampled_at is not None and now - found.sampled_at > self._stale_after:
            return MetricsProblem(
                "StaleSamples",
                f"the oldest engine sample is {now - found.sampled_at:.0f} s old (limit {self._stale_after:.0f} s); "
                "check the engine targets in Prometheus",
            )
        return found
