"""What the exporter publishes: the families, the plain numbers behind them, and the collector that reads them.

The busy loop only adds to plain numbers; nothing is locked or formatted there. A scrape copies them on its own thread.
A copy can fall between two additions of one step; the next scrape has both.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Protocol

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ridgeline_exporters.engine.baseline import StepModel
from ridgeline_exporters.engine.metric_families import FAMILIES, PREFIX
from ridgeline_exporters.metric_family import Sample

PHASES = ("prefill", "decode")
BYTE_KINDS = ("weights", "kv_read", "kv_write", "activations")
STEP_KINDS = ("prefill", "decode", "mixed")
OUTCOMES = ("met", "first_token_late", "gaps_late")
STATES = ("waiting", "prefilling", "decoding", "transferring")

FINE_SECONDS = (
    0.001, 0.002, 0.003, 0.004, 0.006, 0.008, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.08,
    0.1, 0.125, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
FIRST_TOKEN_SECONDS = (
    0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8,
    1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip
# Each bound is about the square root of two times the last, so a length is known to 20 %.
PROMPT_TOKENS = (
    16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192,
    12288, 16384, 24576, 32768, 49152, 65536, 98304, 131072, 262144, 524288, 1048576,
)  # fmt: skip
OUTPUT_TOKENS = (
    1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 12288, 16384, 24576, 32768, 65536, 131072,
)  # fmt: skip


def longer_than(counts: Sequence[int]) -> list[int]:
    """How many lie above each bound of a histogram, from its counts per bucket; the last bucket has no bound."""
    return list(accumulate(reversed(counts[1:])))[::-1]


class Histogram:
    """Counts per bucket, not cumulative, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, as often as it occurred."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def cumulative(self) -> tuple[list[tuple[str, float]], float]:
        """(upper bound, count up to it) pairs and the sum, as the exposition wants them."""
        counts, total = self.counts[:], self.total
        buckets: list[tuple[str, float]] = []
        running = 0
        for bound, count in zip((*self.bounds, float("inf")), counts, strict=True):
            running += count
            buckets.append(("+Inf" if bound == float("inf") else repr(float(bound)), float(running)))
        return buckets, total


class Totals:
    """Everything that only grows. Written by the busy loop alone."""

    def __init__(self) -> None:
        self.tokens = dict.fromkeys(PHASES, 0)
        self.flops = dict.fromkeys(PHASES, 0.0)
        self.bytes = {phase: dict.fromkeys(BYTE_KINDS, 0.0) for phase in PHASES}
        self.busy_seconds = dict.fromkeys(PHASES, 0.0)
        self.stall_seconds = 0.0
        self.stall_sequence_seconds = 0.0
        self.decode_seconds = 0.0
        self.requests = dict.fromkeys(OUTCOMES, 0)
        self.prefills_finished = 0
        self.external_prompt_tokens = 0
        self.errors = 0
        self.exporter_seconds = 0.0
        self.steps = {kind: Histogram(FINE_SECONDS) for kind in STEP_KINDS}
        self.step_terms = {kind: dict.fromkeys(StepModel.TERMS[1:], 0) for kind in STEP_KINDS}
        """What steps held, by the terms of the step model; of the fixed one, the histograms have the number."""
        self.stalls = Histogram(FINE_SECONDS)
        self.gaps = Histogram(FINE_SECONDS)
        self.first_tokens = Histogram(FIRST_TOKEN_SECONDS)
        self.prompt_tokens = Histogram(PROMPT_TOKENS)
        self.output_tokens = Histogram(OUTPUT_TOKENS)
        self.gone_outputs = [0] * (len(OUTPUT_TOKENS) + 1)
        """Requests that the engine let go of, finished or cut, by the output tokens that they had got."""

    def memory_bytes(self, phase: str) -> float:
        """Bytes of a phase, all kinds."""
        return sum(self.bytes[phase].values())


class Source(Protocol):
    """What the collector reads."""

    @property
    def totals(self) -> Totals:
        """Everything that only grows."""

    def outputs_longer(self) -> list[int]:
        """Outputs that have become longer than each of `OUTPUT_TOKENS`, ended or not; no number ever falls."""

    def gauges(self) -> Mapping[str, Iterable[Sample]]:
        """Gauge name → (label values, value), with nothing for what is unknown."""


class EngineCollector(Collector):
    """Publishes one engine's numbers."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def describe(self) -> Iterable[Metric]:
        """Nothing: spares a collection at registration."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Every family, counters and histograms with every label combination from the start."""
        counters = _counters(self._source.totals, self._source.outputs_longer())
        histograms = _histograms(self._source.totals)
        gauges = self._source.gauges()
        for family in FAMILIES:
            if family.kind == "histogram":
                histogram = HistogramMetricFamily(PREFIX + family.name, family.help, labels=family.labels)
                for values, counts in histograms[family.name]:
                    buckets, total = counts.cumulative()
                    histogram.add_metric(values, buckets, total)
                yield histogram
            else:
                samples = counters[family.name] if family.kind == "counter" else gauges.get(family.name, ())
                yield family.metric(PREFIX, samples)


def _counters(totals: Totals, outputs_longer: Sequence[int]) -> Mapping[str, list[Sample]]:
    def by(values: Mapping[str, float]) -> list[Sample]:
        return [((label,), float(value)) for label, value in values.items()]

    def one(value: float) -> list[Sample]:
        return [((), float(value))]

    return {
        "tokens_total": by(totals.tokens),
        "flops_total": by(totals.flops),
        "memory_bytes_total": [
            ((phase, kind), value) for phase, kinds in totals.bytes.items() for kind, value in kinds.items()
        ],
        "busy_seconds_total": by(totals.busy_seconds),
        "decode_stall_seconds_total": one(totals.stall_seconds),
        "decode_stall_sequence_seconds_total": one(totals.stall_sequence_seconds),
        "decode_seconds_total": one(totals.decode_seconds),
        "requests_total": by(totals.requests),
        "outputs_longer_total": [
            ((str(tokens),), float(count)) for tokens, count in zip(OUTPUT_TOKENS, outputs_longer, strict=True)
        ],
        "prefills_finished_total": one(totals.prefills_finished),
        "external_prompt_tokens_total": one(totals.external_prompt_tokens),
        "step_terms_total": [
            ((kind, term), float(held))
            for kind, terms in totals.step_terms.items()
            for term, held in {StepModel.TERMS[0]: sum(totals.steps[kind].counts), **terms}.items()
        ],
        "exporter_errors_total": one(totals.errors),
        "exporter_seconds_total": one(totals.exporter_seconds),
    }


def _histograms(totals: Totals) -> Mapping[str, list[tuple[tuple[str, ...], Histogram]]]:
    return {
        "step_seconds": [((kind,), histogram) for kind, histogram in totals.steps.items()],
        "decode_stall_seconds": [((), totals.stalls)],
        "decode_gap_seconds": [((), totals.gaps)],
        "time_to_first_token_seconds": [((), totals.first_tokens)],
        "request_prompt_tokens": [((), totals.prompt_tokens)],
        "request_output_tokens": [((), totals.output_tokens)],
    }
