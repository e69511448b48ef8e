"""What a transition asks of a snapshot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ridgeline.api.fleet import Objectives, Role
from ridgeline.decide.limits import limit_for, limits_to_set
from ridgeline.decide.observed import kv_bytes, kv_failures, own_prompts_wait, prefills, routers_lagging
from ridgeline.decide.snapshot import RouterState
from tests.decide.fleets import chat, engines, snapshot, spec

FLEET = engines("pd")
SHOWN = {"e0": Role.PREFILL, "e1": Role.DECODE}


@pytest.mark.parametrize(
    ("routers", "problem"),
    [
        pytest.param([RouterState("r0", True, SHOWN)], None, id="in step"),
        pytest.param([RouterState("r0", True, SHOWN), RouterState("r1", False, None)], None, id="one is starting"),
        pytest.param([RouterState("r0", True, SHOWN | {"gone": Role.MIXED})], None, id="a leaving engine drains"),
        pytest.param([], "no router is ready", id="none"),
        pytest.param([RouterState("r0", True, None)], "does not answer", id="a silent registrar"),
        pytest.param([RouterState("r0", True, {"e0": Role.PREFILL})], "not at all", id="an engine is missing"),
        pytest.param([RouterState("r0", True, SHOWN | {"e1": Role.MIXED})], "as mixed", id="an old role"),
    ],
)
def test_routers_are_in_step_when_each_shows_every_ready_engine_with_its_label(
    routers: list[RouterState], problem: str | None
) -> None:
    said = routers_lagging(replace(snapshot(FLEET), routers=tuple(routers)), spec())
    assert said is None if problem is None else said is not None and problem in said


def test_an_engine_that_is_not_ready_is_not_expected_in_a_table() -> None:
    fleet = engines("pdM")
    assert routers_lagging(replace(snapshot(fleet), routers=(RouterState("r0", True, SHOWN),)), spec()) is None


def test_counters_add_up_and_unknown_ones_count_nothing() -> None:
    a, b = FLEET
    fleet = snapshot(
        (replace(a, prompt_requests=7.0, kv_bytes_received=None), replace(b, kv_bytes_received=5.0, kv_failures=2.0))
    )
    assert (kv_bytes(fleet), kv_failures(fleet), prefills(fleet)) == (5, 2, 7)


def test_transferred_tokens_stand_in_where_no_engine_counts_bytes() -> None:
    silent = tuple(replace(e, kv_bytes_received=None, external_prompt_tokens=9.0) for e in FLEET)
    assert kv_bytes(snapshot(silent)) == 18


@pytest.mark.parametrize(
    ("letter", "running", "expected"),
    [
        pytest.param("p", 3, 8192, id="prefill engines get all"),
        pytest.param("d", 3, 256, id="decode engines little"),
        pytest.param("d", 200, 512, id="but room for every sequence"),
        pytest.param("d", 100_000, 8192, id="never more than at start"),
        pytest.param("m", 3, 512, id="mixed engines the fleet's budget"),
    ],
)
def test_budgets_by_role(letter: str, running: int, expected: int) -> None:
    (engine,) = engines(letter, maximum=8192)
    assert limit_for(replace(engine, running_requests=running), 512) == expected


def test_only_differing_budgets_of_engines_that_tell_are_set() -> None:
    a, b, c = engines("mmm", limit=512, maximum=8192)
    fleet = snapshot((a, replace(b, limit_tokens=8192), replace(c, limit_tokens=None)))
    target = fleet.topology.model_copy(update={"tokenBudget": 512})
    assert limits_to_set(fleet, target, Objectives()) == {"e1": 512}
    assert limits_to_set(fleet, None, Objectives()) == {}


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        pytest.param(100, {}, id="room"),
        pytest.param(2000, {"e0": 512, "e1": 512}, id="full"),
        pytest.param(None, {}, id="nobody tells"),
    ],
)
def test_prefill_engines_slow_down_while_decode_engines_are_full(held: int | None, expected: dict[str, int]) -> None:
    several = engines("ppdd", limit=8192, maximum=8192)
    several = (*several[:2], *(replace(e, running_requests=held, limit_tokens=None) for e in several[2:]))
    fleet = snapshot(several, chat(20.0))
    target = fleet.topology.model_copy(update={"tokenBudget": 512})
    assert limits_to_set(fleet, target, Objectives()) == expected
    unseen = replace(fleet, signals=chat(20.0, output_tokens=None))
    assert limits_to_set(unseen, target, Objectives()) == {}


def test_decode_engines_get_all_they_can_take_while_most_of_what_they_hold_are_prompts() -> None:
    (engine,) = engines("d", maximum=8192)
    assert limit_for(replace(engine, running_requests=100, waiting_requests=51), 512) == 8192
    assert limit_for(replace(engine, running_requests=100, waiting_requests=50), 512) == 256


def test_kv_cannot_come_while_every_decode_engine_has_prompts_of_its_own_before_it() -> None:
    prefill, one, two = engines("pdd")
    one, two = (replace(engine, waiting_requests=3) for engine in (one, two))
    assert own_prompts_wait(snapshot((prefill, one, two)))
    assert not own_prompts_wait(snapshot((prefill, one, replace(two, waiting_requests=0))))
    assert not own_prompts_wait(snapshot((prefill, one, replace(two, waiting_requests=None))))
    assert not own_prompts_wait(snapshot((replace(prefill, waiting_requests=3),)))
