"""How many engines the load needs: the search beside trying every number, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.api.fleet import Action, FleetSpec, FleetStatus
from ridgeline.decide import reasons
from ridgeline.decide.candidates import Assessment, mixed_at_each_budget
from ridgeline.decide.decision import decide
from ridgeline.decide.engines_needed import FEWEST_ENGINES, REACH, fewest_engines
from ridgeline.decide.plan import Decision, History
from ridgeline.decide.question import Question
from ridgeline.decide.snapshot import Signals, Snapshot
from ridgeline.decide.whatif import HEADROOM, mixed, split
from tests.decide.fleets import LLAMA_8B, LLAMA_70B, NOW, chat, engines, snapshot, spec

LARGE = spec(8, interTokenLatencyMilliseconds=40, timeToFirstTokenMilliseconds=2000)
STALLED: dict[str, Any] = {
    "missed_ratio": 0.3, "gaps_late_ratio": 0.3, "first_token_late_ratio": 0.0, "decode_stall_ratio": 0.4,
    "inter_token_p99_seconds": 0.8,
}  # fmt: skip


def fleet(letters: str, signals: Signals) -> Snapshot:
    return snapshot(engines(letters, limit=512, maximum=8192), signals, link_bytes_per_second=48e9)


def asked(letters: str, signals: Signals, wanted: FleetSpec = LARGE, before: int | None = None) -> int | None:
    question = Question(fleet(letters, signals), wanted, FleetStatus(), History(engines_needed=before), NOW)
    load = question.load()
    assert load is not None
    return fewest_engines(question, Assessment(question, load), load)


def by_trying_all(engines_today: int, signals: Signals, wanted: FleetSpec = LARGE) -> int | None:
    """The least number of engines of which any candidate does, without assuming anything of their order."""
    question = Question(fleet("m" * engines_today, signals), wanted, FleetStatus(), History(), NOW)
    found, bounds = question.load(), wanted.topology
    assert found is not None
    load = replace(found, requests_per_second=HEADROOM * found.requests_per_second)
    limit = question.missed_limit
    budgets = [topology.tokenBudget or 0 for topology in mixed_at_each_budget(question)]
    for count in range(FEWEST_ENGINES, REACH * engines_today + 1):
        if any(mixed(load, count, budget).missed <= limit for budget in budgets):
            return count
        for prefill in range(bounds.minPrefillReplicas, count - bounds.minDecodeReplicas + 1):
            if split(load, prefill, count - prefill).missed <= limit:
                return count
    return None


@settings(deadline=None, max_examples=40)
@given(
    rate=st.floats(0.5, 150.0),
    today=st.sampled_from(["mmmm", "mmmmmmmm", "ppppppdd"]),
    base=st.sampled_from([LLAMA_8B, LLAMA_70B]),
    gap=st.sampled_from([25, 40, 80]),
    before=st.none() | st.integers(2, 100),
    pools=st.sampled_from([(1, 1), (3, 2)]),
)
def test_the_search_finds_what_trying_every_number_finds(
    rate: float, today: str, base: Signals, gap: int, before: int | None, pools: tuple[int, int]
) -> None:
    bounds: dict[str, Any] = {"minPrefillReplicas": pools[0], "minDecodeReplicas": pools[1]} if len(today) == 8 else {}
    wanted = spec(len(today), interTokenLatencyMilliseconds=gap, timeToFirstTokenMilliseconds=2000, **bounds)
    assert asked(today, chat(rate, base), wanted, before) == by_trying_all(len(today), chat(rate, base), wanted)


@settings(deadline=None, max_examples=30)
@given(st.floats(0.5, 60.0), st.floats(1.0, 4.0))
def test_more_load_never_needs_fewer_engines(rate: float, times: float) -> None:
    less, more = asked("m" * 8, chat(rate)), asked("m" * 8, chat(times * rate))
    assert less is not None
    assert more is None or more >= less


def test_the_engines_of_today_make_no_difference() -> None:
    found = {asked(letters, chat(48.0)) for letters in ("mmmm", "mmmmmmmm", "m" * 20, "ppppppdd", "ppd")}
    assert len(found) == 1
    assert found != {None}


def test_objectives_that_no_engine_can_meet_are_not_met_by_many() -> None:
    impossible = spec(8, interTokenLatencyMilliseconds=40, timeToFirstTokenMilliseconds=20)
    assert asked("m" * 8, chat(10.0), impossible) is None


def test_a_limit_of_no_misses_at_all_can_be_asked_for() -> None:
    strict = spec(8, interTokenLatencyMilliseconds=80, timeToFirstTokenMilliseconds=4000, missedRequestsPercent=0)
    assert asked("m" * 8, chat(20.0), strict) is not None


# ---------------------------------------------------------------- what is said of it


def decided(letters: str, signals: Signals, history: History | None = None, now: float = NOW) -> Decision:
    seen = fleet(letters, replace(signals, sampled_at=now))
    return decide(seen, LARGE, FleetStatus(), history or History(), now)


@pytest.mark.parametrize(
    ("signals", "reason", "text"),
    [
        pytest.param(
            chat(5.0), reasons.OBJECTIVES_MET, "with room for 15 % more requests, 2 engines would do", id="too many"
        ),
        pytest.param(
            chat(150.0, **STALLED),
            reasons.OVERLOADED,
            "with room for 15 % more requests, 19 engines are needed",
            id="too few",
        ),
        pytest.param(
            chat(3000.0, **STALLED), reasons.OVERLOADED, "even 64 engines would miss too many", id="out of reach"
        ),
    ],
)
def test_a_hold_says_how_many_engines_would_do(signals: Signals, reason: str, text: str) -> None:
    decision = decided("m" * 8, signals)
    assert (decision.plan.action, decision.plan.reason) == (Action.HOLD, reason)
    assert decision.plan.message.endswith(text)
    assert decision.history.engines_needed == asked("m" * 8, signals)


def test_it_is_worked_out_once_a_window_and_at_once_when_the_fleet_is_overloaded() -> None:
    start = decided("m" * 8, chat(5.0)).history
    assert start.engines_needed == 2
    begun = decided("m" * 8, chat(20.0), start, NOW + 10.0).history
    assert begun.engines_needed == asked("m" * 8, chat(20.0)) != 2, "in the first window, what is seen still grows"
    calm = decided("m" * 8, chat(5.0), start, NOW + 46.0).history
    soon = decided("m" * 8, chat(20.0), calm, NOW + 56.0)
    assert soon.history.engines_needed == 2, "the last answer stands for a window of the rules"
    later = decided("m" * 8, chat(20.0), soon.history, NOW + 92.0)
    assert later.history.engines_needed == asked("m" * 8, chat(20.0)) != 2
    rush = decided("m" * 8, chat(150.0, **STALLED), calm, NOW + 56.0)
    assert rush.plan.reason == reasons.OVERLOADED
    assert rush.history.engines_needed is not None
    assert rush.history.engines_needed > 8


def test_without_evidence_the_last_answer_stays() -> None:
    calm = decided("m" * 8, chat(5.0)).history
    blind = decide(fleet("m" * 8, replace(chat(5.0), missed_ratio=None)), LARGE, FleetStatus(), calm, NOW + 60.0)
    assert blind.recommendation is None
    assert blind.history.engines_needed == 2
