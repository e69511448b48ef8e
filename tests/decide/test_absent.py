"""Engines that stay away: for how long they are waited for, and what the fleet is without them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.act.turn import Turn, take_turn
from ridgeline.api.fleet import Action, FleetStatus, InferenceFleet, Role, Step
from ridgeline.decide import reasons
from ridgeline.decide.absent import PATIENCE_SECONDS, absent, labels_of_absent, without
from ridgeline.decide.observed import kv_bytes, kv_failures, prefills
from ridgeline.decide.plan import History
from ridgeline.decide.snapshot import Snapshot
from tests.decide.fleets import NOW, chat, engines, snapshot, spec

STALLED: dict[str, Any] = {
    "missed_ratio": 0.3,
    "gaps_late_ratio": 0.3,
    "decode_stall_ratio": 0.4,
    "inter_token_p99_seconds": 0.8,
}
OBJECTIVES: dict[str, Any] = {"interTokenLatencyMilliseconds": 40, "timeToFirstTokenMilliseconds": 2000}


def fleet(
    letters: str, away_seconds: float | None = PATIENCE_SECONDS, rate: float = 48.0, now: float = NOW
) -> Snapshot:
    """Engines of a large model in trouble; capitals have been away for so long."""
    since = None if away_seconds is None else now - away_seconds
    states = engines(letters, limit=512, maximum=8192)
    known = [engine if engine.ready else replace(engine, unready_since=since) for engine in states]
    return snapshot(known, replace(chat(rate, **STALLED), sampled_at=now), link_bytes_per_second=48e9)


def turn_of(seen: Snapshot, policy: str = "Auto", history: History | None = None, now: float = NOW) -> Turn:
    wanted = spec(len(seen.engines), policy, **OBJECTIVES)
    of = InferenceFleet(namespace="n", name="f", uid="u", generation=1, spec=wanted, status=FleetStatus())
    return take_turn(of, seen, history or History(), None, now, 5.0)


@pytest.mark.parametrize(
    ("letters", "away_seconds", "policy", "names"),
    [
        pytest.param("mmmM", PATIENCE_SECONDS, "Auto", ["e3"], id="for long"),
        pytest.param("mmmM", PATIENCE_SECONDS - 1.0, "Auto", [], id="not yet"),
        pytest.param("mmmM", None, "Auto", [], id="nobody knows since when"),
        pytest.param("ppPddD", 600.0, "Auto", ["e2", "e5"], id="two of a split"),
        pytest.param("mMMM", 600.0, "Auto", [], id="only one serves"),
        pytest.param("MMMM", 600.0, "Auto", [], id="the fleet starts"),
        pytest.param("mmmMMM", 600.0, "Auto", [], id="half of it has started"),
        pytest.param("mmmM", 600.0, "Recommend", [], id="recommending changes nothing"),
        pytest.param("mmmM", 600.0, "Static", [], id="static keeps what the spec says"),
    ],
)
def test_who_counts_no_longer(letters: str, away_seconds: float | None, policy: str, names: list[str]) -> None:
    found = absent(fleet(letters, away_seconds), spec(len(letters), policy), NOW)
    assert [engine.pod for engine in found] == names


def test_the_counters_of_an_engine_that_comes_back_prove_nothing_anew() -> None:
    """What it received before the switch is in the sums while it is away as when it is back."""
    seen = fleet("ppdD", 600.0)
    counted = [replace(e, kv_bytes_received=5.0, kv_failures=1.0, prompt_requests=3.0) for e in seen.engines]
    seen = replace(seen, engines=tuple(counted))
    away = without(seen, absent(seen, spec(4), NOW))
    assert len(away.live) == 3
    for count in (kv_bytes, kv_failures, prefills):
        assert count(away) == count(seen) > 0


@given(st.text("mpdMPD", max_size=8), st.floats(0.0, 1000.0))
def test_whoever_is_ready_stays(letters: str, away_seconds: float) -> None:
    seen = fleet(letters, away_seconds)
    gone = absent(seen, spec(max(1, len(letters))), NOW)
    assert without(seen, gone).serving == seen.serving
    assert not gone or len(seen.serving) >= 2


def test_a_fleet_with_an_engine_away_for_good_is_divided_without_it() -> None:
    """A prefill engine of five is gone, and the four that are left are too few."""
    history, begun = History(), {}
    for passed in range(0, 61, 5):
        turn = turn_of(fleet("ppppPddd", float(passed), 52.0, NOW + passed), history=history, now=NOW + passed)
        history = turn.history
        if turn.transition is not None:
            begun[passed] = turn.transition
    first = min(begun)
    assert first >= PATIENCE_SECONDS
    assert (begun[first].origin.prefill, begun[first].origin.decode) == (4, 3)
    assert (begun[first].to.mixed, begun[first].to.prefill + begun[first].to.decode) == (0, 7)


def test_a_transition_goes_on_without_the_engine_that_is_away() -> None:
    moving = {
        "from": {"mode": "Mixed", "mixed": 6, "prefill": 0, "decode": 0},
        "to": {"mode": "Split", "mixed": 0, "prefill": 3, "decode": 3},
        "step": Step.PRECHECK,
        "action": Action.SPLIT,
        "reason": "x",
        "message": "",
        "startTime": "2027-01-15T08:00:00Z",
        "stepTime": "2027-01-15T08:00:00Z",
    }
    status = FleetStatus.model_validate({"transition": moving})
    for away_seconds, step in ((10.0, Step.PRECHECK), (PATIENCE_SECONDS, Step.SWITCH)):
        seen = fleet("mmmmmmM", away_seconds)
        of = InferenceFleet(namespace="n", name="f", uid="u", generation=1, spec=spec(7), status=status)
        turn = take_turn(of, seen, History(), None, NOW, 5.0)
        assert turn.transition is not None
        assert turn.transition.step is step


@pytest.mark.parametrize(
    ("letters", "labels"),
    [
        pytest.param("mmmD", {"e3": Role.MIXED}, id="beside mixed engines it would be alone"),
        pytest.param("mmmM", {}, id="it is mixed already"),
        pytest.param("ppdD", {}, id="in a split it comes back to its pool"),
        pytest.param("ppdM", {}, id="a mixed one is taken in when it is back"),
    ],
)
def test_an_engine_that_is_away_comes_back_with_a_role_that_serves(letters: str, labels: dict[str, Role]) -> None:
    seen = fleet(letters)
    gone = absent(seen, spec(4), NOW)
    assert labels_of_absent(gone, without(seen, gone)) == labels
    quiet = replace(seen, signals=chat(0.1))
    assert turn_of(quiet).roles == labels
    assert turn_of(replace(fleet(letters, 10.0), signals=chat(0.1))).roles == {}
    assert turn_of(quiet, "Static").roles == {}


@pytest.mark.parametrize(("away_seconds", "filled"), [(10.0, False), (PATIENCE_SECONDS, True)])
def test_a_pool_that_is_left_below_its_minimum_is_filled(away_seconds: float, filled: bool) -> None:
    seen = replace(fleet("pppdD", away_seconds), signals=chat(0.5))
    wanted = spec(5, minDecodeReplicas=2, minPrefillReplicas=2, **OBJECTIVES)
    of = InferenceFleet(namespace="n", name="f", uid="u", generation=1, spec=wanted, status=FleetStatus())
    turn = take_turn(of, seen, History(), None, NOW, 5.0)
    assert turn.plan is not None
    assert (turn.plan.reason == reasons.POOL_BELOW_MINIMUM) is filled
    assert (turn.transition is not None) is filled
    if turn.transition is not None:
        assert (turn.transition.to.prefill, turn.transition.to.decode) == (2, 2)
