"""How a simulated fleet did: each request judged by itself, and the course of the fleet interval by interval.

Requests are judged as the engine exporter judges them (a late first token, or more than 5 % of a request's own gaps
late), over all that were offered: one that failed, was refused or had not ended counts as missed. Goodput is the rate
of requests that met their objectives. A million requests take some 40 MB: their numbers are kept, they are not.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import ceil
from typing import Any

from ridgeline.api.fleet import Role
from ridgeline.decide.snapshot import Distribution
from ridgeline.simulate.counters import Counters, Outcome
from ridgeline.simulate.fleet import Fleet
from ridgeline.simulate.observer import bucket_quantile, differences, lengths
from ridgeline.simulate.phase_use import PhaseUse
from ridgeline.simulate.request import Request
from ridgeline_exporters.engine.metrics import FINE_SECONDS, OUTPUT_TOKENS, PROMPT_TOKENS

QUANTILES = (0.5, 0.9, 0.95, 0.99)
_CODES = tuple(Outcome)
_NOT_PLAIN = frozenset({"gap_seconds_buckets", "prompt_tokens", "output_tokens"})


@dataclass(slots=True)
class Interval:
    """What happened in one interval of the timeline."""

    start_seconds: float
    end_seconds: float
    mixed: int
    """Engines by role, at the end."""
    prefill: int
    decode: int
    token_budget: int | None
    """Least budget of mixed engines, at the end."""
    running: int
    """Requests on the engines, at the end."""
    waiting: int
    stall_ratio: float | None
    """Share of decode time that prefills took; None where nothing was decoded."""
    gap_p50_seconds: float | None
    gap_p95_seconds: float | None
    gap_p99_seconds: float | None
    gap_seconds_buckets: list[int]
    preemptions: int
    kv_bytes_moved: float
    engine_seconds: dict[str, float]
    """Time of engines that were ready, by role label."""
    prefill_use: PhaseUse | None
    """What the phase took of the engines; None where the fleet does not know its model."""
    decode_use: PhaseUse | None
    arrived: int = 0
    """Requests that arrived in it, and how those ended."""
    outcomes: dict[str, int] = field(default_factory=dict)
    first_token_p50_seconds: float | None = None
    """Of the requests that arrived in it."""
    first_token_p95_seconds: float | None = None
    prompt_tokens: Distribution = ()
    """Lengths of the requests that arrived in it; empty where none did."""
    output_tokens: Distribution = ()

    def plain(self) -> dict[str, Any]:
        """Plain values for JSON: all but the buckets, of which the quantiles of gaps are made, and the lengths."""
        values = {name: getattr(self, name) for name in self.__slots__ if name not in _NOT_PLAIN}
        return {name: asdict(value) if isinstance(value, PhaseUse) else value for name, value in values.items()}


class Results:
    """Collects what a simulation comes to.

    Args:
        interval_seconds: of the timeline.
        percentile: of the latencies, beside those of `QUANTILES`.

    Raises:
        ValueError: the interval is not above 0.
    """

    def __init__(self, interval_seconds: float = 60.0, percentile: int = 95) -> None:
        if not interval_seconds > 0.0:
            raise ValueError(f"a timeline needs an interval, not {interval_seconds} s")
        self.interval_seconds = interval_seconds
        self._quantiles = sorted({*QUANTILES, percentile / 100.0})
        self._arrived = array("d")
        self._first_token = array("d")
        """Seconds from arrival to the first token; -1 where there was none."""
        self._gap_mean = array("d")
        self._outcome = array("b")
        self._prompt = array("i")
        self._output = array("i")
        self._timeline: list[Interval] = []
        self._before = Counters()
        self._fleet: Fleet | None = None

    def watch(self, fleet: Fleet) -> None:
        """Look at a fleet at the end of every interval; before its first request."""
        self._fleet = fleet
        fleet.every(self.interval_seconds, self._mark)

    def done(self, request: Request, outcome: Outcome, now: float) -> None:
        """Take in a request that has ended: hand this to the fleet."""
        first = request.first_token_at
        self._arrived.append(request.arrived_at)
        self._first_token.append(-1.0 if first is None else first - request.arrived_at)
        gaps = request.gaps if outcome not in (Outcome.FAILED, Outcome.REFUSED) else 0
        self._gap_mean.append((now - first) / gaps if gaps and first is not None else -1.0)
        self._outcome.append(_CODES.index(outcome))
        self._prompt.append(request.prompt_tokens)
        self._output.append(request.output_tokens)

    # ------------------------------------------------------------ answers

    def attainment(self, from_seconds: float = 0.0) -> float | None:
        """Share of the requests that met their objectives, of those that arrived then or later; None without any."""
        met, offered = 0, self._offered(from_seconds)
        code = _CODES.index(Outcome.MET)
        for arrived, outcome in zip(self._arrived, self._outcome, strict=True):
            met += outcome == code and arrived >= from_seconds
        return met / offered if offered else None

    def summary(self) -> dict[str, Any]:
        """Everything but the timeline; plain values for JSON."""
        fleet = self._watched()
        counters = fleet.counters
        ended = {str(outcome): self._outcome.count(place) for place, outcome in enumerate(_CODES)}
        seconds = fleet.now
        gaps = counters.gap_buckets
        fleet.count_engine_time()
        uses = _uses(fleet, Counters())
        return {
            "seconds": seconds,
            "requests": counters.arrivals,
            "outcomes": ended | {"unfinished": counters.arrivals - len(self._outcome)},
            "attainment": self.attainment(),
            "goodput_requests_per_second": ended["met"] / seconds if seconds > 0.0 else None,
            "time_to_first_token_seconds": self._exact([value for value in self._first_token if value >= 0.0]),
            "mean_gap_seconds": self._exact([value for value in self._gap_mean if value >= 0.0]),
            "gap_seconds": {_key(q): bucket_quantile(q, FINE_SECONDS, gaps) for q in self._quantiles},
            "stall_ratio": counters.stall_seconds / counters.decode_seconds if counters.decode_seconds else None,
            "engine_seconds": {str(role): time for role, time in counters.engine_seconds.items()},
            "prefill_use": asdict(uses[0]) if uses else None,
            "decode_use": asdict(uses[1]) if uses else None,
            "prefill_tokens": counters.prefill_tokens,
            "decode_tokens": counters.decode_tokens,
            "cached_tokens": counters.cached_tokens,
            "kv_bytes_moved": counters.kv_bytes_moved,
            "kv_transfer_failures": counters.kv_transfer_failures,
            "preemptions": counters.preemptions,
        }

    def timeline(self) -> list[Interval]:
        """The intervals, the last one cut where the simulation ended."""
        fleet = self._watched()
        intervals = list(self._timeline)
        if not intervals or fleet.now > intervals[-1].end_seconds:
            intervals.append(self._interval(fleet, fleet.now))
        first_tokens: list[list[float]] = [[] for _ in intervals]
        prompts, outputs = [_Lengths(PROMPT_TOKENS) for _ in intervals], [_Lengths(OUTPUT_TOKENS) for _ in intervals]
        for interval in intervals:
            interval.arrived, interval.outcomes = 0, dict.fromkeys(map(str, Outcome), 0)
        ends = [interval.end_seconds for interval in intervals]
        rows = zip(self._arrived, self._first_token, self._outcome, self._prompt, self._output, strict=True)
        for arrived, first, code, prompt, output in rows:
            place = min(bisect_left(ends, arrived), len(intervals) - 1)
            intervals[place].arrived += 1
            intervals[place].outcomes[_CODES[code]] += 1
            prompts[place].add(prompt)
            outputs[place].add(output)
            if first >= 0.0:
                first_tokens[place].append(first)
        for interval, values in zip(intervals, first_tokens, strict=True):
            values.sort()
            interval.first_token_p50_seconds = exact_quantile(0.5, values)
            interval.first_token_p95_seconds = exact_quantile(0.95, values)
        for interval, prompt_lengths, output_lengths in zip(intervals, prompts, outputs, strict=True):
            interval.prompt_tokens, interval.output_tokens = prompt_lengths.seen(), output_lengths.seen()
        return intervals

    def to_json(self) -> str:
        """Summary and timeline; the same simulation gives the same bytes."""
        intervals = [interval.plain() for interval in self.timeline()]
        return json.dumps({"summary": self.summary(), "timeline": intervals}, indent=1, sort_keys=True) + "\n"

    # ------------------------------------------------------------ parts

    def _exact(self, values: list[float]) -> dict[str, float | None]:
        values.sort()
        return {_key(quantile): exact_quantile(quantile, values) for quantile in self._quantiles}

    def _watched(self) -> Fleet:
        if self._fleet is None:
            raise ValueError("results of no fleet: call `watch` before the simulation runs")
        return self._fleet

    def _offered(self, from_seconds: float) -> int:
        if from_seconds <= 0.0:
            return self._watched().counters.arrivals
        late = sum(arrived >= from_seconds for arrived in self._arrived)
        return late + self._watched().counters.arrivals - len(self._arrived)

    def _mark(self, now: float) -> None:
        fleet = self._watched()
        fleet.settle()
        self._timeline.append(self._interval(fleet, now))
        self._before = fleet.counters.copy()

    def _interval(self, fleet: Fleet, now: float) -> Interval:
        fleet.count_engine_time()
        engines, counters, before = fleet.engines.values(), fleet.counters, self._before
        roles = [engine.role for engine in engines if engine.ready and not engine.draining]
        budgets = [engine.scheduler.budget_tokens for engine in engines if engine.role is Role.MIXED]
        decode_seconds = counters.decode_seconds - before.decode_seconds
        buckets = differences(before.gap_buckets, counters.gap_buckets)
        times, times_before = counters.engine_seconds, before.engine_seconds
        prefill_use, decode_use = _uses(fleet, before) or (None, None)
        return Interval(
            start_seconds=self._timeline[-1].end_seconds if self._timeline else 0.0,
            end_seconds=now,
            mixed=roles.count(Role.MIXED),
            prefill=roles.count(Role.PREFILL),
            decode=roles.count(Role.DECODE),
            token_budget=min(budgets) if budgets else None,
            running=sum(engine.scheduler.running for engine in engines),
            waiting=sum(engine.scheduler.queued for engine in engines),
            stall_ratio=(counters.stall_seconds - before.stall_seconds) / decode_seconds if decode_seconds else None,
            gap_p50_seconds=bucket_quantile(0.5, FINE_SECONDS, buckets),
            gap_p95_seconds=bucket_quantile(0.95, FINE_SECONDS, buckets),
            gap_p99_seconds=bucket_quantile(0.99, FINE_SECONDS, buckets),
            gap_seconds_buckets=buckets,
            preemptions=counters.preemptions - before.preemptions,
            kv_bytes_moved=counters.kv_bytes_moved - before.kv_bytes_moved,
            engine_seconds={str(role): times[role] - times_before[role] for role in Role},
            prefill_use=prefill_use,
            decode_use=decode_use,
        )


def exact_quantile(quantile: float, ordered: Sequence[float]) -> float | None:
    """The smallest value that at least so large a share of them does not exceed; None without values."""
    return ordered[max(0, ceil(quantile * len(ordered)) - 1)] if ordered else None


class _Lengths:
    """Lengths of requests as an operator sees them, by the buckets of the exporters."""

    __slots__ = ("_bounds", "_counts", "_tokens")

    def __init__(self, bounds: Sequence[int]) -> None:
        self._bounds, self._counts, self._tokens = bounds, [0] * (len(bounds) + 1), 0

    def add(self, tokens: int) -> None:
        """Count one."""
        self._counts[bisect_left(self._bounds, tokens)] += 1
        self._tokens += tokens

    def seen(self) -> Distribution:
        """All of them; empty without any."""
        return lengths(self._bounds, self._counts, self._tokens) or ()


def _uses(fleet: Fleet, before: Counters) -> tuple[PhaseUse, PhaseUse] | None:
    """What prefill and decode took since then."""
    if fleet.work is None:
        return None
    counters = fleet.counters
    return fleet.work.use(before.phases, counters.phases, counters.decode_seconds - before.decode_seconds)


def _key(quantile: float) -> str:
    return f"p{quantile * 100:g}"
