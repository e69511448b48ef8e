"""Step times corrected by measured steps: bounded, patient, and nothing where nothing was measured."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.decide.correction import LARGEST_FACTOR, LEAST_FACTOR, Corrections, Factor, corrections
from ridgeline.decide.snapshot import Signals, StepsTaken, StepTimes
from ridgeline.decide.step_times import step_corrections, step_times
from tests.decide.fleets import LLAMA_70B

MODEL = StepTimes(0.02, 1e-5, 2e-8, 3e-5, "measured", seconds_per_prefill_pair=1e-9)
STEPS = 500.0
"""A second: many against the prior."""


def decode_steps(factor: float, steps: float = STEPS) -> StepsTaken:
    """Steps of 32 decodes of 1,000 tokens, so many times as long as modelled."""
    return StepsTaken(factor * steps * (0.02 + 32e-5 + 32_000 * 2e-8), steps, 32 * steps, 32_000 * steps, 0.0, 0.0)


def prefill_steps(factor: float, steps: float = STEPS) -> StepsTaken:
    """The same with two first chunks of 512 tokens each."""
    alone = decode_steps(1.0, steps)
    pairs = 2 * 512 * 513 // 2
    seconds = factor * (alone.seconds + steps * (1024 * 3e-5 + pairs * 1e-9))
    return replace(alone, seconds=seconds, prefill_tokens=1024 * steps, prefill_pairs=pairs * steps)


def found(decode: StepsTaken | None = None, prefill: StepsTaken | None = None) -> Corrections:
    return corrections(MODEL, Signals(decode_steps=decode, prefill_steps=prefill))


def test_nothing_measured_changes_nothing() -> None:
    assert found() == Corrections()
    assert not found().measured()
    assert Corrections().apply(MODEL) == MODEL


def test_an_idle_fleet_has_measured_nothing() -> None:
    idle = StepsTaken(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert found(idle, idle) == Corrections()


def test_steps_as_modelled_leave_the_model_as_it_is() -> None:
    both = found(decode_steps(1.0), prefill_steps(1.0))
    assert both.decode.value == pytest.approx(1.0)
    assert both.prefill.value == pytest.approx(1.0)
    assert set(both.measured()) == {"decode", "prefill"}


def test_each_kind_of_step_has_its_own_factor() -> None:
    both = found(decode_steps(1.2), prefill_steps(1.5))
    assert both.decode.value == pytest.approx(1.2, rel=0.01)
    assert both.prefill.value == pytest.approx(1.5, rel=0.01)
    assert found(decode_steps(1.3)).prefill == Factor()
    assert found(prefill=prefill_steps(1.3)).decode == Factor()


def test_what_all_steps_take_longer_all_terms_do() -> None:
    slow = found(decode_steps(1.4), prefill_steps(1.4)).apply(MODEL)
    assert slow.fixed_seconds == pytest.approx(1.4 * MODEL.fixed_seconds, rel=0.01)
    assert slow.seconds_per_decode_sequence == pytest.approx(1.4 * MODEL.seconds_per_decode_sequence, rel=0.01)
    assert slow.seconds_per_kv_token == pytest.approx(1.4 * MODEL.seconds_per_kv_token, rel=0.01)
    for tokens, depth in ((512, 0.0), (8192, 30_000.0)):
        assert slow.prefill_seconds(tokens, depth) == pytest.approx(
            1.4 * MODEL.prefill_seconds(tokens, depth), rel=0.01
        )


def test_what_hides_behind_the_weights_stays_hidden() -> None:
    roofline = step_times(LLAMA_70B)
    assert roofline is not None
    hidden = roofline.hidden_seconds / roofline.seconds_per_prefill_token
    slow = Corrections(prefill=Factor(1.5)).apply(roofline)
    assert slow.prefill_seconds(0.99 * hidden) == 0.0
    assert slow.prefill_seconds(2.0 * hidden) == pytest.approx(1.5 * roofline.prefill_seconds(2.0 * hidden))


@pytest.mark.parametrize(("factor", "bound"), [(10.0, LARGEST_FACTOR), (0.01, LEAST_FACTOR)])
def test_what_is_off_by_more_than_the_bounds_is_bounded_and_says_so(factor: float, bound: float) -> None:
    assert found(decode_steps(factor)).decode == Factor(bound, True, STEPS)


def test_few_steps_say_little() -> None:
    few = found(decode_steps(1.9, steps=0.05)).decode
    assert 1.0 < few.value < 1.05
    assert few.steps == 0.05


@pytest.mark.parametrize(
    "broken", [{"seconds": nan}, {"seconds": 0.0}, {"steps": 0.0}, {"kv_tokens": inf}, {"decode_sequences": -1.0}]
)
def test_what_is_not_known_is_no_measurement(broken: dict[str, float]) -> None:
    assert found(replace(decode_steps(1.9), **broken)).decode == Factor()


rates = st.floats(0.0, 1e12)


@given(st.none() | st.builds(StepsTaken, rates, rates, rates, rates, rates, rates), st.floats(1.0, 100.0))
def test_a_factor_stays_within_its_bounds_and_grows_with_what_was_measured(
    taken: StepsTaken | None, longer: float
) -> None:
    factor = found(prefill=taken).prefill
    assert LEAST_FACTOR <= factor.value <= LARGEST_FACTOR
    if taken is None or not factor.steps:
        assert factor.value == 1.0
        return
    assert found(prefill=replace(taken, seconds=longer * taken.seconds)).prefill.value >= factor.value


@given(st.floats(0.5, 2.0), st.floats(0.01, 1e4), st.floats(1.0, 10.0))
def test_more_steps_never_say_less(factor: float, steps: float, more: float) -> None:
    few, many = (found(decode_steps(factor, count)).decode.value for count in (steps, more * steps))
    assert abs(many - 1.0) >= abs(few - 1.0) - 1e-9


def taken_by(roofline: StepTimes, factor: float) -> StepsTaken:
    """Steps of eight decodes without KV, so many times as long as this roofline says."""
    step = roofline.fixed_seconds + 8 * roofline.seconds_per_decode_sequence
    return StepsTaken(factor * STEPS * step, STEPS, 8 * STEPS, 0.0, 0.0, 0.0)


def test_the_roofline_is_corrected_before_anything_is_decided_by_it() -> None:
    plain = step_times(LLAMA_70B)
    assert plain is not None
    slow = replace(LLAMA_70B, decode_steps=taken_by(plain, 1.3))
    assert step_corrections(LLAMA_70B) == Corrections()
    assert step_corrections(slow).decode.value == pytest.approx(1.3, rel=0.01)
    found = step_times(slow)
    assert found is not None
    assert found.fixed_seconds == pytest.approx(1.3 * plain.fixed_seconds, rel=0.01)
    assert found.seconds_per_kv_token == pytest.approx(1.3 * plain.seconds_per_kv_token, rel=0.01)
    assert found.seconds_per_prefill_token == plain.seconds_per_prefill_token


def test_peaks_that_are_wrong_do_not_matter_once_steps_were_taken() -> None:
    right = step_times(LLAMA_70B)
    assert right is not None
    taken = taken_by(right, 1.0)
    flattered = replace(
        LLAMA_70B,
        peak_memory_bytes_per_second=1.3 * (LLAMA_70B.peak_memory_bytes_per_second or 0.0),
        decode_steps=taken,
    )
    found = step_times(flattered)
    assert found is not None
    step = found.fixed_seconds + 8 * found.seconds_per_decode_sequence
    assert step == pytest.approx(taken.seconds / STEPS, rel=0.01)


def test_what_engines_have_learned_is_not_corrected_but_the_factor_still_told() -> None:
    learned = StepTimes(0.03, 1e-5, 1e-9, 4e-5, "measured")
    roofline = step_times(LLAMA_70B)
    assert roofline is not None
    plain = replace(LLAMA_70B, measured_steps=learned)
    slow = replace(plain, decode_steps=taken_by(roofline, 1.5))
    assert step_times(slow, 512, 1000.0) == step_times(plain, 512, 1000.0)
    assert step_corrections(slow).decode.value == pytest.approx(1.5, rel=0.01)


def test_without_peaks_there_is_nothing_to_correct() -> None:
    assert step_corrections(Signals(decode_steps=decode_steps(1.3))) == Corrections()


def test_attention_that_engines_have_measured_is_no_error_of_the_roofline() -> None:
    roofline = step_times(LLAMA_70B)
    assert roofline is not None
    learned = StepTimes(0.03, 1e-5, 1e-6, 4e-5, "measured", seconds_per_prefill_pair=3e-9)
    chunk, depth = 2048.0, 20_000.0
    pairs = chunk * (depth + chunk / 2.0)
    step = roofline.fixed_seconds + roofline.prefill_seconds(chunk)
    taken = StepsTaken(STEPS * (step + 3e-9 * pairs), STEPS, 0.0, 0.0, STEPS * chunk, STEPS * pairs)
    known = replace(LLAMA_70B, measured_steps=learned, prefill_steps=taken)
    assert step_corrections(known).prefill.value == pytest.approx(1.0)
    unknown = step_corrections(replace(known, measured_steps=None)).prefill.value
    assert unknown == pytest.approx((step + 3e-9 * pairs) / step, rel=0.01)
