"""Samples → Signals: what is missing is None, what is zero is zero, what is old is a problem."""

import math

import pytest

from ridgeline.decide.snapshot import MetricsProblem, PhaseSignals, Signals, StepsTaken, StepTimes
from ridgeline.observe.signals import FleetSignals, Sample, parse

NOW = 1_000_000.0
CHAT = ("default", "chat")


def sample(name: str, value: float, fleet: tuple[str, str] = CHAT, **labels: str) -> Sample:
    return Sample({"__name__": f"fleet:ridgeline_{name}", "namespace": fleet[0], "fleet": fleet[1], **labels}, value)


def fresh(*samples: Sample, age: float = 3.0) -> FleetSignals:
    return parse([sample("sample_timestamp_seconds", NOW - age), *samples], NOW, stale_after_seconds=15)


def signals(*samples: Sample) -> Signals:
    result = fresh(*samples)[CHAT]
    assert isinstance(result, Signals)
    return result


def problem(answers: FleetSignals, fleet: tuple[str, str] = CHAT) -> MetricsProblem:
    result = answers[fleet]
    assert isinstance(result, MetricsProblem)
    return result


SCALARS = [
    ("engines_reporting:count", "engines_reporting"),
    ("requests_arriving:rate", "requests_per_second"),
    ("requests_missed:ratio", "missed_ratio"),
    ("requests_first_token_late:ratio", "first_token_late_ratio"),
    ("requests_gaps_late:ratio", "gaps_late_ratio"),
    ("decode_stall:ratio", "decode_stall_ratio"),
    ("time_to_first_token_seconds:p95", "time_to_first_token_p95_seconds"),
    ("decode_gap_seconds:p95", "inter_token_p95_seconds"),
    ("decode_gap_seconds:p99", "inter_token_p99_seconds"),
    ("ridge_flops_per_byte", "ridge_flops_per_byte"),
    ("peak_flops", "peak_flops"),
    ("peak_memory_bytes_per_second", "peak_memory_bytes_per_second"),
    ("weight_bytes", "weight_bytes"),
    ("kv_bytes_per_token", "kv_bytes_per_token"),
    ("kv_capacity_tokens", "kv_capacity_tokens"),
    ("flops_per_token", "flops_per_token"),
    ("kv_transfer_bytes:rate", "kv_transfer_bytes_per_second"),
    ("kv_transfer_failures:rate", "kv_transfer_failures_per_second"),
]


@pytest.mark.parametrize(("rule", "field"), [pytest.param(*row, id=row[0]) for row in SCALARS])
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(7.0, 7.0, id="a number"),
        pytest.param(0.0, 0.0, id="zero is zero"),
        pytest.param(math.nan, None, id="NaN is unknown"),
        pytest.param(math.inf, None, id="infinity is unknown"),
        pytest.param(None, None, id="no sample is unknown"),
    ],
)
def test_each_rule_becomes_its_field(rule: str, field: str, value: float | None, expected: float | None) -> None:
    samples = [] if value is None else [sample(rule, value)]
    assert getattr(signals(*samples), field) == expected


def test_phases_are_told_apart() -> None:
    result = signals(
        sample("tokens:rate", 900, phase="prefill"),
        sample("tokens:rate", 30, phase="decode"),
        sample("arithmetic_intensity:flops_per_byte", 1480, phase="prefill"),
        sample("memory_bandwidth_utilization:ratio", 0.6, phase="decode"),
        sample("compute_utilization:ratio", 0.4, phase="prefill"),
        sample("compute_utilization:ratio", math.nan, phase="decode"),
    )
    assert result.prefill == PhaseSignals(900, 1480, None, 0.4)
    assert result.decode == PhaseSignals(30, None, 0.6, None)


TERMS = {"fixed": 0.004, "decode_sequence": 1e-5, "kv_token": 1e-8, "prefill_token": 2e-5}


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        pytest.param(TERMS, StepTimes(0.004, 1e-5, 1e-8, 2e-5, "measured"), id="all but the pairs"),
        pytest.param(TERMS | {"prefill_pair": 3e-9}, StepTimes(
            0.004, 1e-5, 1e-8, 2e-5, "measured", seconds_per_prefill_pair=3e-9), id="all terms"),
        pytest.param(TERMS | {"prefill_step": -6e-3}, StepTimes(
            0.004, 1e-5, 1e-8, 2e-5, "measured", hidden_seconds=6e-3), id="chunks that hide behind the weights"),
        pytest.param(TERMS | {"prefill_pair": math.nan}, StepTimes(
            0.004, 1e-5, 1e-8, 2e-5, "measured"), id="the pairs NaN"),
        pytest.param({"prefill_pair": 3e-9}, None, id="the pairs alone"),
        pytest.param({k: v for k, v in TERMS.items() if k != "kv_token"}, None, id="one term missing"),
        pytest.param(TERMS | {"prefill_token": math.nan}, None, id="one term NaN"),
        pytest.param({}, None, id="none"),
    ],
)  # fmt: skip
def test_step_times_need_every_term_but_those_of_pairs_and_of_a_step_with_prefill(
    terms: dict[str, float], expected: StepTimes | None
) -> None:
    samples = [sample("step_model:seconds", value, term=term) for term, value in terms.items()]
    assert signals(*samples).measured_steps == expected


def steps_of(kind: str, seconds: float, **terms: float) -> list[Sample]:
    held = dict.fromkeys((*TERMS, "prefill_pair"), 0.0) | terms
    return [
        sample("step_seconds:rate", seconds, kind=kind),
        *(sample("step_terms:rate", value, kind=kind, term=term) for term, value in held.items()),
    ]


def test_steps_with_a_prompt_chunk_are_those_with_decodes_and_those_without() -> None:
    decode = steps_of("decode", 2.0, fixed=100.0, decode_sequence=3200.0, kv_token=3e6)
    prefill = steps_of("prefill", 0.5, fixed=5.0, prefill_token=4000.0, prefill_pair=8e6)
    mixed = steps_of("mixed", 1.0, fixed=20.0, decode_sequence=300.0, kv_token=3e5, prefill_token=9e3, prefill_pair=1e6)
    result = signals(*decode, *prefill, *mixed)
    assert result.decode_steps == StepsTaken(2.0, 100.0, 3200.0, 3e6, 0.0, 0.0)
    assert result.prefill_steps == StepsTaken(1.5, 25.0, 300.0, 3e5, 13e3, 9e6)
    assert result.measured_steps is None, "what steps held is no model of them"


@pytest.mark.parametrize("broken", range(6))
def test_steps_of_which_something_is_missing_are_not_known(broken: int) -> None:
    samples = [*steps_of("decode", 2.0, fixed=100.0), *steps_of("prefill", 1.0, fixed=9.0)]
    assert signals(*samples).decode_steps is not None
    assert signals(*samples).prefill_steps is None, "nothing is known of mixed ones"
    unknown = Sample(samples[broken].labels, math.nan)
    assert signals(*samples[:broken], unknown, *samples[broken + 1 :]).decode_steps is None


def test_lengths_come_from_buckets_and_mean() -> None:
    result = signals(
        sample("request_prompt_tokens_bucket:rate", 0.0, le="500"),
        sample("request_prompt_tokens_bucket:rate", 2.0, le="1000"),
        sample("request_prompt_tokens_bucket:rate", 2.0, le="+Inf"),
        sample("request_prompt_tokens:mean", 800),
        sample("request_output_tokens_bucket:rate", 0.0, le="100"),
        sample("request_output_tokens_bucket:rate", 0.0, le="+Inf"),
    )
    assert result.prompt_tokens is not None
    assert list(result.prompt_tokens) == [pytest.approx((800.0, 1.0))]
    assert result.output_tokens is None


def test_outputs_that_run_count_where_every_engine_tells_of_them() -> None:
    ended = [
        sample("request_output_tokens_bucket:rate", 4.0, le="100.0"),
        sample("request_output_tokens_bucket:rate", 4.0, le="200.0"),
        sample("request_output_tokens_bucket:rate", 4.0, le="+Inf"),
        sample("request_output_tokens:mean", 100),
    ]
    longer = [sample("outputs_longer:rate", 12.0, tokens="100"), sample("outputs_longer:rate", 0.0, tokens="200")]
    assert signals(*ended).output_tokens == ((100.0, 1.0),)
    assert signals(*ended, *longer).output_tokens == ((100.0, 0.25), (200.0, 0.75))


def test_a_bucket_with_an_unreadable_bound_gives_no_lengths() -> None:
    assert signals(sample("outputs_longer:rate", 1.0, tokens="many")).output_tokens is None
    assert signals(sample("request_prompt_tokens_bucket:rate", 1.0, le="many")).prompt_tokens is None


def test_samples_older_than_the_limit_are_a_problem_that_says_what_to_check() -> None:
    found = problem(fresh(sample("requests_arriving:rate", 5), age=73))
    assert found.reason == "StaleSamples"
    assert "73 s old (limit 15 s)" in found.message
    assert "check" in found.message


@pytest.mark.parametrize(
    ("age", "reason"),
    [
        pytest.param(15, None, id="exactly at the limit"),
        pytest.param(15.01, "StaleSamples", id="just above"),
        pytest.param(-15, None, id="a little ahead"),
        pytest.param(-16, "ClocksDisagree", id="in the future"),
    ],
)
def test_age_of_samples(age: float, reason: str | None) -> None:
    result = fresh(age=age)[CHAT]
    assert (result.reason if isinstance(result, MetricsProblem) else None) == reason


@pytest.mark.parametrize("value", [pytest.param(None, id="missing"), pytest.param(math.nan, id="NaN")])
def test_numbers_without_a_time_are_no_numbers(value: float | None) -> None:
    samples = [sample("requests_arriving:rate", 5)]
    if value is not None:
        samples.append(sample("sample_timestamp_seconds", value))
    assert problem(parse(samples, NOW, 15)).reason == "NoSamples"


def test_a_fleet_that_prometheus_does_not_know_has_a_problem_too() -> None:
    answers = fresh()
    for found in (answers["default", "other"], answers.get(("default", "other"))):
        assert isinstance(found, MetricsProblem)
        assert found.reason == "NoSamples"
        assert "recording rules" in found.message
    assert ("default", "other") not in answers
    assert list(answers) == [CHAT]


def test_fleets_of_one_name_in_two_namespaces_are_two_fleets() -> None:
    other = ("prod", "chat")
    answers = fresh(sample("requests_arriving:rate", 1), sample("requests_arriving:rate", 9, fleet=other))
    assert problem(answers, other).reason == "NoSamples"  # it has no time of its own
    answers = parse(
        [
            sample("sample_timestamp_seconds", NOW),
            sample("requests_arriving:rate", 1),
            sample("sample_timestamp_seconds", NOW, fleet=other),
            sample("requests_arriving:rate", 9, fleet=other),
        ],
        NOW,
        15,
    )
    rates = {k: v.requests_per_second for k, v in answers.items() if isinstance(v, Signals)}
    assert rates == {CHAT: 1, other: 9}


def test_series_of_two_prometheus_replicas_count_once() -> None:
    result = signals(
        sample("requests_arriving:rate", 4, replica="a"), sample("requests_arriving:rate", 4.2, replica="b")
    )
    assert result.requests_per_second == 4


def test_series_without_a_fleet_are_ignored() -> None:
    answers = parse([Sample({"__name__": "fleet:ridgeline_requests_arriving:rate"}, 1.0)], NOW, 15)
    assert len(answers) == 0
