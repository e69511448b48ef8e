"""A copied fleet plays on as the original, and who tries every choice on copies does as well as the best of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.api.fleet import Role
from ridgeline.simulate.controller import obey
from ridgeline.simulate.counters import Outcome
from ridgeline.simulate.fleet import Fleet, FleetSettings
from ridgeline.simulate.replay import play
from ridgeline.simulate.request import Request
from ridgeline.simulate.rivals.best_static import best_static
from ridgeline.simulate.rivals.clairvoyant import (
    BUDGETS_TOKENS,
    Clairvoyant,
    Configuration,
    candidates,
    too_late,
    unfinished,
)
from ridgeline.simulate.router import least_load
from ridgeline.simulate.scheduler import EngineSettings
from ridgeline.simulate.traces import Arrival
from tests.bench.hindsight import Hindsight
from tests.simulate.scenarios import LinearCost, requests
from tests.simulate.test_rivals import COST, SETTINGS, plant, shifting

SMALL = FleetSettings(
    engines=4,
    engine=EngineSettings(kv_blocks=120, max_num_batched_tokens=256, max_num_seqs=64, hash_tokens=64),
    kv_bytes_per_token=1000.0,
    link_bytes_per_second=1e6,
    first_token_objective_seconds=0.5,
    inter_token_objective_seconds=0.02,
)
"""So little KV that requests are preempted and wait for room, and so slow a link that transfers take a while."""

Ended = dict[int, tuple[Outcome, float, float | None, int]]


class Played:
    """A fleet, and how each of its requests ended."""

    def __init__(self, split: bool) -> None:
        self.ended: Ended = {}
        self.fleet = Fleet(SMALL, LinearCost(), least_load(), self.done)
        if split:
            roles = (Role.PREFILL, Role.PREFILL, Role.DECODE, Role.MIXED)
            self.fleet.set_roles_at_once(dict(zip(self.fleet.engines, roles, strict=True)))

    def done(self, request: Request, outcome: Outcome, now: float) -> None:
        self.ended[request.identifier] = outcome, now, request.first_token_at, request.preemptions


@given(st.integers(0, 1000), st.floats(0.1, 6.0), st.booleans())
@settings(max_examples=30, deadline=None)
def test_a_copy_plays_on_as_the_original_would_and_leaves_it_alone(seed: int, seconds: float, split: bool) -> None:
    trace = requests(seed, 80, 15.0, (65, 900), (1, 80), shared=10)
    place = sum(arrival.seconds < seconds for arrival in trace)
    whole = Played(split)
    whole.fleet.run(trace)

    halved, twins = Played(split), dict[int, Any]()
    halved.fleet.run(trace[:place], until=seconds)
    before = dict(halved.ended)
    twin = halved.fleet.twin(
        lambda request, outcome, now: twins.__setitem__(
            request.identifier, (outcome, now, request.first_token_at, request.preemptions)
        )
    )
    twin.run(trace[place:], first=place)
    assert halved.ended == before, "what the copy did is the copy's"
    assert before | twins == whole.ended
    assert twin.counters.gap_buckets == whole.fleet.counters.gap_buckets
    halved.fleet.run(trace[place:], first=place)
    assert halved.ended == whole.ended


def test_nobody_looks_on_at_a_copy() -> None:
    fleet = Fleet(SETTINGS, COST, least_load())
    seen: list[float] = []
    fleet.every(1.0, seen.append)
    fleet.run([Arrival(0.0, 1000, 500)], until=2.5)
    twin = fleet.twin()
    twin.run([])
    assert seen == [1.0, 2.0]
    assert twin.now > 5.0
    fleet.run([])
    assert len(seen) > 5


def test_a_large_fleet_can_be_copied() -> None:
    fleet = Fleet(replace(SETTINGS, engines=100), COST, least_load())
    fleet.set_roles_at_once(
        {name: Role.PREFILL if place % 2 else Role.DECODE for place, name in enumerate(fleet.engines)}
    )
    fleet.run([Arrival(0.001 * i, 8000, 50) for i in range(2000)], until=2.0)
    twin = fleet.twin()
    twin.run([])
    fleet.run([])
    assert twin.now == fleet.now


# ---------------------------------------------------------------- choosing


def test_at_first_everything_is_tried_and_later_what_is_near() -> None:
    every = candidates(8, None)
    assert len(every) == len(set(every))
    assert set(every) == {Configuration(0, b) for b in BUDGETS_TOKENS} | {Configuration(p, 8192) for p in range(1, 8)}
    split = candidates(8, Configuration(3, 8192))
    assert split[0] == Configuration(3, 8192)
    assert sorted(each.prefill for each in split if each.prefill) == [1, 2, 3, 4, 5]
    assert sorted(each.budget_tokens for each in split if not each.prefill) == [256, 512, 1024]
    mixed = candidates(8, Configuration(0, 4096))
    assert mixed[0] == Configuration(0, 4096)
    assert sorted(each.prefill for each in mixed if each.prefill) == [3, 4, 5, 6, 7]
    assert sorted(each.budget_tokens for each in mixed if not each.prefill) == [2048, 4096, 8192]


@pytest.mark.parametrize(
    ("prefill", "changed"),
    [
        pytest.param(3, {"engine-3": Role.PREFILL}, id="the decode engine with fewer requests"),
        pytest.param(1, {"engine-1": Role.DECODE}, id="one prefill engine"),
        pytest.param(2, {}, id="nothing"),
        pytest.param(0, dict.fromkeys(("engine-0", "engine-1", "engine-2", "engine-3"), Role.MIXED), id="all mixed"),
    ],
)
def test_engines_keep_their_role_if_they_can(prefill: int, changed: dict[str, Role]) -> None:
    fleet = Fleet(SETTINGS, COST, least_load())
    roles = (Role.PREFILL, Role.PREFILL, Role.DECODE, Role.DECODE)
    fleet.set_roles_at_once(dict(zip(fleet.engines, roles, strict=True)))
    fleet.engines["engine-2"].in_flight = 5
    orders = Configuration(prefill, 8192).orders(fleet)
    assert orders.roles == changed
    assert orders.limits == {}
    obey(fleet, Configuration(prefill, 512).orders(fleet))
    assert {engine.scheduler.budget_tokens for engine in fleet.engines.values()} == {512}


def test_who_has_not_ended_and_can_no_longer_meet_the_objectives_has_missed() -> None:
    strict = replace(SETTINGS, engines=1, first_token_objective_seconds=3.0, inter_token_objective_seconds=0.01)
    fleet = Fleet(strict, COST, least_load())
    fleet.run([Arrival(0.0, 100, 400), Arrival(0.0, 190_000, 10), Arrival(4.0, 1000, 10)], until=4.5)
    assert judged(fleet) == {0: False, 1: True, 2: False}, "half a second a step: not yet 20 late gaps of 399"
    fleet.run([], until=8.0)
    assert judged(fleet) == {0: False, 1: True, 2: True}, "the last has waited for more than 3 s"
    fleet.run([], until=14.0)
    assert judged(fleet)[0], "every step is late, and 5 % of its gaps are over"


def judged(fleet: Fleet) -> dict[int, bool]:
    return {request.identifier: too_late(request, engine, fleet) for engine, request in unfinished(fleet)}


def test_a_choice_in_which_nobody_misses_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Configuration] = []
    rollout = Clairvoyant._rollout

    def counted(self: Clairvoyant, configuration: Configuration, *rest: Any) -> int | None:
        tried.append(configuration)
        return rollout(self, configuration, *rest)

    monkeypatch.setattr(Clairvoyant, "_rollout", counted)
    play("clairvoyant", plant(), [Arrival(float(second), 500, 20) for second in range(300)])
    assert tried == [Configuration(2, 8192)] * 3, "at the start and twice later"


def test_knowing_the_future_is_at_least_as_good_as_the_best_that_never_changes() -> None:
    """Within a point: it is greedy. The load is past what any choice can serve, and shifts."""
    trace = list(shifting(360.0, 22.0, every=120.0))
    names = [*(f"mixed:{tokens}" for tokens in BUDGETS_TOKENS), "split:1", "split:2"]
    best = best_static(play(name, plant(3), trace) for name in names).choice
    assert best is not None
    assert 0.5 < best["summary"]["attainment"] < 0.95
    foreseen = play("clairvoyant", plant(3), trace)
    assert len(foreseen["decisions"]) >= 2, "it changes its mind"
    assert foreseen["summary"]["attainment"] >= best["summary"]["attainment"] - 0.01


# ---------------------------------------------------------------- the best that never changes


def played(policy: str, attainment: float | None, first: float | None) -> dict[str, Any]:
    return {"policy": policy, "summary": {"attainment": attainment, "time_to_first_token_seconds": {"p95": first}}}


def test_the_best_static_choice_is_picked_by_attainment_then_by_time_to_first_token() -> None:
    runs = [
        played("ridgeline", 1.0, 0.1),
        played("overflow:2", 1.0, 0.1),
        played("mixed:512", 0.9, 2.0),
        played("mixed:256", 0.9, 1.0),
        played("mixed:8192", 0.2, 0.5),
        played("split:2", 0.95, 3.0),
        played("split:3", None, None),
    ]
    best = best_static(runs)
    assert best.mixed is runs[3]
    assert best.choice is runs[5]
    assert best_static(runs[:2]) == (None, None)
    assert best_static([runs[5]]) == (None, runs[5])


def test_hindsight_plays_what_came_once_more() -> None:
    trace = [Arrival(10.0 * place, 100 + place, 20) for place in range(20)]
    choice, fleet = Hindsight(), Fleet(SMALL, LinearCost(), least_load())
    choice.attend(fleet, trace)
    fleet.run(trace[:14], until=135.0)
    again, first = choice.coming(135.0)
    assert first == 14
    came = [(each.seconds, each.prompt_tokens) for each in again]
    assert came[:12] == [(140.0 + 10.0 * place, 102 + place) for place in range(12)], "of two minutes, from 20 s on"
    assert came[12:] == [(260.0 + 10.0 * place, 102 + place) for place in range(6)], "and again, for three in all"
