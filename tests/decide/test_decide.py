"""`decide`: guards, triggers, levers, policies and repairs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.api.fleet import (
    Action,
    FleetStatus,
    LastDecision,
    Mode,
    Role,
    Step,
    TopologyStatus,
    TransitionStatus,
)
from ridgeline.api.times import to_rfc3339
from ridgeline.decide import reasons
from ridgeline.decide.calibration import bursty, no_more_than_seen
from ridgeline.decide.candidates import forecast
from ridgeline.decide.decision import decide, load_turned
from ridgeline.decide.plan import History, Plan
from ridgeline.decide.question import Question
from ridgeline.decide.scoreboard import Board
from ridgeline.decide.snapshot import MetricsProblem, Signals, Snapshot, StepsTaken, StepTimes
from ridgeline.decide.whatif import Forecast, Load
from tests.decide.fleets import (
    LARGE,
    LLAMA_8B,
    NOW,
    ONE_THREAD,
    STALLED,
    after,
    big,
    chat,
    engines,
    idle,
    long_answers,
    once,
    small_fleet,
    snapshot,
    spec,
)

NAN = float("nan")


def tuned(at: float) -> LastDecision:
    return LastDecision(action=Action.TUNE, reason="Why", message="because", time=to_rfc3339(at))


# ---------------------------------------------------------------- guards

BUSY = small_fleet(1.0, 0.7, **STALLED)


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        pytest.param(
            snapshot("mm", MetricsProblem("PrometheusUnreachable", "x")), "PrometheusUnreachable", id="no metrics"
        ),
        pytest.param(snapshot("mm", replace(BUSY, sampled_at=NOW - 61)), reasons.METRICS_STALE, id="old samples"),
        pytest.param(
            snapshot("mm", replace(BUSY, sampled_at=None)), reasons.METRICS_STALE, id="samples without a time"
        ),
        pytest.param(snapshot("mm", replace(BUSY, missed_ratio=NAN)), reasons.METRICS_NOT_A_NUMBER, id="NaN misses"),
        pytest.param(
            snapshot("mm", replace(BUSY, prompt_tokens=((NAN, 1.0),))), reasons.METRICS_NOT_A_NUMBER, id="NaN lengths"
        ),
        pytest.param(snapshot("mm", replace(BUSY, missed_ratio=None)), reasons.METRICS_INCOMPLETE, id="misses unknown"),
        pytest.param(
            snapshot("mm", replace(BUSY, output_tokens=None)), reasons.METRICS_INCOMPLETE, id="lengths unknown"
        ),
        pytest.param(
            snapshot("mm", replace(BUSY, engines_reporting=1)), reasons.METRICS_INCOMPLETE, id="one is silent"
        ),
        pytest.param(
            snapshot("mm", replace(BUSY, measured_steps=None)), reasons.STEP_TIMES_UNKNOWN, id="step times unknown"
        ),
        pytest.param(snapshot("m", BUSY), reasons.TOO_FEW_ENGINES, id="one engine"),
        pytest.param(snapshot((), BUSY), reasons.TOO_FEW_ENGINES, id="no engine"),
    ],
)
def test_what_is_not_known_holds_with_its_reason(seen: Snapshot, reason: str) -> None:
    for policy in ("Auto", "Recommend"):
        decision = after(seen, spec(2, policy), 120)
        assert (decision.plan.action, decision.plan.reason) == (Action.HOLD, reason)
        assert decision.recommendation is None
        assert decision.plan.target == seen.topology
        assert decision.history.wanted is None


def test_a_transition_under_way_holds_everything() -> None:
    mixed, split = topology(mixed=2), topology(prefill=1, decode=1)
    moving = TransitionStatus.model_validate(
        {
            "from": mixed,
            "to": split,
            "step": Step.SWITCH,
            "action": Action.SPLIT,
            "reason": "x",
            "message": "",
            "startTime": to_rfc3339(NOW),
            "stepTime": to_rfc3339(NOW),
        }
    )
    decision = once(snapshot("pm", BUSY), spec(2), status=FleetStatus(transition=moving))
    assert decision.plan.reason == reasons.TRANSITION_IN_PROGRESS


def topology(*, mixed: int = 0, prefill: int = 0, decode: int = 0, budget: int | None = None) -> TopologyStatus:
    mode = Mode.SPLIT if prefill + decode else Mode.MIXED
    return TopologyStatus(mode=mode, mixed=mixed, prefill=prefill, decode=decode, tokenBudget=budget)


TIGHT = spec(2, interTokenLatencyMilliseconds=25, timeToFirstTokenMilliseconds=8000)
"""One and a half decode steps: any chunk is late."""
EASY = spec(2, interTokenLatencyMilliseconds=200, timeToFirstTokenMilliseconds=8000)
"""A chunk of 256 tokens fits."""


@pytest.mark.parametrize(
    ("seen", "status", "reason"),
    [
        pytest.param(
            snapshot("mm", BUSY),
            FleetStatus(cooldownUntilTime=to_rfc3339(NOW + 300)),
            reasons.COOLING_DOWN,
            id="after a transition",
        ),
        pytest.param(snapshot("mmM", BUSY), FleetStatus(), reasons.ENGINES_NOT_READY, id="an engine starts"),
        pytest.param(
            snapshot("mm", BUSY, rules_window_seconds=300.0),
            FleetStatus(lastDecision=tuned(NOW - 30)),
            reasons.TUNED_LATELY,
            id="the signals still show the budget before",
        ),
    ],
)
def test_a_rest_holds_the_change_but_not_the_recommendation(seen: Snapshot, status: FleetStatus, reason: str) -> None:
    tight = TIGHT.model_copy(update={"replicas": len(seen.engines)})
    decision = after(seen, tight, 120, status)
    assert (decision.plan.action, decision.plan.reason) == (Action.HOLD, reason)
    assert decision.recommendation is not None
    assert decision.recommendation.action is Action.SPLIT


# ---------------------------------------------------------------- a small fleet on one thread an engine


def test_objectives_that_a_smaller_budget_meets_are_met_by_tuning_alone() -> None:
    decision = after(snapshot("mm", BUSY), EASY, 60)
    assert decision.plan.action is Action.TUNE
    assert decision.plan.target.mode is Mode.MIXED
    assert decision.plan.target.tokenBudget in (128, 256)
    assert decision.plan.reason == reasons.DECODE_STALLED
    assert decision.recommendation == decision.plan


@pytest.mark.parametrize("budget", [128, 256])
def test_once_tuned_the_fleet_stays_mixed_though_old_misses_still_show(budget: int) -> None:
    tuned = snapshot(engines("mm", limit=budget), small_fleet(1.0, 0.7, missed_ratio=0.2, gaps_late_ratio=0.2))
    wide = spec(2, interTokenLatencyMilliseconds=250, timeToFirstTokenMilliseconds=8000)
    decision = after(tuned, wide, 40)
    assert decision.plan.action in (Action.HOLD, Action.TUNE)
    assert decision.plan.target.mode is Mode.MIXED


@pytest.mark.parametrize(
    ("steady", "bursts", "late"),
    [
        pytest.param(1.0, 0.7, 0.15, id="moderate"),
        pytest.param(0.6, 0.4, 0.2, id="light, but bursty enough to be late"),
        pytest.param(1.5, 1.0, 0.4, id="heavy"),
    ],
)
def test_objectives_that_no_budget_meets_split_two_engines(steady: float, bursts: float, late: float) -> None:
    signals = small_fleet(steady, bursts, **{**STALLED, "missed_ratio": late, "gaps_late_ratio": late})
    decision = after(snapshot("mm", signals), TIGHT, 60)
    assert decision.plan.action is Action.SPLIT
    assert (decision.plan.target.prefill, decision.plan.target.decode) == (1, 1)


def test_a_split_that_works_is_kept_under_the_same_load() -> None:
    decision = after(snapshot("pd", small_fleet(1.0, 0.7)), TIGHT, 120)
    assert (decision.plan.action, decision.plan.reason) == (Action.HOLD, reasons.OBJECTIVES_MET)


@pytest.mark.parametrize(
    ("rate", "action"),
    [
        pytest.param(24.0, Action.REBALANCE, id="decode engines are nearly full: one more does"),
        pytest.param(28.0, Action.MERGE, id="decodes are more than they can do"),
    ],
)
def test_a_split_whose_decodes_drown_in_long_answers_is_merged_and_not_moved_by_one(
    rate: float, action: Action
) -> None:
    long = long_answers(rate, **STALLED)
    assert after(big("ppppppdd", long), LARGE, 60).plan.action is action


@pytest.mark.parametrize(
    "calm",
    [
        pytest.param(small_fleet(0.3, 0.0), id="a few short requests"),
        pytest.param(idle(small_fleet(0.3, 0.0), prompt_tokens=None, output_tokens=None), id="nobody"),
    ],
)
def test_a_split_fleet_merges_when_calm_after_the_window(calm: Signals) -> None:
    seen = snapshot("pd", calm)
    first = once(seen, TIGHT)
    assert (first.plan.action, first.plan.reason) == (Action.HOLD, reasons.STABILIZING)
    decision = after(seen, TIGHT, 60)
    assert (decision.plan.action, decision.plan.reason) == (Action.MERGE, reasons.CALM)
    assert decision.plan.target.mixed == 2


def test_a_merge_returns_to_the_budget_that_was_recommended() -> None:
    before = once(snapshot(engines("mm", limit=256), BUSY), EASY)
    assert before.recommendation is not None
    told = {
        "mode": Mode.SPLIT,
        "prefill": 1,
        "decode": 1,
        "tokenBudget": 256,
        "reason": "x",
        "message": "",
        "time": to_rfc3339(NOW),
    }
    status = FleetStatus.model_validate({"recommendation": told})
    merged = after(snapshot("pd", small_fleet(0.3, 0.0)), TIGHT, 60, status)
    assert merged.plan.action is Action.MERGE
    assert merged.plan.target.tokenBudget == 256


def test_an_idle_mixed_fleet_is_left_alone() -> None:
    decision = after(snapshot(engines("mm", limit=256), idle(small_fleet(1.0, 0.0), prompt_tokens=None)), TIGHT, 120)
    assert (decision.plan.action, decision.plan.reason) == (Action.HOLD, reasons.OBJECTIVES_MET)


def test_one_good_sample_does_not_restart_the_window() -> None:
    history = once(snapshot("mm", BUSY), TIGHT).history
    better = small_fleet(
        1.0, 0.7, **{**STALLED, "missed_ratio": 0.015, "decode_stall_ratio": 0.06, "sampled_at": NOW + 10}
    )
    later = once(snapshot("mm", better), TIGHT, history=history, now=NOW + 10)
    assert later.history.wanted_since == NOW


# ---------------------------------------------------------------- large fleets


def test_a_large_model_splits_with_evidence_that_a_person_can_check() -> None:
    phases = chat(48.0, **{**STALLED, "missed_ratio": 0.084})
    phases = replace(
        phases,
        prefill=replace(phases.prefill, arithmetic_intensity_flops_per_byte=1480.0),
        decode=replace(phases.decode, arithmetic_intensity_flops_per_byte=42.0),
    )
    decision = after(big("mmmmmmmm", phases, 256), LARGE, 60)
    assert decision.plan.action is Action.SPLIT
    assert decision.plan.target.prefill >= 5
    message = decision.plan.message
    for part in (
        "Split 8 mixed → ",
        "decode stalled 40 % of decode time (limit 10 %)",
        "8.4 % of requests miss their objectives (limit 2 %)",
        "prefill at 1,480 FLOP/byte is right of the ridge (295)",
        "decode at 42 FLOP/byte is left of the ridge (295)",
        "the best token budget for mixed engines",
        "moving 383 MB of KV a request takes 8.0 ms at 48 GB/s",
        "of the decode engines' ingress",
    ):
        assert part in message, message


def test_a_small_model_is_only_tuned() -> None:
    eight = chat(60.0, LLAMA_8B, **STALLED)
    decision = after(big("mmmmmmmm", eight, 8192), spec(8), 60)
    assert decision.plan.action is Action.TUNE
    assert decision.recommendation is not None
    assert decision.recommendation.target.mode is Mode.MIXED


def test_a_split_that_may_begin_is_not_put_off_by_a_tune() -> None:
    decision = after(big("mmmmmmmm", chat(48.0, **STALLED), 8192), LARGE, 60)
    assert decision.plan.action is Action.SPLIT


def test_a_bad_budget_is_mended_while_a_split_has_to_rest() -> None:
    resting = FleetStatus(cooldownUntilTime=to_rfc3339(NOW + 300))
    decision = after(big("mmmmmmmm", chat(48.0, **STALLED), 8192), LARGE, 60, resting)
    assert decision.plan.action is Action.TUNE
    assert decision.recommendation is not None
    assert decision.recommendation.action is Action.SPLIT


@pytest.mark.parametrize(
    ("letters", "rate", "action", "target"),
    [
        pytest.param("ppppdddd", 48.0, Action.REBALANCE, (0, 5, 3), id="one engine off: one engine moves"),
        pytest.param("pppddddd", 48.0, Action.MERGE, (8, 0, 0), id="engines off, and mixed engines would do"),
        pytest.param("ppppdddd", 64.0, Action.REBALANCE, (0, 6, 2), id="engines off, and only the best split does"),
    ],
)
def test_a_lopsided_split_goes_where_the_load_is_served(
    letters: str, rate: float, action: Action, target: tuple[int, int, int]
) -> None:
    plan = after(big(letters, chat(rate, **STALLED)), LARGE, 60).plan
    assert plan.action is action
    assert (plan.target.mixed, plan.target.prefill, plan.target.decode) == target


def test_a_split_is_not_rebalanced_into_misses_for_room_that_nobody_needs() -> None:
    pressed = chat(56.0, missed_ratio=0.0)
    decision = after(big("ppppppdd", pressed), LARGE, 60)
    assert decision.plan.action is Action.HOLD


# ---------------------------------------------------------------- what is seen, and what the model expects


def load_of(seen: Snapshot, status: FleetStatus | None = None) -> tuple[Question, Load, Load]:
    question = Question(seen, LARGE, status or FleetStatus(), History(), NOW)
    load = question.load()
    assert load is not None
    return question, load, no_more_than_seen(question, bursty(question, load))


def test_where_misses_do_not_come_the_model_is_asked_about_less() -> None:
    fine: dict[str, Any] = {"missed_ratio": 0.0, "gaps_late_ratio": 0.0, "time_to_first_token_p95_seconds": 0.3}
    question, load, less = load_of(big("pppppddd", chat(66.0, **fine)))
    assert forecast(load, question.today, question.budget).missed > 0.5
    assert forecast(less, question.today, question.budget).missed <= question.missed_limit
    assert 0.8 <= less.requests_per_second / load.requests_per_second < 1.0
    for other in ({"missed_ratio": 0.3}, {"time_to_first_token_p95_seconds": 1.5}):  # it is late, or a queue is there
        _, load, same = load_of(big("pppppddd", chat(66.0, **(fine | other))))
        assert same.requests_per_second == load.requests_per_second


def test_where_few_miss_and_nobody_waits_mixed_engines_are_asked_about_as_much_as_explains_the_misses() -> None:
    some: dict[str, Any] = {"gaps_late_ratio": 0.0, "first_token_late_ratio": 0.05, "missed_ratio": 0.05}
    question, load, less = load_of(big("mmmmmmmm", chat(56.0, **some, time_to_first_token_p95_seconds=0.3), 256))
    assert forecast(load, question.today, question.budget).missed > 0.5
    assert forecast(less, question.today, question.budget).missed == pytest.approx(0.05, abs=0.01)
    assert 0.8 <= less.requests_per_second / load.requests_per_second < 1.0
    more = some | {"first_token_late_ratio": 0.06, "missed_ratio": 0.06}
    for late in ({**some, "time_to_first_token_p95_seconds": 1.5}, {**more, "time_to_first_token_p95_seconds": 0.3}):
        _, load, same = load_of(big("mmmmmmmm", chat(56.0, **late), 256))
        assert same.requests_per_second == load.requests_per_second
    fine: dict[str, Any] = some | {"time_to_first_token_p95_seconds": 0.3}
    just_tuned = FleetStatus(lastDecision=tuned(NOW - 1.0))
    _, load, same = load_of(big("mmmmmmmm", chat(56.0, **fine), 256), just_tuned)
    assert same.requests_per_second == load.requests_per_second, "these misses are those of the budget before"
    _, load, same = load_of(big("pppppddd", chat(66.0, **fine)))
    assert same.requests_per_second == load.requests_per_second, "a split with full decode engines is held back"
    gaps = fine | {"gaps_late_ratio": 0.04, "first_token_late_ratio": 0.0, "missed_ratio": 0.04}
    question, load, same = load_of(big("mmmmmmmm", chat(56.0, **gaps), 512))
    assert forecast(load, question.today, question.budget).missed > 0.9
    assert same.requests_per_second == load.requests_per_second, "less work does not explain that"


def test_no_less_is_asked_than_explains_the_decodes_that_run() -> None:
    """Late gaps of long answers are counted when these end: until then a split that fills up looks fine."""
    in_time: dict[str, Any] = {"missed_ratio": 0.0, "gaps_late_ratio": 0.0, "time_to_first_token_p95_seconds": 0.3}

    def less(signals: Signals, decoding: float) -> tuple[Forecast, Forecast]:
        """What is modelled, and what is left of it, with so many decodes on each of two engines."""
        seen = big("ppppppdd", signals)
        held = (replace(e, decoding_requests=round(decoding)) if e.role is Role.DECODE else e for e in seen.engines)
        question, modelled, load = load_of(replace(seen, engines=tuple(held)))
        return tuple(forecast(each, question.today, question.budget) for each in (modelled, load))  # type: ignore[return-value]

    long = long_answers(28.0, **in_time)
    modelled, least = less(long, 0.0)
    assert modelled.missed > 0.9
    assert least.missed <= 0.02
    assert less(long, 2.0 * modelled.decode_batch)[1] == modelled, "more than the model says already"
    between = 0.5 * (least.decode_batch + modelled.decode_batch)
    assert less(long, between)[1].decode_batch == pytest.approx(between, rel=0.05)

    queueing = chat(78.0, **in_time)
    modelled, least = less(queueing, 0.0)
    assert modelled.first_token_late > 0.5
    assert less(queueing, modelled.decode_batch)[1] == least, "decodes tell nothing of first tokens"


def test_who_allows_no_miss_at_all_is_not_taken_for_lightly_loaded() -> None:
    strict = LARGE.model_copy(update={"rules": LARGE.rules.model_copy(update={"missedRequestsPercent": 0})})
    seen = big("mmmmmmmm", chat(5.0, gaps_late_ratio=0.0, time_to_first_token_p95_seconds=0.3), 256)
    question = Question(seen, strict, FleetStatus(), History(), NOW)
    load = question.load()
    assert load is not None
    assert no_more_than_seen(question, load) == load


def test_steps_that_are_never_late_are_shorter_than_modelled() -> None:
    question, load, less = load_of(big("mmmmmmmm", chat(30.0, missed_ratio=0.0, gaps_late_ratio=0.0), 512))
    assert forecast(load, question.today, question.budget).gaps_late > 0.5
    pace = less.steps.fixed_seconds / load.steps.fixed_seconds
    assert less.steps == load.steps.scaled(pace, pace)
    assert 0.9 <= less.steps.fixed_seconds / load.steps.fixed_seconds < 1.0


def test_steps_are_no_longer_than_explains_how_many_gaps_are_late() -> None:
    question, load, less = load_of(big("mmmmmmmm", chat(30.0, missed_ratio=0.1, gaps_late_ratio=0.1), 448))
    assert forecast(load, question.today, question.budget).gaps_late > 0.5
    assert forecast(less, question.today, question.budget).gaps_late == pytest.approx(0.1, abs=0.02)
    assert less.requests_per_second == load.requests_per_second, "requests that wait are missed later"
    hopeless = big("mmmmmmmm", chat(30.0, missed_ratio=0.1, gaps_late_ratio=0.1), 8192)
    _, load, same = load_of(hopeless)
    assert same == load, "no pace explains that"
    _, load, same = load_of(big("ppppppdd", chat(66.0, missed_ratio=0.1, gaps_late_ratio=0.1)))
    assert same.steps == load.steps, "a split with full decode engines is held back"


def test_the_first_board_comes_when_the_rules_have_seen_a_whole_window() -> None:
    seen, history = snapshot("mm", BUSY, rules_window_seconds=45.0), History()
    for seconds in (0.0, 20.0, 44.0, 46.0):
        at = NOW + seconds
        fresh = replace(seen, signals=replace(BUSY, sampled_at=at))
        history = once(fresh, TIGHT, history=history, now=at).history
        assert [board.time for board in history.boards] == ([at] if seconds > 45.0 else [])


def test_what_is_seen_within_a_window_of_a_pause_leaves_no_board() -> None:
    seen, history = snapshot("mm", BUSY, rules_window_seconds=45.0), History()
    quiet = replace(BUSY, requests_per_second=0.0)
    for seconds, signals in ((0.0, quiet), (50.0, quiet), (100.0, BUSY), (120.0, BUSY), (130.0, quiet), (140.0, BUSY)):
        at = NOW + seconds
        fresh = replace(seen, signals=replace(signals, sampled_at=at))
        history = once(fresh, TIGHT, history=history, now=at).history
    assert history.boards == ()
    assert history.loaded_since == NOW + 140.0


def test_a_budget_that_was_just_changed_teaches_nothing_yet() -> None:
    seen = big("mmmmmmmm", chat(30.0, **STALLED), 256)
    _, load, learned = load_of(seen)
    assert learned.burst > load.burst
    _, load, same = load_of(seen, FleetStatus(lastDecision=tuned(NOW - 10)))
    assert same == load


def test_while_nothing_is_late_a_split_is_not_left_for_one_with_less_room() -> None:
    for rate in (60.0, 66.0, 70.0):
        plan = after(big("ppppppdd", chat(rate, gaps_late_ratio=0.0)), LARGE, 60).plan
        assert plan.action is Action.HOLD, plan.message
        assert plan.reason != reasons.OVERLOADED, "requests meet their objectives"


@pytest.mark.parametrize(
    ("mixed", "split", "boards", "splits"),
    [
        pytest.param(0.080, 0.020, 4, True, id="the split alone meets the limit"),
        pytest.param(0.080, 0.020, 3, False, id="but not for long"),
        pytest.param(0.110, 0.050, 4, False, id="nobody meets it"),
        pytest.param(0.038, 0.000, 4, False, id="both meet it"),
        pytest.param(0.070, 0.030, 4, False, id="by less than half of the tolerance"),
    ],
)
def test_a_split_that_alone_meets_the_limit_for_minutes_needs_half_of_the_tolerance(
    mixed: float, split: float, boards: int, splits: bool
) -> None:
    """The load of now is light, so that scores are half of what is remembered."""
    missed = {(8, 0, 0, 2**n): mixed for n in range(7, 14)} | {(0, p, 8 - p, None): split for p in range(1, 8)}
    lately = History(boards=tuple(Board(NOW - 45.0 * n, missed, 1.0) for n in range(boards, 0, -1)))
    light = big("mmmmmmmm", chat(8.0, **{**STALLED, "missed_ratio": 0.03, "gaps_late_ratio": 0.0}), 512)
    wanted = once(light, LARGE, history=lately).history.wanted
    assert (wanted is not None and wanted.action is Action.SPLIT) is splits


def test_a_budget_is_chosen_for_the_load_of_now_alone() -> None:
    seen = big("mmmmmmmm", chat(44.0, **STALLED), 8192)
    missed = {(8, 0, 0, 2**n): 1.0 if n == 8 else 0.0 for n in range(7, 14)}
    boards = tuple(Board(NOW - 5.0 * n, missed, 1.0) for n in range(8, 0, -1))
    resting = FleetStatus(cooldownUntilTime=to_rfc3339(NOW + 300))
    wanted = once(seen, LARGE, history=History(boards=boards), status=resting).history.wanted
    assert wanted is not None
    assert (wanted.action, wanted.target.tokenBudget) == (Action.TUNE, 256)


def test_a_split_that_gains_much_does_not_wait_for_the_signals_of_a_new_budget() -> None:
    told = FleetStatus(lastDecision=tuned(NOW))
    assert after(big("mmmmmmmm", chat(56.0, **STALLED)), LARGE, 20, told).plan.action is Action.SPLIT


# ---------------------------------------------------------------- memory


def test_a_topology_that_failed_the_loads_of_lately_is_not_taken_for_the_load_of_now() -> None:
    """On the load of now 5P:3D and 6P:2D do alike; on that of before, 5P:3D missed everything."""
    seen = big("mmmmmmmm", chat(48.0, **STALLED), 512)
    missed = {(0, p, 8 - p, None): 1.0 for p in range(1, 8)} | {(8, 0, 0, 2**n): 1.0 for n in range(7, 14)}
    boards = tuple(Board(NOW - 5.0 * n, missed | {(0, 6, 2, None): 0.0}, 1.0) for n in range(8, 0, -1))
    for history, prefill in ((History(), 5), (History(boards=boards), 6)):
        recommendation = once(seen, LARGE, history=history).recommendation
        assert recommendation is not None
        assert recommendation.target.prefill == prefill


def test_a_fleet_is_merged_only_when_mixed_engines_would_have_done_for_a_while() -> None:
    quiet = snapshot("pd", small_fleet(0.3, 0.0))
    rough = Board(NOW - 5.0, {(2, 0, 0, 2048): 0.5, (0, 1, 1, None): 0.0}, 0.5)
    decision = once(quiet, TIGHT, history=History(boards=(rough,)))
    assert decision.recommendation is not None
    assert decision.recommendation.action is Action.HOLD
    assert after(quiet, TIGHT, 60).plan.action is Action.MERGE


@pytest.mark.parametrize("gap", [4.0, 6.0])
def test_a_board_is_kept_for_each_window_and_no_longer_than_the_memory_reaches(gap: float) -> None:
    history, seen = History(), snapshot("mm", BUSY, rules_window_seconds=5.0)
    for n in range(40):
        at = NOW + gap * n
        fresh = replace(seen, signals=replace(BUSY, sampled_at=at))
        history = once(fresh, TIGHT, history=history, now=at).history
    times = [board.time for board in history.boards]
    assert all(later - earlier >= 5.0 for earlier, later in pairwise(times))
    assert times[0] >= NOW + 39 * gap - 60.0 - gap
    assert len(times) > 5


def test_without_trouble_nothing_is_done_however_much_better_a_split_might_be() -> None:
    decision = after(big("mmmmmmmm", chat(5.0), 512), LARGE, 120)
    assert (decision.plan.action, decision.plan.reason) == (Action.HOLD, reasons.OBJECTIVES_MET)
    assert decision.recommendation is not None
    assert decision.recommendation.action is Action.HOLD


def test_stall_alone_is_no_trigger() -> None:
    stalled = chat(20.0, decode_stall_ratio=0.5, inter_token_p99_seconds=0.03)
    assert after(big("mmmmmmmm", stalled, 512), LARGE, 120).plan.reason != reasons.DECODE_STALLED


def test_transfers_that_fail_end_a_split() -> None:
    failing = chat(20.0, kv_transfer_failures_per_second=5.0)
    decision = after(big("ppppppdd", failing), LARGE, 60)
    assert (decision.plan.action, decision.plan.reason) == (Action.MERGE, reasons.KV_TRANSFERS_FAIL)


def test_a_split_that_a_slow_link_would_break_is_not_made() -> None:
    decision = after(big("mmmmmmmm", chat(48.0, **STALLED), 256, link=1e9), LARGE, 120)
    assert decision.plan.action is not Action.SPLIT


# ---------------------------------------------------------------- policies


def test_recommend_stops_at_the_recommendation() -> None:
    recommend = TIGHT.model_copy(update={"topology": spec(2, "Recommend").topology})
    decision = after(snapshot("mm", BUSY), recommend, 120)
    assert (decision.plan.action, decision.plan.reason) == (Action.HOLD, reasons.RECOMMEND_ONLY)
    assert decision.plan.target == snapshot("mm").topology
    assert decision.recommendation is not None
    assert decision.recommendation.action is Action.SPLIT
    assert decision.recommendation.message in decision.plan.message


def test_auto_waits_for_the_window_and_acts_after_a_third_of_it_where_it_costs_nothing_or_gains_much() -> None:
    some = small_fleet(1.0, 0.7, **{**STALLED, "missed_ratio": 0.1, "gaps_late_ratio": 0.1})
    assert after(snapshot("mm", some), TIGHT, 40).plan.reason == reasons.STABILIZING
    assert after(snapshot("mm", some), TIGHT, 45).plan.action is Action.SPLIT
    for objectives, action in ((EASY, Action.TUNE), (TIGHT, Action.SPLIT)):
        assert after(snapshot("mm", BUSY), objectives, 10).plan.reason == reasons.STABILIZING
        assert after(snapshot("mm", BUSY), objectives, 15).plan.action is action


@pytest.mark.parametrize(
    ("letters", "prefill", "action", "target"),
    [
        pytest.param("mm", 1, Action.SPLIT, (0, 1, 1), id="split"),
        pytest.param("mmmm", 3, Action.SPLIT, (0, 3, 1), id="split three to one"),
        pytest.param("ppdd", 3, Action.REBALANCE, (0, 3, 1), id="another division"),
        pytest.param("pdm", 1, Action.REBALANCE, (0, 1, 2), id="a replaced engine joins"),
        pytest.param("pd", 0, Action.MERGE, (2, 0, 0), id="merge"),
        pytest.param("pd", 1, Action.HOLD, (0, 1, 1), id="as it is"),
        pytest.param("mm", 0, Action.HOLD, (2, 0, 0), id="mixed as it is"),
        pytest.param("mM", 1, Action.HOLD, (2, 0, 0), id="an engine starts"),
        pytest.param("mm", 2, Action.HOLD, (2, 0, 0), id="not enough engines yet"),
    ],
)
def test_static_keeps_what_the_spec_says_without_metrics(
    letters: str, prefill: int, action: Action, target: tuple[int, int, int]
) -> None:
    decision = once(snapshot(letters), spec(max(len(letters), prefill + 1), "Static", prefillReplicas=prefill))
    assert decision.plan.action is action
    reached = decision.plan.target
    assert (reached.mixed, reached.prefill, reached.decode) == target
    if action is not Action.HOLD:
        assert decision.plan.reason == reasons.STATIC_TOPOLOGY


def test_static_gives_back_the_budget_that_auto_had_tuned() -> None:
    tuned = [replace(engine, limit_tokens=128) for engine in engines("mm")]
    maximum = min(engine.maximum_tokens or 0 for engine in tuned)
    plan = once(snapshot(tuned), spec(2, "Static", prefillReplicas=0)).plan
    assert (plan.action, plan.reason) == (Action.TUNE, reasons.STATIC_TOPOLOGY)
    assert (plan.target.mixed, plan.target.tokenBudget) == (2, maximum)
    restored = [replace(engine, limit_tokens=maximum) for engine in tuned]
    assert once(snapshot(restored), spec(2, "Static", prefillReplicas=0)).plan.action is Action.HOLD


def test_static_takes_the_recommendation_as_advice() -> None:
    static = TIGHT.model_copy(update={"topology": spec(2, "Static", prefillReplicas=0).topology})
    decision = once(snapshot("mm", BUSY), static)
    assert decision.plan.action is Action.HOLD
    assert decision.recommendation is not None
    assert decision.recommendation.action is Action.SPLIT


# ---------------------------------------------------------------- repairs


@pytest.mark.parametrize("policy", ["Auto", "Recommend", "Static"])
@pytest.mark.parametrize(
    ("letters", "action", "target"),
    [
        pytest.param("d", Action.MERGE, (1, 0, 0), id="the last engine"),
        pytest.param("dM", Action.MERGE, (2, 0, 0), id="its partner starts anew"),
        pytest.param("dPd", Action.REBALANCE, (0, 1, 2), id="the prefill engine crashed"),
        pytest.param("pp", Action.REBALANCE, (0, 1, 1), id="no decode engine"),
    ],
)
def test_a_pool_without_a_partner_is_mended_at_once_whatever_the_policy(
    letters: str, action: Action, target: tuple[int, int, int], policy: str
) -> None:
    wanted = spec(3, policy, **({"prefillReplicas": 1} if policy == "Static" else {}))
    resting = FleetStatus(cooldownUntilTime=to_rfc3339(NOW + 300))
    decision = once(snapshot(letters), wanted, status=resting)
    assert (decision.plan.action, decision.plan.reason) == (action, reasons.PAIR_INCOMPLETE)
    reached = decision.plan.target
    assert (reached.mixed, reached.prefill, reached.decode) == target


def test_a_replaced_engine_goes_where_it_was() -> None:
    history = once(snapshot("ppd", idle()), spec(3)).history
    assert history.split == (2, 1)
    decision = once(snapshot("pmd"), spec(3), history=history)
    assert (decision.plan.action, decision.plan.reason) == (Action.REBALANCE, reasons.ENGINE_REPLACED)
    assert (decision.plan.target.prefill, decision.plan.target.decode) == (2, 1)


def test_after_a_restart_of_the_operator_the_recorded_split_is_restored() -> None:
    status = FleetStatus(topology=topology(prefill=2, decode=1))
    decision = once(snapshot("pmd"), spec(3), status=status)
    assert (decision.plan.target.prefill, decision.plan.target.decode) == (2, 1)


def test_a_replaced_engine_that_is_not_ready_yet_is_waited_for() -> None:
    decision = once(snapshot("ppdM"), spec(4))
    assert decision.plan.reason == reasons.ENGINES_NOT_READY


def test_recommend_leaves_mixed_engines_beside_a_split_alone() -> None:
    assert once(snapshot("pmd", idle()), spec(3, "Recommend")).plan.action is Action.HOLD


@pytest.mark.parametrize(
    ("letters", "action", "prefill"),
    [
        pytest.param("pddd", Action.REBALANCE, 2, id="enough engines"),
        pytest.param("pdd", Action.MERGE, 0, id="too few engines for both minimums"),
    ],
)
def test_a_pool_below_its_minimum_is_filled_or_the_fleet_merged(letters: str, action: Action, prefill: int) -> None:
    wanted = spec(4, minPrefillReplicas=2, minDecodeReplicas=2)
    decision = once(snapshot(letters), wanted)
    assert (decision.plan.action, decision.plan.reason) == (action, reasons.POOL_BELOW_MINIMUM)
    assert decision.plan.target.prefill == prefill


# ---------------------------------------------------------------- invariants

numbers = st.none() | st.floats(0.0, 10.0) | st.sampled_from([NAN, 0.0, float("inf")])
ratios = st.none() | st.floats(0.0, 1.0) | st.just(NAN)
lengths = st.none() | st.lists(st.tuples(st.floats(0.0, 5000.0), st.floats(0.0, 1.0)), max_size=4).map(tuple)


rates = st.floats(0.0, 1e6) | st.sampled_from([NAN, float("inf")])
steps_taken = st.none() | st.builds(StepsTaken, rates, rates, rates, rates, rates, rates)


@st.composite
def signals(draw: st.DrawFn) -> Signals:
    return Signals(
        sampled_at=draw(st.none() | st.floats(NOW - 100, NOW)),
        engines_reporting=draw(st.none() | st.integers(0, 6)),
        requests_per_second=draw(numbers),
        missed_ratio=draw(ratios),
        first_token_late_ratio=draw(ratios),
        gaps_late_ratio=draw(ratios),
        decode_stall_ratio=draw(ratios),
        time_to_first_token_p95_seconds=draw(numbers),
        inter_token_p99_seconds=draw(numbers),
        prompt_tokens=draw(lengths),
        output_tokens=draw(lengths),
        measured_steps=draw(st.none() | st.just(ONE_THREAD) | st.just(StepTimes(NAN, 0.0, 0.0, 1.0, "measured"))),
        decode_steps=draw(steps_taken),
        prefill_steps=draw(steps_taken),
        peak_flops=draw(numbers),
        peak_memory_bytes_per_second=draw(numbers),
        flops_per_token=draw(numbers),
        weight_bytes=draw(numbers),
        kv_bytes_per_token=draw(numbers),
        kv_capacity_tokens=draw(numbers),
    )


@settings(deadline=None)
@given(st.text("mpdMPD", max_size=6), signals(), st.sampled_from(["Auto", "Recommend", "Static"]), st.integers(0, 3))
def test_whatever_is_seen_there_is_an_answer_with_a_reason_and_a_possible_target(
    letters: str, seen: Signals, policy: str, passes: int
) -> None:
    wanted = spec(6, policy, **({"prefillReplicas": 2} if policy == "Static" else {}))
    sight, history, watch = snapshot(letters, seen), History(), History()
    for round_ in range(passes + 1):
        decision = decide(sight, wanted, FleetStatus(), history, NOW + 20 * round_)
        assert decision == decide(sight, wanted, FleetStatus(), history, NOW + 20 * round_)
        history = decision.history
        assert decision.plan.reason
        assert decision.plan.message or not letters
        target = decision.plan.target
        assert target.mixed + target.prefill + target.decode == len(letters)
        if policy == "Recommend" and decision.plan.reason != reasons.PAIR_INCOMPLETE:
            assert decision.plan.action is Action.HOLD
        for plan in (decision.plan, decision.recommendation):
            assert plan is None or isinstance(plan, Plan)
        way_out, watch = load_turned(sight, wanted, FleetStatus(), watch, NOW + 20 * round_)
        if way_out is not None:
            assert policy == "Auto"
            assert (way_out.action, way_out.target.mixed) == (Action.MERGE, len(letters))


@settings(deadline=None)
@given(st.sampled_from(["mm", "pd", "ppd", "mmmm"]), st.sampled_from([0.1, 1.0, 2.0]), st.floats(0.0, 1.0))
def test_missing_metrics_never_flip_anything(letters: str, rate: float, missed: float) -> None:
    history = decide(
        snapshot(letters, small_fleet(rate, rate, missed_ratio=missed)),
        spec(len(letters)),
        FleetStatus(),
        History(),
        NOW,
    ).history
    blind = decide(snapshot(letters), spec(len(letters)), FleetStatus(), history, NOW + 3600)
    assert blind.plan.action is Action.HOLD


# ---------------------------------------------------------------- how bursty arrivals are


def test_what_mixed_engines_showed_of_bursts_is_remembered_in_the_split() -> None:
    light = small_fleet(0.3, 0.15)
    shown = small_fleet(0.3, 0.15, **{**STALLED, "missed_ratio": 0.12, "gaps_late_ratio": 0.12})
    bursty = once(snapshot("mm", shown), TIGHT).history
    assert bursty.burst > 2.0
    kept = once(snapshot("pd", light), TIGHT, history=replace(bursty, wanted=None, wanted_since=None))
    assert kept.plan.reason == reasons.OBJECTIVES_MET
    assert kept.history.burst == bursty.burst


def test_gaps_that_are_no_longer_late_tell_of_no_bursts() -> None:
    """Long answers are counted as late when they end, long after the topology in which they were."""
    late = {**STALLED, "missed_ratio": 0.12, "gaps_late_ratio": 0.12}
    now, before = small_fleet(0.3, 0.15, **late), small_fleet(0.3, 0.15, **{**late, "inter_token_p99_seconds": 0.02})
    assert once(snapshot("mm", now), TIGHT).history.burst > 2.0
    assert once(snapshot("mm", before), TIGHT).history.burst == 1.0
    unknown = replace(now, inter_token_p99_seconds=None)
    assert once(snapshot("mm", unknown), TIGHT).history.burst > 2.0


def test_an_operator_that_was_restarted_finds_the_bursts_in_the_status() -> None:
    light = small_fleet(1.5, 0.0, missed_ratio=0.0, gaps_late_ratio=0.0)
    split = FleetStatus(arrivalBurstPercent=350)
    assert once(snapshot("pd", light), TIGHT, status=split).history.burst == 3.5
    assert once(snapshot("mm", light), TIGHT, status=split).history.burst == 1.0, "mixed engines show it themselves"


def test_bursts_are_forgotten_when_mixed_engines_no_longer_show_them() -> None:
    smooth = small_fleet(1.0, 0.0, gaps_late_ratio=0.0)
    assert once(snapshot("mm", smooth), TIGHT, history=History(burst=5.0)).history.burst == 1.0
