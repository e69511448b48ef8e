"""`decide` when the load is more than the fleet carries: what then counts is how much of it is worked off."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ridgeline.api.fleet import Action, FleetStatus
from ridgeline.api.times import to_rfc3339
from ridgeline.decide import reasons
from ridgeline.decide.plan import History
from ridgeline.decide.scoreboard import Board
from ridgeline.decide.snapshot import StepTimes
from tests.decide.fleets import LARGE, NOW, STALLED, after, big, chat, engines, long_answers, once, snapshot, spec


@pytest.mark.parametrize(
    ("letters", "action"),
    [
        pytest.param("mmmmmmmm", Action.SPLIT, id="mixed engines carry far less"),
        pytest.param("ppppdddd", Action.REBALANCE, id="so does another split"),
        pytest.param("ppppppdd", Action.HOLD, id="nothing carries more"),
    ],
)
def test_overload_in_which_everything_misses_goes_to_what_works_off_clearly_more(letters: str, action: Action) -> None:
    plan = after(big(letters, chat(78.0, **STALLED), 256), LARGE, 60).plan
    assert plan.action is action
    if action is Action.HOLD:
        assert plan.reason == reasons.OVERLOADED
    else:
        assert (plan.target.prefill, plan.target.decode) == (6, 2)
        assert "6P:2D works off 1." in plan.message


def test_what_relieves_an_overload_is_done_after_a_third_of_the_window() -> None:
    seen = big("mmmmmmmm", chat(78.0, **STALLED), 512)
    assert after(seen, LARGE, 10).plan.reason == reasons.STABILIZING
    plan = after(seen, LARGE, 15).plan
    assert plan.action is Action.SPLIT
    assert plan.expected_missed is not None
    assert plan.unchanged_missed is not None
    assert plan.expected_missed <= plan.unchanged_missed


@pytest.mark.parametrize(
    ("rate", "action"),
    [
        pytest.param(70.0, Action.TUNE, id="by a fourth"),
        pytest.param(66.0, Action.HOLD, id="by a sixth, which would be enough of another division"),
    ],
)
def test_a_budget_that_carries_clearly_more_of_an_overload_is_taken(rate: float, action: Action) -> None:
    """Steps of 512 tokens are nearly as long as promised, with 256 tokens a queue grows."""
    near = spec(8, interTokenLatencyMilliseconds=42, timeToFirstTokenMilliseconds=2000, minDecodeReplicas=7)
    late = {**STALLED, "missed_ratio": 0.9, "gaps_late_ratio": 0.0, "first_token_late_ratio": 0.9}
    plan = after(big("mmmmmmmm", chat(rate, **late, time_to_first_token_p95_seconds=9.0), 256), near, 60).plan
    assert plan.action is action
    if action is Action.TUNE:
        assert plan.target.tokenBudget == 512
        assert "budget 512 works off 1." in plan.message
    else:
        assert plan.reason == reasons.OVERLOADED


@pytest.mark.parametrize(
    "least_decode_engines",
    [
        pytest.param(7, id="a smaller budget would spare the gaps and lengthen the queue"),
        pytest.param(3, id="a split would relieve today's budget, and not the best one"),
    ],
)
def test_late_gaps_that_a_budget_mends_are_no_overload_to_be_relieved(least_decode_engines: int) -> None:
    few = spec(
        8,
        interTokenLatencyMilliseconds=40,
        timeToFirstTokenMilliseconds=2000,
        minDecodeReplicas=least_decode_engines,
    )
    plan = after(big("mmmmmmmm", chat(70.0, **STALLED), 1024), few, 60).plan
    assert (plan.action, plan.reason) == (Action.HOLD, reasons.OVERLOADED)


def test_in_an_overload_a_merge_rests_like_every_other_change() -> None:
    resting = FleetStatus(cooldownUntilTime=to_rfc3339(NOW + 300))
    overloaded = after(big("ppppppdd", long_answers(68.0, **STALLED)), LARGE, 60, resting)
    assert overloaded.plan.reason == reasons.COOLING_DOWN
    assert "all would miss in this overload, but 8 mixed works off" in overloaded.plan.message
    assert after(big("ppppppdd", long_answers(40.0, **STALLED)), LARGE, 60, resting).plan.action is Action.MERGE


def test_overload_in_which_everything_misses_holds() -> None:
    decision = after(big("mmmmmmmm", chat(400.0, **STALLED)), LARGE, 120)
    assert (decision.plan.action, decision.plan.reason) == (Action.HOLD, reasons.OVERLOADED)
    assert decision.plan.message.endswith("engines are needed")


def test_an_overload_does_not_forget_what_was_wanted() -> None:
    wanting = once(big("mmmmmmmm", chat(56.0, **STALLED)), LARGE).history
    assert wanting.wanted is not None
    drowned = once(big("mmmmmmmm", chat(150.0, **STALLED)), LARGE, history=wanting, now=NOW + 5.0)
    assert drowned.plan.reason == reasons.OVERLOADED
    assert (drowned.history.wanted, drowned.history.wanted_since) == (wanting.wanted, NOW)
    calm = once(big("mmmmmmmm", chat(5.0), 256), LARGE, history=wanting, now=NOW + 5.0)
    assert calm.history.wanted is None


def test_what_engines_told_of_their_steps_is_not_forgotten_when_an_overload_hides_it() -> None:
    slow = StepTimes(0.02, 1e-4, 4e-8, 2e-4, "measured")
    told = big("mmmmmmmm", chat(48.0, measured_steps=slow, **STALLED))
    hidden = big("mmmmmmmm", chat(48.0, **STALLED))
    before = once(told, LARGE)
    assert before.plan.reason == reasons.OVERLOADED
    assert once(hidden, LARGE).plan.reason != reasons.OVERLOADED, "the roofline thinks more of these engines"
    after_it = once(hidden, LARGE, history=before.history, now=NOW + 10.0)
    assert (after_it.plan.reason, after_it.plan.message) == (before.plan.reason, before.plan.message)
    others = big("mmmmmmmm", chat(48.0, peak_flops=9e14, **STALLED))
    of_others = once(others, LARGE, history=before.history, now=NOW + 10.0)
    forgetful = once(others, LARGE, history=replace(before.history, steps=None), now=NOW + 10.0)
    assert of_others.plan.message == forgetful.plan.message, "another GPU has its own steps"


# ---------------------------------------------------------------- a split in which most requests miss


def test_a_split_in_which_most_requests_miss_is_merged_whatever_the_model_says_of_it() -> None:
    collapsed = chat(20.0, **{**STALLED, "missed_ratio": 0.9, "first_token_late_ratio": 0.9, "gaps_late_ratio": 0.0})
    decision = after(big("pppppddd", collapsed), LARGE, 60)
    assert (decision.plan.action, decision.plan.reason) == (Action.MERGE, reasons.SPLIT_COLLAPSED)
    crowded = chat(64.0, **{**STALLED, "missed_ratio": 0.9, "first_token_late_ratio": 0.9, "gaps_late_ratio": 0.0})
    held = after(big("ppppppdd", crowded), LARGE, 60)
    assert held.plan.reason != reasons.SPLIT_COLLAPSED, "mixed engines would miss far more"


@pytest.mark.parametrize(
    ("rate", "reason"),
    [
        pytest.param(44.0, reasons.SPLIT_COLLAPSED, id="a twentieth more"),
        pytest.param(42.0, reasons.OVERLOADED, id="but not for less"),
    ],
)
def test_a_split_that_collapses_in_an_overload_becomes_the_mixed_engines_that_work_off_most(
    rate: float, reason: str
) -> None:
    """Where all miss, their order by misses would choose the largest budget."""
    late = {**STALLED, "missed_ratio": 0.95, "first_token_late_ratio": 0.95, "gaps_late_ratio": 0.0}
    short = chat(rate, **late)
    assert short.output_tokens is not None
    short = replace(short, output_tokens=tuple((0.1 * tokens, share) for tokens, share in short.output_tokens))
    four = spec(4, interTokenLatencyMilliseconds=40, timeToFirstTokenMilliseconds=2000)
    plan = after(big("pppd", short), four, 60).plan
    assert plan.reason == reason
    if reason == reasons.SPLIT_COLLAPSED:
        assert (plan.action, plan.target.tokenBudget) == (Action.MERGE, 512)


def test_a_split_that_works_off_more_of_an_overload_than_mixed_engines_is_kept() -> None:
    late = {**STALLED, "missed_ratio": 0.9, "first_token_late_ratio": 0.9, "gaps_late_ratio": 0.0}
    for rate in (85.0, 100.0, 150.0):
        held = after(big("ppppppdd", chat(rate, **late)), LARGE, 60)
        assert (held.plan.action, held.plan.reason) == (Action.HOLD, reasons.OVERLOADED)


@pytest.mark.parametrize(
    ("before", "action"),
    [
        pytest.param(900, Action.HOLD, id="it shrinks"),
        pytest.param(799, Action.MERGE, id="it grows"),
        pytest.param(None, Action.MERGE, id="nobody knows"),
    ],
)
def test_a_split_is_not_blamed_for_a_queue_that_it_works_off(before: int | None, action: Action) -> None:
    late = {**STALLED, "missed_ratio": 0.9, "first_token_late_ratio": 0.9, "gaps_late_ratio": 0.0}
    busy = [replace(engine, running_requests=100) for engine in engines("ppppppdd", limit=512, maximum=8192)]
    seen = snapshot(busy, chat(48.0, **late), link_bytes_per_second=48e9)
    history = History(boards=(Board(NOW - 60.0, {}, 0.0, before),), loaded_since=NOW - 600.0)
    assert after(seen, LARGE, 45, history=history).plan.action is action
    boards = once(seen, LARGE, history=history).history.boards
    assert [board.requests for board in boards] == [before, 800]
