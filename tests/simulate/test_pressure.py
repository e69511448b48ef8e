"""Pressure of the phases: beside the cost model, and beside what simulated engines were busy with."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from typing import Any

import pytest

from ridgeline.cost.step_cost import EngineCost
from ridgeline.simulate.pressure import MOST_PRESSURE, pressure, step_times
from ridgeline.simulate.replay import Plant, play
from ridgeline.simulate.results import Interval
from ridgeline.simulate.traces import Arrival
from ridgeline_exporters.roofline import hardware
from ridgeline_exporters.roofline.catalogue import find_model
from ridgeline_exporters.roofline.model import ModelShape
from ridgeline_exporters.roofline.parallelism import Parallelism
from tests.bench.simulator import generated

LENGTHS = {"prompt_tokens": ((300.0, 0.5), (2000.0, 0.5)), "output_tokens": ((100.0, 0.5), (400.0, 0.5))}


def plant(model: str = "llama-3.1-70b", gpus: int = 4, engines: int = 4, weights: str | None = None) -> Plant:
    shape = ModelShape.from_config(find_model(model), weights, parallelism=Parallelism(gpus))
    return Plant(shape, hardware.find("H100-SXM5-80GB"), engines, 2000, 50)


def cost(of: Plant) -> EngineCost:
    return EngineCost(of.shape, of.accelerator)


def interval(arrived: int, **changes: Any) -> Interval:
    values: dict[str, Any] = {
        "start_seconds": 60.0, "end_seconds": 120.0, "mixed": 4, "prefill": 0, "decode": 0, "token_budget": 512,
        "running": 0, "waiting": 0, "stall_ratio": None, "gap_p50_seconds": None, "gap_p95_seconds": None,
        "gap_p99_seconds": None, "gap_seconds_buckets": [], "preemptions": 0, "kv_bytes_moved": 0.0,
        "engine_seconds": {}, "prefill_use": None, "decode_use": None, "arrived": arrived,
    }  # fmt: skip
    return Interval(**values | LENGTHS | changes)


@pytest.mark.parametrize(
    "of",
    [
        pytest.param(plant("llama-3.1-8b", 1), id="8B"),
        pytest.param(plant(), id="70B"),
        pytest.param(plant(weights="fp8"), id="70B in FP8"),
    ],
)
def test_the_linear_step_times_are_near_the_cost_model(of: Plant) -> None:
    """Prefill tokens, pairs, sequences that decode and their KV tokens."""
    model = cost(of)
    linear = step_times(model)
    for tokens, pairs, sequences, kv_tokens in (
        (0, 0, 1, 2000), (0, 0, 60, 60_000), (0, 0, 250, 400_000), (512, 131_072, 40, 60_000),
        (2048, 2_097_152, 40, 60_000), (8192, 33_554_432, 0, 0),
    ):  # fmt: skip
        exact = model.seconds(tokens, pairs, 0, sequences, kv_tokens, sequences + bool(tokens))
        told = linear.fixed_seconds + sequences * linear.seconds_per_decode_sequence
        told += kv_tokens * linear.seconds_per_kv_token
        told += linear.prefill_seconds(tokens, pairs / tokens - tokens / 2.0) if tokens else 0.0
        assert told == pytest.approx(exact, rel=0.06)


def test_pressure_on_a_prefill_pool_is_the_share_of_time_that_it_turns_out_to_be_busy() -> None:
    load = list(takewhile(lambda arrival: arrival.seconds < 600.0, generated(1800.0)))
    tripled = [Arrival(a.seconds / 3.0, a.prompt_tokens, a.output_tokens) for a in load]
    for prefill in (2, 3):
        minutes = play(f"split:{prefill}", plant(), tripled)["timeline"][1:3]
        for minute in minutes:
            busy = minute["prefill_use"]["busy_seconds"] / minute["engine_seconds"]["prefill"]
            assert 0.1 < busy < 0.95
            assert minute["prefill_pressure"] == pytest.approx(busy, rel=0.15)
            assert minute["decode_pressure"] == pytest.approx(minute["gap_p50_seconds"] / 0.05, rel=0.15)


def test_more_requests_press_more_and_more_engines_are_pressed_less() -> None:
    load = plant().load(cost(plant()))
    found = [pressure(load, interval(arrived)) for arrived in (0, 60, 300, 600)]
    assert found[0] is not None
    assert (found[0].prefill, found[0].decode) == (0.0, 0.0)
    prefills = [each.prefill for each in found if each is not None]
    assert prefills == sorted(prefills)
    assert len(set(prefills)) == 4
    few, many = (pressure(load, interval(300, mixed=engines)) for engines in (2, 8))
    assert few is not None
    assert many is not None
    assert few.prefill > many.prefill
    assert few.decode > many.decode


def test_what_nobody_could_take_has_no_pressure_and_what_buries_everybody_a_bounded_one() -> None:
    load = plant().load(cost(plant()))
    assert pressure(load, interval(60, mixed=0)) is None
    assert pressure(load, interval(60, mixed=0, prefill=3)) is None, "nobody to decode"
    buried = pressure(load, interval(1_000_000))
    assert buried is not None
    assert (buried.prefill, buried.decode) == (MOST_PRESSURE, MOST_PRESSURE)


def test_a_split_divides_the_pressure_by_its_pools() -> None:
    load = plant().load(cost(plant()))
    split = interval(300, mixed=0, prefill=1, decode=3, token_budget=None)
    lopsided, other = pressure(load, split), pressure(load, replace(split, prefill=3, decode=1))
    assert lopsided is not None
    assert other is not None
    assert lopsided.prefill == pytest.approx(3.0 * other.prefill, rel=0.05), "prompts share steps more on one"
    assert lopsided.decode < other.decode
