"""A new split is watched, and the load turns: to watch it to the end would be to let it fill up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ridgeline.act.turn import Turn, status_after, take_turn
from ridgeline.api.conditions import Verdict
from ridgeline.api.fleet import Action, FleetSpec, FleetStatus, InferenceFleet, Mode, Policy, Step, TopologyStatus
from ridgeline.api.times import to_rfc3339
from ridgeline.decide import reasons
from ridgeline.decide.decision import decide
from ridgeline.decide.plan import History, Plan
from ridgeline.decide.snapshot import Signals, Snapshot
from ridgeline.decide.step_plan import Outcome
from tests.decide.fleets import LARGE, NOW, chat, engines, long_answers, snapshot

SOAKING = {
    "transition": {
        "from": {"mode": "Mixed", "mixed": 8, "prefill": 0, "decode": 0, "tokenBudget": 512},
        "to": {"mode": "Split", "mixed": 0, "prefill": 6, "decode": 2, "tokenBudget": 512},
        "step": Step.SOAK,
        "action": Action.SPLIT,
        "reason": reasons.DECODE_STALLED,
        "message": "why",
        "startTime": to_rfc3339(NOW - 5),
        "stepTime": to_rfc3339(NOW),
    }
}
STILL_FINE: dict[str, Any] = {"missed_ratio": 0.0, "gaps_late_ratio": 0.0, "first_token_late_ratio": 0.0}
WINDOW_SECONDS = LARGE.rules.stabilizationWindowSeconds / 3
"""Of agreement, where much is gained."""


def filling(signals: Signals, at: float) -> Snapshot:
    """6P:2D whose decode engines hold more than they should, with nothing late yet."""
    held = tuple(
        replace(e, decoding_requests=400, running_requests=400) if e.pod in ("e6", "e7") else e
        for e in engines("ppppppdd", limit=8192, maximum=8192)
    )
    return snapshot(held, replace(signals, sampled_at=at), link_bytes_per_second=48e9, rules_window_seconds=45.0)


def fleet(wanted: FleetSpec, status: FleetStatus) -> InferenceFleet:
    return InferenceFleet(namespace="ns", name="chat", uid="u", generation=1, spec=wanted, status=status)


def watched(
    signals: Signals, seconds: float, wanted: FleetSpec = LARGE, refusal: Verdict | None = None
) -> tuple[list[Turn], FleetStatus]:
    """A pass each second while a split is watched, until roles change or the time is over."""
    status, history, turns = FleetStatus.model_validate(SOAKING), History(), []
    for second in range(int(seconds) + 1):
        now, seen = NOW + second, filling(signals, NOW + second)
        turn = take_turn(fleet(wanted, status), seen, history, refusal, now, 5.0)
        status, history = status_after(fleet(wanted, status), seen, turn, now), turn.history
        turns.append(turn)
        if turn.plan is not None and turn.plan.changes_roles:
            break
    return turns, status


def test_a_split_that_long_answers_fill_is_merged_without_being_watched_to_the_end() -> None:
    turns, status = watched(long_answers(40.0, **STILL_FINE), 40)
    broken_off, merged = turns[-2], turns[-1]
    assert len(turns) - 2 == WINDOW_SECONDS, "the window of agreement runs as ever"
    assert broken_off.step is not None
    assert (broken_off.step.outcome, broken_off.step.verdict.reason) == (Outcome.DONE, reasons.LOAD_TURNED)
    assert "Split 8 mixed → 6P:2D is no longer watched: Merge 6P:2D → 8 mixed" in broken_off.step.verdict.message
    assert merged.plan is not None
    assert merged.plan.action is Action.MERGE
    assert status.cooldownUntilTime is not None, "a rest for every other change"
    assert to_rfc3339(NOW + WINDOW_SECONDS) < status.cooldownUntilTime


@pytest.mark.parametrize(
    ("signals", "wanted", "refusal"),
    [
        pytest.param(chat(56.0, **STILL_FINE), LARGE, None, id="the load it was made for"),
        pytest.param(
            replace(long_answers(40.0, **STILL_FINE), missed_ratio=None),
            LARGE,
            None,
            id="nothing is known of what is missed",
        ),
        pytest.param(
            long_answers(40.0, **STILL_FINE),
            LARGE.model_copy(update={"topology": LARGE.topology.model_copy(update={"policy": Policy.RECOMMEND})}),
            None,
            id="nobody asks for changes any more",
        ),
        pytest.param(
            long_answers(40.0, **STILL_FINE), LARGE, Verdict("False", "Refused", "no"), id="a spec that cannot work"
        ),
    ],
)
def test_else_it_is_watched_to_the_end(signals: Signals, wanted: FleetSpec, refusal: Verdict | None) -> None:
    turns, _ = watched(signals, 40, wanted, refusal)
    assert {turn.step.verdict.reason for turn in turns if turn.step} == {reasons.SOAKING}
    assert all(turn.plan is None for turn in turns)


def test_a_load_that_turns_for_a_moment_ends_nothing() -> None:
    status, history = FleetStatus.model_validate(SOAKING), History()
    for second in range(40):
        now = NOW + second
        signals = chat(56.0, **STILL_FINE) if second % 10 == 9 else long_answers(40.0, **STILL_FINE)
        turn = take_turn(fleet(LARGE, status), filling(signals, now), history, None, now, 5.0)
        history = turn.history
        assert turn.transition is not None
        assert turn.transition.step is Step.SOAK


def test_only_a_split_that_is_watched_is_given_up() -> None:
    verifying = FleetStatus.model_validate({"transition": {**SOAKING["transition"], "step": "Verify"}})
    wanted = Plan(Action.MERGE, "Why", "because", TopologyStatus(mode=Mode.MIXED, mixed=8, prefill=0, decode=0))
    status, history = verifying, History(wanted=wanted, wanted_since=NOW - 600.0)
    for second in range(40):
        now = NOW + second
        turn = take_turn(fleet(LARGE, status), filling(long_answers(40.0, **STILL_FINE), now), history, None, now, 5.0)
        history = turn.history
        assert turn.transition is not None
        assert turn.transition.step is Step.VERIFY
        assert history.wanted is None, "agreement begins with the watch"


def test_a_repair_that_is_due_comes_before_a_way_out() -> None:
    status, history = FleetStatus.model_validate(SOAKING), History()
    for second in range(40):
        now = NOW + second
        seen = filling(long_answers(40.0, **STILL_FINE), now)
        more = replace(engines("m", limit=8192, maximum=8192)[0], pod="e8", ready=True)
        turn = take_turn(fleet(LARGE, status), replace(seen, engines=(*seen.engines, more)), history, None, now, 5.0)
        history = turn.history
        assert turn.step is not None
        assert turn.step.verdict.reason != reasons.LOAD_TURNED


@pytest.mark.parametrize(
    ("rolled_back", "merges"),
    [pytest.param(0, True, id="does not wait"), pytest.param(1, False, id="waits when the last one was rolled back")],
)
def test_a_way_out_of_a_split_and_the_rest_after_the_last_change(rolled_back: int, merges: bool) -> None:
    resting = FleetStatus(cooldownUntilTime=to_rfc3339(NOW + 300), rolledBackTransitions=rolled_back)
    history = History()
    for second in range(0, 30, 5):
        now = NOW + second
        decision = decide(filling(long_answers(40.0, **STILL_FINE), now), LARGE, resting, history, now)
        history = decision.history
        if decision.plan.action is not Action.HOLD:
            break
    if merges:
        assert (decision.plan.action, now - NOW) == (Action.MERGE, WINDOW_SECONDS)
    else:
        assert decision.plan.reason == reasons.COOLING_DOWN
