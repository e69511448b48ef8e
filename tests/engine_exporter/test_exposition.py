from __future__ import annotations

import subprocess
from typing import get_args

import pytest
from prometheus_client import Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ridgeline_exporters.engine.baseline import StepModel
from ridgeline_exporters.engine.metric_families import FAMILIES, PREFIX
from ridgeline_exporters.engine.metrics import OUTPUT_TOKENS, Histogram
from ridgeline_exporters.engine.requests import Outcome
from ridgeline_exporters.engine.steps import StepKind
from ridgeline_exporters.metric_family import Family
from ridgeline_exporters.roofline.work import Phase
from tests.engine_exporter.synthetic import Bench, SyntheticFinishReason, step, token
from tests.tools.programs import promtool

PHASES = {("prefill",), ("decode",)}
COMBINATIONS = {
    "tokens_total": PHASES,
    "flops_total": PHASES,
    "busy_seconds_total": PHASES,
    "memory_bytes_total": {
        (phase, kind) for phase in ("prefill", "decode") for kind in ("weights", "kv_read", "kv_write", "activations")
    },
    "outputs_longer_total": {(str(tokens),) for tokens in OUTPUT_TOKENS},
    "requests_total": {("met",), ("first_token_late",), ("gaps_late",)},
    "step_seconds": {("prefill",), ("decode",), ("mixed",)},
    "step_terms_total": {(kind, term) for kind in ("prefill", "decode", "mixed") for term in StepModel.TERMS},
    "requests": {("waiting",), ("prefilling",), ("decoding",), ("transferring",)},
    "compute_utilization_ratio": PHASES,
    "memory_bandwidth_utilization_ratio": PHASES,
}


def exposition(bench: Bench) -> str:
    return generate_latest(bench.exporter.registry).decode()


def families(text: str) -> dict[tuple[str, str], Metric]:
    """Families by name without `_total` and type: `requests_total` and `requests` differ in the type only."""
    return {(family.name, family.type): family for family in text_string_to_metric_families(text)}


def key(family: Family) -> tuple[str, str]:
    return PREFIX + family.name.removesuffix("_total"), family.kind


def busy() -> Bench:
    bench = Bench()
    bench.scheduler.running = [bench.request("a", 100)]
    bench.run(step(new={"a": (100, 0, 100)}), 0.1, token("a"))
    bench.run(step(cached={"a": (100, 1)}), 0.01, token("a", finish_reason=SyntheticFinishReason.LENGTH))
    return bench


def test_every_family_is_exposed_with_its_type_and_help() -> None:
    found = families(exposition(busy()))
    for family in FAMILIES:
        exposed = found.pop(key(family))
        assert exposed.documentation == family.help
        for sample in exposed.samples:
            assert set(sample.labels) - {"le"} == set(family.labels)
    assert not found


def test_counters_and_histograms_are_born_at_zero_with_every_label() -> None:
    found = families(exposition(Bench()))
    for family in FAMILIES:
        if family.kind == "gauge":
            continue
        samples = found[key(family)].samples
        assert samples
        assert all(sample.value == 0.0 for sample in samples)


@pytest.mark.parametrize("name", COMBINATIONS)
def test_each_label_combination_is_there_before_the_first_step(name: str) -> None:
    family = next(family for family in FAMILIES if family.name == name)
    samples = families(exposition(Bench()))[key(family)].samples
    assert {tuple(sample.labels[label] for label in family.labels) for sample in samples} == COMBINATIONS[name]


def test_names_of_the_code_are_names_of_the_exposition() -> None:
    totals = Bench().totals
    assert set(totals.tokens) == set(get_args(Phase))
    assert set(totals.steps) == set(get_args(StepKind))
    assert set(totals.requests) == set(Outcome)


def test_what_is_unknown_is_absent_and_not_zero() -> None:
    text = exposition(Bench(shape=None, roof=None))
    for name in (
        "peak_flops",
        "ridge_flops_per_byte",
        "weight_bytes",
        "compute_utilization_ratio{",
        "step_model_seconds{",
    ):
        assert f"\n{PREFIX}{name}" not in text
    assert 'coverage="partial"' in text


def test_a_histogram_counts_up_to_and_with_its_bounds() -> None:
    histogram = Histogram((1.0, 2.0))
    for value, times in ((1.0, 1), (1.5, 3), (9.0, 2)):
        histogram.observe(value, times)
    assert histogram.cumulative() == ([("1.0", 1.0), ("2.0", 4.0), ("+Inf", 6.0)], 1.0 + 4.5 + 18.0)


def test_promtool_finds_nothing_to_correct() -> None:
    result = subprocess.run(
        [str(promtool()), "check", "metrics"], input=exposition(busy()), capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr + result.stdout
