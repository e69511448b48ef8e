"""Samples of the recording rules → Signals of each fleet. Pure: no network, no clock.

What is not there, is NaN or is infinite becomes None; a zero stays a zero. Samples that are too old,
or that carry no time at all, are a problem with a reason, so that nothing is decided on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ridgeline.decide.snapshot import Distribution, MetricsProblem, PhaseSignals, Signals, StepsTaken, StepTimes
from ridgeline.observe.distributions import distribution

FleetKey = tuple[str, str]
"""Namespace and name of a fleet."""

RULES_QUERY = '{__name__=~"fleet:ridgeline_.+"}'
"""Every recorded series of every fleet: one instant query."""

_KEPT_LABELS = ("phase", "le", "kind", "term", "tokens")

SAMPLE_TIME = "fleet:ridgeline_sample_timestamp_seconds"

NO_SAMPLES = "NoSamples"
STALE_SAMPLES = "StaleSamples"
CLOCKS_DISAGREE = "ClocksDisagree"
PROMETHEUS_UNREACHABLE = "PrometheusUnreachable"


@dataclass(frozen=True, slots=True)
class Sample:
    """One element of an instant vector."""

    labels: Mapping[str, str]
    """With the metric's name as `__name__`."""
    value: float


class FleetSignals(Mapping[FleetKey, Signals | MetricsProblem]):
    """Signals of all fleets. Every fleet has an answer: one without samples has the problem that says so."""

    def __init__(self, known: Mapping[FleetKey, Signals | MetricsProblem], otherwise: MetricsProblem) -> None:
        self._known = dict(known)
        self._otherwise = otherwise

    def __getitem__(self, fleet: FleetKey) -> Signals | MetricsProblem:
        return self._known.get(fleet, self._otherwise)

    def __contains__(self, fleet: object) -> bool:
        return fleet in self._known

    def __iter__(self) -> Iterator[FleetKey]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


@dataclass(slots=True)
class _FleetSamples:
    """Samples of one fleet, by name and by the labels that the rule keeps, in the order of `_KEPT_LABELS`."""

    values: dict[tuple[str, str], float] = field(default_factory=dict)

    def get(self, rule: str, label: str = "") -> float | None:
        return self.values.get((rule, label))

    def by_label(self, rule: str) -> dict[str, float]:
        return {label: value for (name, label), value in self.values.items() if name == rule}


def parse(samples: Iterable[Sample], now: float, stale_after_seconds: float) -> FleetSignals:
    """Signals of every fleet in an answer to `RULES_QUERY`.

    Args:
        samples: the answer.
        now: Unix seconds of this cycle.
        stale_after_seconds: age at which the oldest engine sample is too old; five scrape intervals are sensible.
    """
    fleets: dict[FleetKey, _FleetSamples] = {}
    for sample in samples:
        labels = sample.labels
        if "namespace" not in labels or "fleet" not in labels:
            continue
        fleet = fleets.setdefault((labels["namespace"], labels["fleet"]), _FleetSamples())
        rule = labels.get("__name__", "")
        label = " ".join(labels[kept] for kept in _KEPT_LABELS if kept in labels)
        if math.isfinite(sample.value):
            # Two Prometheus replicas behind one address give two equal series: the first answers.
            fleet.values.setdefault((rule, label), sample.value)
    return FleetSignals(
        {key: _signals_or_problem(fleet, now, stale_after_seconds) for key, fleet in fleets.items()},
        otherwise=MetricsProblem(
            NO_SAMPLES,
            "Prometheus has no recorded series of this fleet; check that it scrapes the engines' exporter port"
            " and has loaded Ridgeline's recording rules",
        ),
    )


def _signals_or_problem(fleet: _FleetSamples, now: float, stale_after_seconds: float) -> Signals | MetricsProblem:
    sampled_at = fleet.get(SAMPLE_TIME)
    if sampled_at is None:
        return MetricsProblem(
            NO_SAMPLES,
            "no engine of this fleet reports metrics to Prometheus; check that engines are ready"
            " and that Prometheus may scrape their exporter port",
        )
    age = now - sampled_at
    if age > stale_after_seconds:
        return MetricsProblem(
            STALE_SAMPLES,
            f"the oldest engine sample is {age:.0f} s old (limit {stale_after_seconds:.0f} s);"
            " check the engine targets and rule evaluation in Prometheus, and its clock",
        )
    if age < -stale_after_seconds:
        return MetricsProblem(
            CLOCKS_DISAGREE,
            f"engine samples lie {-age:.0f} s in the future (limit {stale_after_seconds:.0f} s);"
            " synchronize the clocks of the nodes that run Prometheus and the operator",
        )
    return _signals(fleet, sampled_at)


def _signals(fleet: _FleetSamples, sampled_at: float) -> Signals:
    reporting = fleet.get("fleet:ridgeline_engines_reporting:count")
    return Signals(
        sampled_at=sampled_at,
        engines_reporting=None if reporting is None else round(reporting),
        requests_per_second=fleet.get("fleet:ridgeline_requests_arriving:rate"),
        missed_ratio=fleet.get("fleet:ridgeline_requests_missed:ratio"),
        first_token_late_ratio=fleet.get("fleet:ridgeline_requests_first_token_late:ratio"),
        gaps_late_ratio=fleet.get("fleet:ridgeline_requests_gaps_late:ratio"),
        decode_stall_ratio=fleet.get("fleet:ridgeline_decode_stall:ratio"),
        time_to_first_token_p95_seconds=fleet.get("fleet:ridgeline_time_to_first_token_seconds:p95"),
        inter_token_p95_seconds=fleet.get("fleet:ridgeline_decode_gap_seconds:p95"),
        inter_token_p99_seconds=fleet.get("fleet:ridgeline_decode_gap_seconds:p99"),
        prompt_tokens=_lengths(fleet, "fleet:ridgeline_request_prompt_tokens"),
        output_tokens=_lengths(
            fleet, "fleet:ridgeline_request_output_tokens", fleet.by_label("fleet:ridgeline_outputs_longer:rate")
        ),
        prefill=_phase(fleet, "prefill"),
        decode=_phase(fleet, "decode"),
        ridge_flops_per_byte=fleet.get("fleet:ridgeline_ridge_flops_per_byte"),
        measured_steps=StepTimes.measured(fleet.by_label("fleet:ridgeline_step_model:seconds")),
        decode_steps=_steps_taken(fleet, "decode"),
        prefill_steps=_steps_taken(fleet, "prefill", "mixed"),
        peak_flops=fleet.get("fleet:ridgeline_peak_flops"),
        peak_memory_bytes_per_second=fleet.get("fleet:ridgeline_peak_memory_bytes_per_second"),
        weight_bytes=fleet.get("fleet:ridgeline_weight_bytes"),
        kv_bytes_per_token=fleet.get("fleet:ridgeline_kv_bytes_per_token"),
        kv_capacity_tokens=fleet.get("fleet:ridgeline_kv_capacity_tokens"),
        flops_per_token=fleet.get("fleet:ridgeline_flops_per_token"),
        kv_transfer_bytes_per_second=fleet.get("fleet:ridgeline_kv_transfer_bytes:rate"),
        kv_transfer_failures_per_second=fleet.get("fleet:ridgeline_kv_transfer_failures:rate"),
    )


def _phase(fleet: _FleetSamples, phase: str) -> PhaseSignals:
    return PhaseSignals(
        tokens_per_second=fleet.get("fleet:ridgeline_tokens:rate", phase),
        arithmetic_intensity_flops_per_byte=fleet.get("fleet:ridgeline_arithmetic_intensity:flops_per_byte", phase),
        memory_bandwidth_utilization_ratio=fleet.get("fleet:ridgeline_memory_bandwidth_utilization:ratio", phase),
        compute_utilization_ratio=fleet.get("fleet:ridgeline_compute_utilization:ratio", phase),
    )


def _steps_taken(fleet: _FleetSamples, *kinds: str) -> StepsTaken | None:
    """Steps of these kinds together; None when anything of one of them is missing."""

    def total(rule: str, term: str = "") -> float | None:
        rates = [fleet.get(rule, f"{kind} {term}".rstrip()) for kind in kinds]
        known = [rate for rate in rates if rate is not None]
        return sum(known) if len(known) == len(rates) else None

    terms = ("fixed", "decode_sequence", "kv_token", "prefill_token", "prefill_pair")
    rates = [total("fleet:ridgeline_step_seconds:rate"), *(total("fleet:ridgeline_step_terms:rate", t) for t in terms)]
    known = [rate for rate in rates if rate is not None]
    return StepsTaken(*known) if len(known) == len(rates) else None


def _lengths(fleet: _FleetSamples, rule: str, longer: Mapping[str, float] | None = None) -> Distribution | None:
    try:
        cumulative = {float(bound): rate for bound, rate in fleet.by_label(f"{rule}_bucket:rate").items()}
        grown = {float(bound): rate for bound, rate in (longer or {}).items()}
    except ValueError:
        return None  # not a bucket of ours: no distribution rather than a wrong one
    return distribution(cumulative, fleet.get(f"{rule}:mean"), grown)
