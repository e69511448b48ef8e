"""A larger token budget at once while prompts wait, where decodes have room for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ridgeline.api.fleet import Action, FleetSpec, FleetStatus
from ridgeline.decide import reasons
from ridgeline.decide.plan import Decision, History
from ridgeline.decide.question import Question
from ridgeline.decide.snapshot import Distribution, Snapshot, StepTimes
from ridgeline.decide.waiting_prompts import budget_for_waiting_prompts
from tests.decide.fleets import LARGE, LLAMA_8B, NOW, STALLED, after, begun, chat, engines, once, snapshot, spec

SMALL = spec(8, timeToFirstTokenMilliseconds=2000, interTokenLatencyMilliseconds=50)
"""A full step of 1,024 tokens beside 100 decodes takes 42 ms, one of 2,048 75 ms."""


ROOMY = chat(40.0, LLAMA_8B, kv_capacity_tokens=1e6)


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
    return snapshot(fleet, ROOMY, link_bytes_per_second=48e9)


def decided(seen: Snapshot, wanted: FleetSpec = SMALL, **parts: Any) -> Decision:
    return once(seen, wanted, **parts)


def test_engines_get_the_largest_budget_that_decodes_bear_in_the_pass_that_sees_the_queue() -> None:
    plan = decided(held(40)).plan
    assert (plan.action, plan.reason) == (Action.TUNE, reasons.PROMPTS_WAIT)
    assert plan.target.tokenBudget == 1024
    assert plan.message == (
        "Tune token budget 256 → 1024: 40.0 prompts wait at an engine on average, 5.1 s of work (objective 2.0 s); 2.1 s with "
        "the larger budget, whose full steps take 42 ms (objective 50 ms)"
    )


def test_decodes_that_fill_the_budget_leave_prompts_no_room() -> None:
    plan = decided(held(1, decoding=300)).plan
    assert plan.target.tokenBudget == 1024
    assert "1.0 prompts wait" in plan.message
    assert "no room for them beside 300 decodes" in plan.message


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        pytest.param(held(0), SMALL, id="nobody waits"),
        pytest.param(held(0, decoding=300), SMALL, id="nobody waits, though there is no room"),
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


def different(**first: Any) -> Snapshot:
    """Of eight engines that are alike, the first is not."""
    seen = held(40)
    return replace(seen, engines=(replace(seen.engines[0], **first), *seen.engines[1:]))


@pytest.mark.parametrize(
    "first",
    [
        pytest.param({"waiting_requests": None}, id="one does not tell who waits"),
        pytest.param({"decoding_requests": None}, id="one does not tell who decodes"),
        pytest.param({"limit_tokens": 512}, id="one does not follow its limit"),
        pytest.param({"decoding_requests": 600}, id="one decodes so many that its gaps would be late"),
    ],
)
def test_the_budget_stays_for_one_engine(first: dict[str, Any]) -> None:
    assert decided(different(**first)).plan.reason != reasons.PROMPTS_WAIT


@pytest.mark.parametrize(("letters", "given"), [("mmmmmmmm", True), ("ppppddmm", False)])
def test_mixed_engines_beside_a_split_are_its_own_affair(letters: str, given: bool) -> None:
    question = Question(held(40, letters=letters), SMALL, FleetStatus(), History(), NOW)
    load = question.load()
    assert load is not None
    assert (budget_for_waiting_prompts(question, load) is not None) is given


def test_prompts_that_wait_at_one_engine_alone_are_the_routers_to_share_out() -> None:
    seen = held(0)
    one = replace(seen.engines[0], waiting_requests=40)
    assert decided(replace(seen, engines=(one, *seen.engines[1:]))).plan.reason != reasons.PROMPTS_WAIT


def test_an_engine_that_is_not_ready_counts_for_nothing() -> None:
    away = different(ready=False, waiting_requests=None, decoding_requests=None, limit_tokens=None)
    assert decided(away).plan.reason == reasons.PROMPTS_WAIT


def test_prompts_that_wait_for_room_in_the_cache_get_no_larger_budget() -> None:
    """300 decodes hold 1,341 tokens each."""
    seen = held(40, decoding=300)
    for capacity, given in ((403e3, True), (401e3, False), (None, True)):
        signals = replace(ROOMY, kv_capacity_tokens=capacity)
        assert (decided(replace(seen, signals=signals)).plan.reason == reasons.PROMPTS_WAIT) is given


def test_waiting_counts_from_half_the_objective_for_first_tokens_on() -> None:
    """Prompts of 1,168 tokens, of which 156 go into a step of 17.1 ms beside 100 decodes: 128 ms each."""
    assert [decided(held(waiting)).plan.reason == reasons.PROMPTS_WAIT for waiting in (7, 8)] == [False, True]


def test_a_full_step_may_take_as_long_as_the_objective() -> None:
    """With a budget of 1,024 it takes 49.9 ms beside 380 decodes, and 50.2 ms beside 390."""
    assert [decided(held(40, decoding)).plan.target.tokenBudget for decoding in (380, 390)] == [1024, 512]


def test_a_fifth_of_the_wait_has_to_go() -> None:
    """From 512 to 1,024 tokens it is 19 % beside 50 decodes, and 21 % beside 60, which take more of the smaller budget."""
    assert [decided(held(40, decoding, 512)).plan.target.tokenBudget for decoding in (50, 60)] == [512, 1024]


@pytest.mark.parametrize(
    ("prompts", "budget"),
    [(((8_000.0, 1.0),), 1024), (((40_000.0, 1.0),), 512), (((3_000.0, 0.9), (40_000.0, 0.1)), 512)],
    ids=["short", "long", "most tokens are in long ones"],
)
def test_a_full_step_is_longer_deep_in_a_prompt(prompts: Distribution, budget: int) -> None:
    """A chunk attends to all before it: 1,019 tokens take 7 ms for that halfway through 8,000, and 37 through 40,000."""
    steps = StepTimes(0.008, 4e-6, 0.0, 2.5e-5, "measured", seconds_per_prefill_pair=1.8e-9)
    seen = held(40, decoding=5)
    signals = replace(chat(4.0, LLAMA_8B), measured_steps=steps, prompt_tokens=prompts)
    assert decided(replace(seen, signals=signals)).plan.target.tokenBudget == budget


def test_it_is_done_once_in_a_window_of_the_rules() -> None:
    """What has been done shows soon, and meanwhile the misses speak of the smaller budget, too."""
    history = decided(held(40)).history
    assert history.prompts_waited_at == NOW
    for seconds, again in ((5.0, False), (40.0, False), (50.0, True)):
        plan = decided(held(40), history=history, now=NOW + seconds).plan
        assert (plan.reason == reasons.PROMPTS_WAIT) is again


LATE_GAPS = chat(40.0, LLAMA_8B, **STALLED)


def test_the_forecasts_do_not_take_the_larger_budget_back_at_once() -> None:
    seen = replace(held(0, budget=8192), signals=replace(LATE_GAPS, inter_token_p99_seconds=0.3))
    smaller = after(seen, SMALL, 60.0).plan
    assert smaller.action is Action.TUNE, "without a queue before it"
    kept = after(seen, SMALL, 40.0, history=History(prompts_waited_at=NOW)).plan
    assert kept.action is Action.HOLD


def test_what_is_wanted_beside_goes_on_standing_but_another_budget() -> None:
    decision = once(replace(held(40, 20, 128), signals=chat(60.0, **STALLED)), LARGE)
    wanted = decision.history.wanted
    assert decision.plan.reason == reasons.PROMPTS_WAIT
    assert wanted is not None
    assert (wanted.action, decision.history.wanted_since) == (Action.SPLIT, NOW)
    late = {"missed_ratio": 0.3, "decode_stall_ratio": 0.2, "time_to_first_token_p95_seconds": 3.0}
    signals = chat(80.0, LLAMA_8B, kv_capacity_tokens=1e6, first_token_late_ratio=0.3, gaps_late_ratio=0.0, **late)
    larger = once(replace(held(0), signals=signals), SMALL).history.wanted
    assert larger is not None
    assert larger.action is Action.TUNE, "or what follows says nothing"
    decision = once(replace(held(40), signals=signals), SMALL)
    assert (decision.plan.reason, decision.history.wanted) == (reasons.PROMPTS_WAIT, None)


def test_engines_get_their_own_budget_back_rather_where_a_split_could_not_work_off_a_queue() -> None:
    seen = replace(held(40, 20, 128), signals=chat(72.0, **STALLED))
    assert once(seen, LARGE, status=begun(10.0)).plan.target.tokenBudget == 8192
