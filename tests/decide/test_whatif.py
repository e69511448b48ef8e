"""The what-if model: sane on odd input, and on the cases that the regime map knows."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite, isnan

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ridgeline.decide.chance import either, late
from ridgeline.decide.snapshot import Distribution, Signals, StepTimes
from ridgeline.decide.step_times import step_times
from ridgeline.decide.whatif import Forecast, Load, MixedEngines, mixed, mixed_engines, split
from tests.decide.fleets import CHAT_OUTPUTS, CHAT_PROMPTS, LLAMA_8B, LLAMA_70B, ONE_THREAD, small_fleet

BUDGETS = (128, 256, 512, 1024, 2048, 4096, 8192)


def load(signals: Signals, rate: float, first_token: float, inter_token: float, **parts: object) -> Load:
    steps = step_times(signals)
    assert steps is not None
    base = Load(rate, CHAT_PROMPTS, CHAT_OUTPUTS, steps, first_token, inter_token, 8192)
    base = replace(
        base,
        kv_capacity_tokens=signals.kv_capacity_tokens,
        kv_bytes_per_token=signals.kv_bytes_per_token,
        link_bytes_per_second=48e9,
    )
    return replace(base, **parts)  # type: ignore[arg-type]


def goodput(of: Load, topology: str, budget: int = 0, engines: int = 8) -> float:
    """Highest rate at which at most 10 % miss."""
    best, rate = 0.0, 0.5
    while rate < 500.0:
        busy = replace(of, requests_per_second=rate)
        prefill = int(topology.split(":")[0]) if ":" in topology else 0
        missed = split(busy, prefill, engines - prefill).missed if prefill else mixed(busy, engines, budget).missed
        if missed > 0.10:
            return best
        best, rate = rate, rate * 1.08
    return best


def best_mixed(of: Load) -> tuple[float, int]:
    return max((goodput(of, "mixed", budget), budget) for budget in BUDGETS)


def best_split(of: Load) -> tuple[float, str]:
    return max((goodput(of, f"{prefill}:{8 - prefill}"), f"{prefill}:{8 - prefill}") for prefill in range(1, 8))


def test_a_large_model_with_tight_gaps_is_better_split_than_at_any_budget() -> None:
    tight = load(LLAMA_70B, 1.0, 2.0, 0.04)
    (in_pools, division), (as_one, _) = best_split(tight), best_mixed(tight)
    assert division == "6:2"
    assert in_pools > 1.1 * as_one
    assert in_pools > 2.0 * goodput(tight, "mixed", 2048)


def test_a_small_model_is_best_mixed_at_its_best_budget() -> None:
    medium = load(LLAMA_8B, 1.0, 2.0, 0.05)
    (in_pools, _), (as_one, budget) = best_split(medium), best_mixed(medium)
    assert in_pools < 1.05 * as_one
    assert 256 <= budget <= 1024
    assert as_one > 2.0 * goodput(medium, "mixed", 8192)


def test_a_wrong_split_is_worse_than_a_tuned_mixed_fleet() -> None:
    medium = load(LLAMA_70B, 1.0, 2.0, 0.05)
    assert goodput(medium, "1:7") < best_mixed(medium)[0]
    assert goodput(medium, "7:1") < best_split(medium)[0]


def test_a_slow_link_breaks_a_split_with_few_decode_engines() -> None:
    fast = load(LLAMA_70B, 30.0, 2.0, 0.05)
    slow = replace(fast, link_bytes_per_second=1e9)
    assert split(fast, 6, 2).missed < 0.05
    assert split(slow, 6, 2).missed > 0.9
    assert split(fast, 6, 2).ingress_ratio == pytest.approx(15 * 1167.5 * 327_680 / 48e9, rel=1e-6)


def test_long_contexts_fill_the_kv_cache_of_few_decode_engines() -> None:
    roomy = load(LLAMA_70B, 30.0, 2.0, 0.1)
    cramped = replace(roomy, kv_capacity_tokens=20_000.0)
    assert split(roomy, 6, 2).missed < 0.1
    assert split(cramped, 6, 2).missed > 0.9
    assert split(cramped, 6, 2).decode_utilization > 1.0


def test_a_chunk_that_fits_the_objective_makes_nobody_late() -> None:
    signals = small_fleet(1.0, 0.7)
    assert signals.prompt_tokens
    assert signals.output_tokens
    small = Load(1.7, signals.prompt_tokens, signals.output_tokens, ONE_THREAD, 5.0, 0.2, 2048)
    assert mixed(small, 2, 128).gaps_late < 0.001
    assert mixed(small, 2, 2048).gaps_late > 0.03
    assert mixed(small, 2, 128).worst_step_seconds == pytest.approx(0.016 + 126 * 0.00065, rel=0.05)


def test_overload_is_told_and_misses_everything() -> None:
    buried = load(LLAMA_70B, 400.0, 2.0, 0.05)
    assert mixed(buried, 8, 512).overloaded
    assert mixed(buried, 8, 512).missed == 1.0
    assert split(buried, 4, 4).missed == 1.0


def test_an_idle_fleet_misses_nothing() -> None:
    nobody = load(LLAMA_70B, 0.0, 2.0, 0.05, prompts=(), outputs=())
    assert mixed(nobody, 8, 512).missed == split(nobody, 4, 4).missed == 0.0


def test_measured_step_times_come_before_the_roofline() -> None:
    steps = step_times(replace(LLAMA_70B, measured_steps=ONE_THREAD))
    assert steps is not None
    assert replace(steps, untried=None) == ONE_THREAD
    broken = replace(ONE_THREAD, seconds_per_prefill_token=float("nan"))
    fallback = step_times(replace(LLAMA_70B, measured_steps=broken))
    assert fallback is not None
    assert fallback.source == "roofline"
    assert step_times(Signals()) is None


def test_step_times_of_the_roofline() -> None:
    steps = step_times(LLAMA_70B)
    assert steps is not None
    assert steps.fixed_seconds == pytest.approx(141e9 / (0.8 * 13.4e12) + 0.003)
    assert steps.seconds_per_kv_token == pytest.approx(327_680 / (0.93 * 13.4e12))
    assert steps.seconds_per_prefill_token == pytest.approx(141e9 / (0.5 * 3956e12))
    assert steps.prefill_seconds(10) == 0.0


# ---------------------------------------------------------------- invariants

lengths = st.floats(0.0, 200_000.0, allow_nan=False)
distributions = st.lists(st.tuples(lengths, st.floats(0.0, 1.0)), max_size=6).map(lambda rows: tuple(sorted(rows)))


@st.composite
def loads(draw: st.DrawFn) -> Load:
    steps = StepTimes(
        draw(st.floats(1e-5, 0.1)),
        draw(st.floats(0, 0.01)),
        draw(st.floats(0, 1e-5)),
        draw(st.floats(1e-7, 0.01)),
        "measured",
    )
    return Load(
        requests_per_second=draw(st.floats(0.0, 500.0)),
        prompts=draw(distributions),
        outputs=draw(distributions),
        steps=steps,
        first_token_objective_seconds=draw(st.floats(0.001, 60.0)),
        inter_token_objective_seconds=draw(st.floats(0.001, 5.0)),
        maximum_tokens=draw(st.sampled_from([64, 2048, 8192])),
        kv_capacity_tokens=draw(st.none() | st.floats(0.0, 1e6)),
        kv_bytes_per_token=draw(st.none() | st.floats(0.0, 1e6)),
        link_bytes_per_second=draw(st.none() | st.floats(0.0, 1e12)),
        arrival_variability=draw(st.floats(0.0, 30.0)),
        burst=draw(st.floats(1.0, 8.0)),
    )


def forecasts(of: Load) -> list[Forecast]:
    return [mixed(of, 4, 128), mixed(of, 4, of.maximum_tokens), split(of, 1, 3), split(of, 3, 1)]


@settings(deadline=None)
@given(loads())
def test_shares_are_shares_and_nothing_is_ever_not_a_number(of: Load) -> None:
    for forecast in forecasts(of):
        for share in (forecast.missed, forecast.first_token_late, forecast.gaps_late):
            assert 0.0 <= share <= 1.0
        assert not isnan(forecast.prefill_utilization + forecast.decode_utilization + forecast.decode_step_seconds)
    assert forecasts(of) == forecasts(of)


@settings(deadline=None)
@given(loads(), st.floats(1.0, 10.0))
def test_a_looser_objective_is_never_missed_more(of: Load, factor: float) -> None:
    looser = replace(of, first_token_objective_seconds=factor * of.first_token_objective_seconds)
    for tight, loose in zip(forecasts(of), forecasts(looser), strict=True):
        assert loose.first_token_late <= tight.first_token_late + 1e-9
        assert loose.missed <= tight.missed + 1e-9


@settings(deadline=None)
@given(st.floats(0.5, 60.0), st.floats(1.01, 3.0))
def test_more_load_misses_more(rate: float, factor: float) -> None:
    less = load(LLAMA_70B, rate, 2.0, 0.05)
    more = replace(less, requests_per_second=factor * rate)
    for budget in BUDGETS:
        assert mixed(more, 8, budget).missed >= mixed(less, 8, budget).missed - 0.02
    for prefill in range(1, 8):
        assert split(more, prefill, 8 - prefill).missed >= split(less, prefill, 8 - prefill).missed - 0.02


rates, first_tokens = st.floats(0.5, 100.0), st.floats(0.05, 10.0)


@settings(deadline=None)
@given(rates, first_tokens, st.sampled_from(BUDGETS), st.floats(1.0, 8.0), st.floats(0.0, 30.0))
def test_mixed_engines_answer_for_any_arrivals_as_a_forecast_for_these_does(
    rate: float, first_token: float, budget: int, burst: float, variability: float
) -> None:
    of = load(LLAMA_70B, rate, first_token, 0.05)
    found = mixed_engines(of, 8, budget)
    shaped = mixed(replace(of, burst=burst, arrival_variability=variability), 8, budget)
    if isinstance(found, MixedEngines):
        assert found.gaps_late(burst) == shaped.gaps_late
        assert found.first_token_late(variability) == shaped.first_token_late
    else:
        assert found == shaped  # overloaded, however requests arrive


@settings(deadline=None)
@given(rates, first_tokens, st.sampled_from(BUDGETS))
def test_late_first_tokens_are_those_of_all_prompts(rate: float, first_token: float, budget: int) -> None:
    found = mixed_engines(load(LLAMA_70B, rate, first_token, 0.05), 8, budget)
    if not isinstance(found, MixedEngines):
        return
    waits, missed = found.queue.longer_wait(1.5), 0.0
    for (_, share), service in zip(found.prompts.lengths, found.queue.services, strict=True):
        own = service + found.step / 2.0
        missed += share * either(late(own, first_token), waits(first_token - own))
    assert found.first_token_late(1.5) == min(1.0, missed)


def chat_prompts(scale: float) -> Distribution:
    return tuple((scale * tokens, weight) for tokens, weight in CHAT_PROMPTS)


@settings(deadline=None)
@given(st.floats(0.5, 30.0), st.floats(1.0, 4.0))
def test_longer_prompts_never_come_to_the_first_token_sooner(rate: float, scale: float) -> None:
    short = load(LLAMA_70B, rate, 2.0, 0.05)
    long = replace(short, prompts=chat_prompts(scale))
    assume(isfinite(scale))
    assert split(long, 4, 4).first_token_late >= split(short, 4, 4).first_token_late - 1e-9
