"""Efficiencies: what each is made of, that none passes a peak, and that the kernels behind them are met."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost.efficiency import MEBI, MICRO, AllReduce, Curve
from ridgeline.cost.hardware import A100, B200, H100, H100_PCIE, H200, L40S, NVLINK_4, efficiency_of
from ridgeline_exporters.roofline import hardware
from ridgeline_exporters.roofline.windows import attended_pairs
from tests.bench.fit_cost_model import DECODE_ATTENTION, GEMM_16_BIT, PREFILL_ATTENTION, TOKENS


def test_a_curve_goes_through_what_was_measured_and_is_straight_between() -> None:
    curve = Curve((10.0, 20.0, 40.0), (1.0, 3.0, 4.0))
    assert [curve.at(size) for size in (0, 5, 10, 15, 20, 30, 40, 80)] == [1, 1, 1, 2, 3, 3.5, 4, 6]


@given(st.floats(0, 1e9), st.floats(0, 1e9), st.sampled_from([2, 3, 4, 8, 16]))
def test_no_larger_all_reduce_is_faster(size: float, more: float, gpus: int) -> None:
    curve = NVLINK_4.among(gpus)
    assert curve.at(size + more) >= curve.at(size)


def test_an_all_reduce_is_as_measured() -> None:
    assert NVLINK_4.among(4).at(MEBI) == pytest.approx(18.6 * MICRO)
    assert NVLINK_4.among(3) is NVLINK_4.among(4), "between two numbers of GPUs, the larger one's"
    assert NVLINK_4.among(16) is NVLINK_4.among(8)


def test_a_slower_link_takes_longer_for_bytes_but_not_to_start() -> None:
    slower = NVLINK_4.slower_link(2.0).among(2)
    fast = NVLINK_4.among(2)
    assert slower.at(0) == fast.at(0)
    assert slower.at(64 * MEBI) - slower.at(8 * MEBI) == pytest.approx(2 * (fast.at(64 * MEBI) - fast.at(8 * MEBI)))


def test_a_ring_sends_twice_all_but_one_share() -> None:
    assert AllReduce.ring(100e9, 5 * MICRO).among(4).at(1e9) == pytest.approx(5 * MICRO + 1.5 * 1e9 / 100e9)


@pytest.mark.parametrize("share", [0.0, 1.01, float("nan")])
def test_no_share_passes_the_peak(share: float) -> None:
    with pytest.raises(ValueError, match=r"kv_bandwidth is .*; give a share"):
        replace(H100, kv_bandwidth=share)


def test_no_time_is_negative() -> None:
    with pytest.raises(ValueError, match="step_seconds is -1"):
        replace(H100, step_seconds=-1.0)


@pytest.mark.parametrize("name", sorted(hardware.ACCELERATORS))
def test_every_accelerator_has_a_row_with_its_source(name: str) -> None:
    row = efficiency_of(hardware.ACCELERATORS[name])
    assert row.source
    assert row.step_seconds == H100.step_seconds, "the host does not get faster with the GPU"


def test_the_rows_are_found_by_their_accelerator() -> None:
    rows = {"h100": H100, "h100-pcie": H100_PCIE, "h200": H200, "b200": B200, "a100": A100, "l40s": L40S}
    assert {name: efficiency_of(hardware.find(name)) for name in rows} == rows
    unknown = replace(hardware.find("h100"), name="of my own")
    assert efficiency_of(unknown) == H100_PCIE, "of an unknown one, the slower link is assumed"


# --- the kernels behind the row of an H100: 3 microseconds of a layer's are one GEMM's, 12.6 its attention's


def test_gemms_take_what_was_measured() -> None:
    errors = []
    for (columns, depth), cells in GEMM_16_BIT.items():
        for tokens, cell in zip(TOKENS, cells, strict=True):
            flops, moved = 2 * tokens * columns * depth, 2 * (columns * depth + tokens * (columns + depth))
            modelled = max(flops / (H100.gemm_compute * 989.4e12), moved / (H100.weight_bandwidth * 3.35e12)) + 3e-6
            measured = cell * MICRO if cell > 1 else flops / (cell * 989.4e12)
            errors.append(abs(modelled / measured - 1))
    assert sum(errors) / len(errors) < 0.06
    assert max(errors) < 0.20


def test_attention_takes_what_was_measured() -> None:
    for (batch, context), micros in DECODE_ATTENTION.items():
        modelled = 12.6e-6 + batch * context * 4096 / (H100.kv_bandwidth * 3.35e12)
        limit = 0.36 if (batch, context) == (8, 1024) else 0.2
        assert modelled == pytest.approx(micros * MICRO, rel=limit)
    for tokens, micros in PREFILL_ATTENTION.items():
        pairs = attended_pairs(tokens, 0) + H100.attention_ramp_keys * tokens
        modelled = pairs * 4 * 32 * 128 / (H100.attention_compute * 989.4e12)
        assert modelled == pytest.approx(micros * MICRO, rel=0.1)
