"""A larger token budget at once while prompts wait, where decodes have room for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ridgeline.api.fleet import Action, FleetSpec, FleetStatus, LastDecision
from ridgeline.api.times import to_rfc3339
from ridgeline.decide import reasons
from ridgeline.decide.plan import Decision, History, Plan
from ridgeline.decide.snapshot import Snapshot, StepTimes
from tests.decide.fleets import LLAMA_8B, NOW, chat, engines, once, snapshot, spec

SMALL = spec(8, timeToFirstTokenMilliseconds=2000, interTokenLatencyMilliseconds=50)
"""A full step of 1,024 tokens beside 100 decodes takes 42 ms, one of 2,048 75 ms."""


def held(waiting: int | None, decoding: int = 100, budget: int | None = 256, letters: str = "mmmmmmmm") -> Snapshot:
    """Chat on the 8B that nobody is late with yet; each engine holds so many."""
    fleet = [
        replace(
            engine,
            running_requests=decoding + (waiting or 0),
            decoding_requests=decoding,
            waiting_requests=waiting,
        )
        for engine in engines(letters, limit=budget, maximum=8192)
    ]
    return snapshot(fleet, chat(40.0, LLAMA_8B), link_bytes_per_second=48e9)


def decided(seen: Snapshot, wanted: FleetSpec = SMALL, **parts: Any) -> Decision:
    return once(seen, wanted, **parts)


def test_engines_get_the_largest_budget_that_decodes_bear_in_the_pass_that_sees_the_queue() -> None:
    plan = decided(held(40)).plan
    assert (plan.action, plan.reason) == (Action.TUNE, reasons.PROMPTS_WAIT)
    assert plan.target.tokenBudget == 1024
    assert "256 → 1024: 40 prompts wait at each engine" in plan.message


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        pytest.param(held(0), SMALL, id="nobody waits"),
        pytest.param(held(40, budget=1024), SMALL, id="larger steps would make gaps late"),
        pytest.param(held(40, decoding=600), SMALL, id="there are too many decodes for any larger step"),
        pytest.param(held(40, budget=8192), SMALL, id="there is no larger one"),
        pytest.param(held(40, budget=None), SMALL, id="an engine that does not tell its budget takes none"),
        pytest.param(held(40, letters="pppppddd"), SMALL, id="a split has no budget to tune"),
        pytest.param(held(None), SMALL, id="nobody knows who waits"),
        pytest.param(held(40), spec(8, "Recommend"), id="nothing is done under Recommend"),
        pytest.param(held(40), spec(8, timeToFirstTokenMilliseconds=20_000), id="they may wait longer"),
    ],
)
def test_the_budget_stays(seen: Snapshot, wanted: FleetSpec) -> None:
    assert decided(seen, wanted).plan.reason != reasons.PROMPTS_WAIT


def test_one_engine_that_does_not_tell_who_waits_there_leaves_the_others_count_worthless() -> None:
    seen = held(40)
    seen = replace(seen, engines=(replace(seen.engines[0], waiting_requests=None), *seen.engines[1:]))
    assert decided(seen).plan.reason != reasons.PROMPTS_WAIT


def test_waiting_counts_from_half_the_objective_for_first_tokens_on() -> None:
    """Prompts of 1,168 tokens, of which 156 go into a step of 17.1 ms beside 100 decodes: 128 ms each."""
    assert [decided(held(waiting)).plan.reason == reasons.PROMPTS_WAIT for waiting in (7, 8)] == [False, True]


def test_a_full_step_may_take_as_long_as_the_objective() -> None:
    """With a budget of 1,024 it takes 49.9 ms beside 380 decodes, and 50.2 ms beside 390."""
    assert [decided(held(40, decoding)).plan.target.tokenBudget for decoding in (380, 390)] == [1024, 512]


def test_a_fifth_of_the_wait_has_to_go() -> None:
    """From 512 to 1,024 tokens it is 19 % beside 50 decodes, and 21 % beside 60, which take more of the smaller budget."""
    assert [decided(held(40, decoding, 512)).plan.target.tokenBudget for decoding in (50, 60)] == [512, 1024]


@pytest.mark.parametrize(("prompts", "budget"), [((8_000.0,), 1024), ((40_000.0,), 512), ((8_000.0, 40_000.0), 512)])
def test_a_full_step_is_longer_deep_in_a_prompt(prompts: tuple[float, ...], budget: int) -> None:
    """A chunk attends to all before it: 1,019 tokens take 7 ms for that halfway through 8,000, and 37 through 40,000."""
    steps = StepTimes(0.008, 4e-6, 0.0, 2.5e-5, "measured", seconds_per_prefill_pair=1.8e-9)
    lengths = tuple((tokens, 1.0 / len(prompts)) for tokens in prompts)
    seen = held(40, decoding=5)
    signals = replace(chat(4.0, LLAMA_8B), measured_steps=steps, prompt_tokens=lengths)
    assert decided(replace(seen, signals=signals)).plan.target.tokenBudget == budget


def test_it_is_done_once_in_a_window_of_the_rules() -> None:
    """Engines that do not follow are not asked in every pass, and what has been done may show."""

    def again(seconds: float, reason: str = reasons.PROMPTS_WAIT) -> bool:
        last = LastDecision(action=Action.TUNE, reason=reason, message="because", time=to_rfc3339(NOW - seconds))
        return decided(held(40), status=FleetStatus(lastDecision=last)).plan.reason == reasons.PROMPTS_WAIT

    assert not again(40.0)
    assert again(50.0)
    assert again(5.0, reasons.DECODE_STALLED), "another rule may have chosen too small a budget"


def test_what_is_wanted_beside_goes_on_standing() -> None:
    wanted = Plan(Action.SPLIT, "Why", "because", decided(held(0, letters="ppppppdd")).plan.target)
    history = History(wanted=wanted, wanted_since=NOW - 10.0)
    after = decided(held(40), history=history).history
    assert (after.wanted, after.wanted_since) == (wanted, NOW - 10.0)
