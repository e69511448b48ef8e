"""The cost model corrected by measured steps: bounded, patient, and still a cost model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ridgeline.cost.correction import CorrectedCost, Factor, MeasuredSteps, corrected
from tests.cost.engines import engine

COST = engine("llama-3.1-70b", "h100", 4)
DECODE = MeasuredSteps(0, 0, 0, 32, 32000, 32, COST.seconds(0, 0, 0, 32, 32000, 32), 10_000)
CHUNK = MeasuredSteps(512, 131328, 0, 32, 32000, 33, COST.seconds(512, 131328, 0, 32, 32000, 33), 10_000)


def slower(steps: MeasuredSteps, factor: float) -> MeasuredSteps:
    return replace(steps, seconds=factor * steps.seconds)


def test_nothing_measured_changes_nothing() -> None:
    found = corrected(COST, [])
    assert (found.decode, found.prefill) == (Factor(), Factor())
    assert found.seconds(512, 131328, 0, 8, 8000, 9) == COST.seconds(512, 131328, 0, 8, 8000, 9)
    assert found.decode_run(8) == COST.decode_run(8)


def test_each_kind_of_step_has_its_own_factor() -> None:
    found = corrected(COST, [slower(DECODE, 1.2), slower(CHUNK, 1.5)])
    assert found.decode.value == pytest.approx(1.2, rel=0.01)
    assert found.prefill.value == pytest.approx(1.5, rel=0.01)
    assert found.seconds(0, 0, 0, 32, 32000, 32) == pytest.approx(1.2 * DECODE.seconds, rel=0.01)
    assert found.seconds(512, 131328, 0, 32, 32000, 33) == pytest.approx(1.5 * CHUNK.seconds, rel=0.01)


def test_one_kind_alone_leaves_the_other_as_modelled() -> None:
    found = corrected(COST, [slower(DECODE, 1.3)])
    assert found.prefill == Factor()


@pytest.mark.parametrize(("factor", "bound"), [(10.0, 2.0), (0.01, 0.5)])
def test_what_is_off_by_more_than_the_bounds_is_bounded_and_says_so(factor: float, bound: float) -> None:
    assert corrected(COST, [slower(DECODE, factor)]).decode == Factor(bound, True, DECODE.steps)


def test_few_steps_say_little() -> None:
    few = corrected(COST, [replace(slower(DECODE, 1.9), steps=3)]).decode.value
    assert 1.0 < few < 1.05


@pytest.mark.parametrize(
    "broken", [{"seconds": float("nan")}, {"seconds": 0.0}, {"steps": 0.0}, {"decode_kv_tokens": float("inf")}]
)
def test_what_is_not_known_is_no_measurement(broken: dict[str, float]) -> None:
    assert corrected(COST, [replace(slower(DECODE, 1.9), **broken)]).decode == Factor()


factors = st.floats(0.5, 2.0).map(Factor)


@given(
    factors, factors, st.integers(0, 8192), st.integers(0, 10**8), st.integers(0, 10**5), st.integers(0, 512),
    st.integers(0, 10**6), st.integers(0, 512), st.integers(0, 5), st.integers(1, 2000),
)  # fmt: skip
@example(Factor(2.0), Factor(1.0), 0, 0, 0, 1, 0, 2, 0, 1)  # more samples than sequences, and then a prompt token
@example(Factor(2.0), Factor(1.0), 0, 0, 1, 1, 0, 0, 0, 1)  # cached tokens of no prompt, and then a prompt token
def test_corrected_steps_do_not_get_shorter_by_holding_more(
    decode: Factor, prefill: Factor, tokens: int, pairs: int, read: int, decodes: int, kv: int, samples: int,
    argument: int, more: int,
) -> None:  # fmt: skip
    cost = CorrectedCost(COST, decode, prefill)
    less = [tokens, pairs, read, decodes, kv, samples]
    larger = list(less)
    larger[argument] += more
    assert cost.seconds(*larger) >= cost.seconds(*less)
    first, second = cost.decode_run(decodes)
    if decodes:
        assert first + second * kv == pytest.approx(cost.seconds(0, 0, 0, decodes, kv, decodes))
