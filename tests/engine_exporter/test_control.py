from __future__ import annotations

from typing import Any

import pytest

from ridgeline_exporters.engine.control import BadRequest, Control, Limits
from ridgeline_exporters.engine.requests import Objectives
from tests.engine_exporter.synthetic import Bench, SyntheticScheduler, step


def control(threshold: int = 0, smallest: int = 1) -> Control:
    return Control(Limits(8192, threshold), smallest, Objectives())


@pytest.mark.parametrize(
    ("body", "accepted"),
    [
        pytest.param({"max_num_scheduled_tokens": 512}, (512, 0), id="lower budget"),
        pytest.param({"max_num_scheduled_tokens": 8192}, (8192, 0), id="the start-up value"),
        pytest.param({"max_num_scheduled_tokens": 1}, (1, 0), id="the smallest budget"),
        pytest.param({"long_prefill_token_threshold": 256}, (8192, 256), id="threshold alone keeps the budget"),
        pytest.param({"long_prefill_token_threshold": 0}, (8192, 0), id="no threshold, as at start"),
        pytest.param(
            {"max_num_scheduled_tokens": 512, "long_prefill_token_threshold": 128}, (512, 128), id="both at once"
        ),
    ],
)
def test_limits_up_to_the_start_up_values_are_accepted(body: Any, accepted: tuple[int, int]) -> None:
    assert control().post_limits(body) == Limits(*accepted)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"max_num_scheduled_tokens": 8193}, id="above the start-up value"),
        pytest.param({"max_num_scheduled_tokens": 0}, id="zero"),
        pytest.param({"max_num_scheduled_tokens": -1}, id="negative"),
        pytest.param({"max_num_scheduled_tokens": 512.0}, id="a float"),
        pytest.param({"max_num_scheduled_tokens": "512"}, id="a string"),
        pytest.param({"max_num_scheduled_tokens": True}, id="a boolean"),
        pytest.param({"max_num_scheduled_tokens": None}, id="null"),
        pytest.param({"long_prefill_token_threshold": 8193}, id="a threshold above the budget at start"),
        pytest.param({"long_prefill_token_threshold": -1}, id="a negative threshold"),
        pytest.param({"max_tokens": 5}, id="an unknown field"),
        pytest.param({"max_num_scheduled_tokens": 5, "x": 1}, id="an unknown field beside a known one"),
        pytest.param({}, id="nothing"),
        pytest.param([], id="a list"),
        pytest.param(None, id="null as body"),
        pytest.param(512, id="a number as body"),
    ],
)
def test_other_limits_are_refused_and_change_nothing(body: Any) -> None:
    wanted = control()
    with pytest.raises(BadRequest):
        wanted.post_limits(body)
    assert wanted.wanted == Limits(8192, 0)


def test_a_threshold_from_the_start_cannot_be_raised_or_taken_away() -> None:
    limits = control(threshold=1024)
    for refused in (0, 1025):
        with pytest.raises(BadRequest):
            limits.post_limits({"long_prefill_token_threshold": refused})
    assert limits.post_limits({"long_prefill_token_threshold": 100}).long_prefill_token_threshold == 100


def test_without_chunked_prefill_the_budget_stays_as_a_prompt_would_wait_for_ever() -> None:
    limits = control(smallest=8192)
    with pytest.raises(BadRequest, match="8192 to 8192"):
        limits.post_limits({"max_num_scheduled_tokens": 4096})


@pytest.mark.parametrize(
    ("body", "objectives"),
    [
        pytest.param({"time_to_first_token_milliseconds": 500}, Objectives(0.5, None), id="first token"),
        pytest.param({"inter_token_latency_milliseconds": 40}, Objectives(None, 0.04), id="gaps"),
        pytest.param(
            {"time_to_first_token_milliseconds": None, "inter_token_latency_milliseconds": 40},
            Objectives(None, 0.04),
            id="null withdraws",
        ),
    ],
)
def test_objectives_are_taken_over(body: Any, objectives: Objectives) -> None:
    wanted = control()
    wanted.post_objectives(body)
    assert wanted.objectives == objectives


@pytest.mark.parametrize("value", [0, -5, 1.5, "10", True, 10**12])
def test_impossible_objectives_are_refused(value: Any) -> None:
    wanted = control()
    with pytest.raises(BadRequest):
        wanted.post_objectives({"time_to_first_token_milliseconds": value})
    assert wanted.objectives == Objectives()


def test_a_posted_limit_reaches_the_scheduler_only_before_the_next_step() -> None:
    bench = Bench()
    bench.exporter.put_limits({"max_num_scheduled_tokens": 64, "long_prefill_token_threshold": 32})
    assert bench.scheduler.max_num_scheduled_tokens == 256
    state = bench.exporter.state()
    assert (state["limits"]["max_num_scheduled_tokens"], state["in_force"]["max_num_scheduled_tokens"]) == (64, 256)
    bench.schedule(step())
    assert bench.scheduler.max_num_scheduled_tokens == 64
    assert bench.scheduler.scheduler_config.long_prefill_token_threshold == 32
    assert bench.exporter.state()["in_force"] == {"max_num_scheduled_tokens": 64, "long_prefill_token_threshold": 32}


def test_of_several_limits_posted_between_steps_the_last_governs() -> None:
    limits, scheduler = control(), SyntheticScheduler()
    for tokens in (100, 50, 75):
        limits.post_limits({"max_num_scheduled_tokens": tokens})
    limits.apply(scheduler)
    assert scheduler.max_num_scheduled_tokens == 75
    limits.apply(scheduler)
    assert limits.in_force == limits.wanted


def test_what_nobody_posted_is_left_alone() -> None:
    limits, scheduler = control(), SyntheticScheduler()
    scheduler.max_num_scheduled_tokens = 17
    limits.apply(scheduler)
    assert scheduler.max_num_scheduled_tokens == 17
