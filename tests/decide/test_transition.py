"""Transitions, from the first check to the end, in a world that obeys, fails or dies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.api.fleet import (
    Action,
    FleetStatus,
    Mode,
    Policy,
    Role,
    RouterType,
    Step,
    TopologyStatus,
    TransitionStatus,
)
from ridgeline.decide import reasons
from ridgeline.decide.plan import Plan
from ridgeline.decide.step_plan import Outcome
from ridgeline.decide.transition import cooldown_after
from ridgeline.decide.transition_steps import OWN_PROMPTS_SECONDS
from tests.decide.fleets import NOW, RULES_WINDOW_SECONDS, World, chat, engines, spec, table_serves


def to_split(prefill: int, decode: int, reason: str = reasons.DECODE_STALLED, budget: int | None = 512) -> Plan:
    target = TopologyStatus(mode=Mode.SPLIT, mixed=0, prefill=prefill, decode=decode, tokenBudget=budget)
    return Plan(Action.SPLIT, reason, "why", target)


def to_mixed(count: int, budget: int = 1024, reason: str = reasons.CALM) -> Plan:
    target = TopologyStatus(mode=Mode.MIXED, mixed=count, prefill=0, decode=0, tokenBudget=budget)
    return Plan(Action.MERGE, reason, "why", target)


def started(letters: str, plan: Plan, **parts: object) -> World:
    world = World.of(letters, spec(len(letters), soakSeconds=10), **parts)
    world.begin(plan)
    return world


def test_two_engines_split_through_tables_that_serve() -> None:
    world = started("mm", to_split(1, 1))
    end = world.run()
    assert end.outcome is Outcome.DONE
    assert world.tables == ["pm", "pd"]
    assert [e.limit_tokens for e in world.engines.values()] == [2048, 256]


def test_each_step_does_one_thing_and_says_so() -> None:
    world = started("mm", to_split(1, 1))
    seen = []
    for _ in range(8):
        step = world.ask()
        assert step.transition is not None
        seen.append((step.transition.step, step.verdict.reason, dict(step.roles), dict(step.limits), step.routed))
        world.obey(step)
        if step.transition.step is Step.SOAK:
            break
        world.serve()
        world.now += 1
    assert seen == [
        (Step.SWITCH, reasons.SWITCHING, {"e0": Role.PREFILL}, {}, False),
        (Step.SWITCH, reasons.SWITCHING, {"e1": Role.DECODE}, {}, False),
        (Step.SET_LIMITS, reasons.SETTING_LIMITS, {}, {"e1": 256}, True),
        (Step.SOAK, reasons.SOAKING, {}, {}, True),
    ]


def test_a_merge_needs_no_kv_to_move_and_gives_mixed_engines_the_budget() -> None:
    world = started("pd", to_mixed(2), traffic=False)
    assert world.run(30).outcome is Outcome.DONE
    assert world.letters() == "mm"
    assert {e.limit_tokens for e in world.engines.values()} == {1024}


def test_the_next_batch_waits_until_routers_show_the_last() -> None:
    world = started("mmmmmm", to_split(3, 3), routers_follow=False)
    first = world.ask()
    world.obey(first)
    assert len(first.roles) == 2
    waiting = world.ask()
    assert not waiting.roles
    assert waiting.verdict.reason == reasons.AWAITING_ROUTERS
    assert "e0" in waiting.verdict.message
    world.routers_follow = True
    assert len(world.ask().roles) == 2


def test_a_split_without_traffic_waits_and_is_accepted_in_the_end() -> None:
    world = started("mm", to_split(1, 1), traffic=False)
    for _ in range(20):
        step = world.ask()
        world.obey(step)
        world.now += 1
    assert step.verdict.reason == reasons.AWAITING_TRAFFIC
    end = world.run(200)
    assert (end.outcome, end.verdict.reason) == (Outcome.DONE, reasons.DONE_UNVERIFIED)


def test_kv_that_does_not_move_rolls_back_and_doubles_the_rest() -> None:
    world = started("mm", to_split(1, 1), kv_moves=False)
    end = world.run(120)
    assert (end.outcome, end.verdict.reason) == (Outcome.ROLLED_BACK, reasons.KV_NOT_MOVING)
    assert world.letters() == "mm"
    assert {e.limit_tokens for e in world.engines.values()} == {2048}
    assert end.rolled_back_transitions == 1
    assert end.cooldown_until == world.now + 60
    assert all(table_serves(t) for t in world.tables)


def test_kv_is_waited_for_longer_behind_prompts_of_the_decode_engine_itself() -> None:
    world = started("mm", to_split(1, 1), kv_moves=False)
    world.engines["e1"] = replace(world.engines["e1"], waiting_requests=5)
    begun = world.now
    end = world.run(240)
    assert (end.outcome, end.verdict.reason) == (Outcome.ROLLED_BACK, reasons.KV_NOT_MOVING)
    assert world.now - begun >= OWN_PROMPTS_SECONDS
    assert "in 120 s" in end.verdict.message


def test_the_clock_for_kv_starts_with_the_first_request() -> None:
    world = started("mm", to_split(1, 1), traffic=False)
    for _ in range(50):
        world.obey(world.ask())
        world.now += 1
    world.traffic = True
    world.kv_moves = False
    for _ in range(20):
        world.serve()
        step = world.ask()
        world.obey(step)
        world.now += 1
        assert step.outcome is None
        assert not step.roles


def test_a_failed_transfer_rolls_back_at_once() -> None:
    world = started("mm", to_split(1, 1), traffic=False)
    for _ in range(5):
        world.obey(world.ask())
        world.now += 1
    world.engines["e1"] = replace(world.engines["e1"], kv_failures=1.0)
    assert world.run(20).verdict.reason == reasons.KV_NOT_MOVING


def test_more_misses_than_before_roll_back_after_the_soak_began() -> None:
    world = started("mmmm", to_split(2, 2), signals=chat(10.0, missed_ratio=0.05))
    world.signals = chat(10.0, missed_ratio=0.40)
    end = world.run(60)
    assert end.verdict.reason == reasons.MISSES_ROSE
    assert "40.0 %" in end.verdict.message
    assert world.letters() == "mmmm"


@pytest.mark.parametrize(
    ("expected", "unchanged", "kept"),
    [
        pytest.param(0.30, 0.60, True, id="as forecast"),
        pytest.param(0.20, 0.54, True, id="nearer to what was forecast"),
        pytest.param(0.02, 0.60, False, id="nearer to what it should have saved"),
        pytest.param(0.30, 0.35, False, id="worse than staying should have been"),
        pytest.param(None, None, False, id="nothing was forecast"),
    ],
)
def test_misses_are_held_against_a_change_that_saved_less_than_half_of_what_it_should(
    expected: float | None, unchanged: float | None, kept: bool
) -> None:
    plan = replace(to_split(2, 2), expected_missed=expected, unchanged_missed=unchanged)
    world = started("mmmm", plan, signals=chat(10.0, missed_ratio=0.05))
    world.signals = chat(10.0, missed_ratio=0.40)
    assert world.run(60).outcome is (Outcome.DONE if kept else Outcome.ROLLED_BACK)


def test_misses_from_before_the_switch_are_not_held_against_the_split() -> None:
    """A soak shorter than the rules' window would judge the new topology by the old one's requests."""
    world = World.of("mmmm", spec(4, soakSeconds=1), signals=chat(10.0, missed_ratio=0.05))
    world.begin(to_split(2, 2))
    world.signals = chat(10.0, missed_ratio=0.40)
    while world.transition is not None and world.transition.step is not Step.SOAK:
        world.obey(world.ask())
        world.serve()
        world.now += 1
    for _ in range(int(RULES_WINDOW_SECONDS) - 2):
        world.obey(world.ask())
        assert world.transition is not None, "a new topology is watched for one window at least"
        assert world.transition.step is Step.SOAK
        world.now += 1
    world.signals = chat(10.0, missed_ratio=0.01)
    assert world.run(60).outcome is Outcome.DONE


def test_without_a_soak_the_misses_are_not_judged() -> None:
    world = World.of("mmmm", spec(4, soakSeconds=0), signals=chat(10.0, missed_ratio=0.05))
    world.begin(to_split(2, 2))
    world.signals = chat(10.0, missed_ratio=0.90)
    assert world.run(60).outcome is Outcome.DONE


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(0.30, 0.33, id="not clearly worse"),
        pytest.param(0.00, 0.015, id="within the limit"),
        pytest.param(0.30, None, id="not known any more"),
    ],
)
def test_a_soak_ends_well_unless_it_is_clearly_worse(before: float, after: float | None) -> None:
    world = started("mmmm", to_split(2, 2), signals=chat(10.0, missed_ratio=before))
    world.signals = chat(10.0, missed_ratio=after)
    end = world.run(60)
    assert end.outcome is Outcome.DONE
    assert end.rolled_back_transitions == 0


def test_a_fleet_that_is_not_in_order_is_not_touched() -> None:
    world = started("mM", to_split(1, 1))
    assert world.ask().verdict.reason == reasons.PRECHECKING
    end = world.run(120)
    assert (end.outcome, end.verdict.reason) == (Outcome.ROLLED_BACK, reasons.PRECHECK_FAILED)
    assert world.tables == []


def test_routers_that_stay_behind_undo_the_switch() -> None:
    world = started("mm", to_split(1, 1))
    world.obey(world.ask())
    world.snapshot()
    world.routers_follow = False
    end = world.run(600)
    assert end.outcome is Outcome.ROLLED_BACK
    assert world.letters() == "mm"


def test_a_switch_that_must_wait_for_an_engine_is_not_taken_for_done() -> None:
    world = started("mm", to_split(1, 1), traffic=False)
    world.obey(world.ask())
    world.engines["e0"] = replace(world.engines["e0"], ready=False)
    step = world.ask()
    assert step.transition is not None
    assert (step.transition.step, dict(step.roles), step.routed) == (Step.SWITCH, {}, False)
    end = world.run(600)
    assert (end.outcome, end.verdict.reason) == (Outcome.ROLLED_BACK, reasons.SWITCH_STUCK)
    assert world.letters().lower() == "mm"


def test_an_engine_lost_from_a_pair_makes_the_other_mixed_at_once() -> None:
    world = started("mm", to_split(1, 1))
    for _ in range(4):
        world.obey(world.ask())
        world.serve()
        world.now += 1
    assert world.letters() == "pd"
    del world.engines["e0"]
    step = world.ask()
    assert step.roles == {"e1": Role.MIXED}
    assert world.run(60).verdict.reason == reasons.TOO_FEW_ENGINES_LEFT


def test_an_engine_replaced_while_soaking_takes_the_role_that_is_missing() -> None:
    world = started("mmmm", to_split(2, 2))
    for _ in range(6):
        world.obey(world.ask())
        world.serve()
        world.now += 1
    lost = next(pod for pod, e in world.engines.items() if e.role is Role.DECODE)
    del world.engines[lost]
    world.obey(world.ask())
    world.engines["new"] = replace(engines("m")[0], pod="new")
    end = world.run(60)
    assert end.outcome is Outcome.DONE
    assert sorted(world.letters()) == sorted("ppdd")


def test_a_static_spec_that_changes_ends_the_transition_without_a_rest() -> None:
    world = started("mmm", to_split(1, 2, reason=reasons.STATIC_TOPOLOGY))
    world.obey(world.ask())
    world.spec = spec(3, "Static", prefillReplicas=2)
    step = world.ask()
    assert (step.outcome, step.verdict.reason, step.cooldown_until) == (Outcome.DONE, reasons.SUPERSEDED, None)


def test_a_fleet_scaled_to_nothing_ends_the_transition() -> None:
    world = started("mm", to_split(1, 1))
    world.engines.clear()
    assert world.ask().verdict.reason == reasons.ENGINES_VANISHED


def test_a_repair_of_a_broken_pair_does_not_wait_for_anything() -> None:
    target = TopologyStatus(mode=Mode.SPLIT, mixed=0, prefill=1, decode=2)
    world = World.of("ddM", spec(3), traffic=False, routers_follow=False)
    world.begin(Plan(Action.REBALANCE, reasons.PAIR_INCOMPLETE, "why", target))
    step = world.ask()
    assert step.roles == {"e0": Role.PREFILL}
    world.obey(step)
    world.routers_follow = True
    assert world.run(30).outcome is Outcome.DONE
    assert world.letters() == "pdd"


@pytest.mark.parametrize(("rolled_back", "seconds"), [(0, 30), (1, 60), (3, 240), (40, 3600)])
def test_the_rest_doubles_with_each_roll_back(rolled_back: int, seconds: int) -> None:
    assert cooldown_after(spec(), rolled_back) == seconds


def test_a_router_of_another_kind_is_taken_to_follow() -> None:
    world = started("mm", to_split(1, 1), routers_follow=False)
    external = world.spec.router.model_copy(update={"type": RouterType.EXTERNAL})
    world.spec = world.spec.model_copy(update={"router": external})
    assert world.run(60).outcome is Outcome.DONE


# ---------------------------------------------------------------- invariants


@st.composite
def plans(draw: st.DrawFn) -> tuple[str, Plan, int]:
    count = draw(st.integers(2, 9))
    letters = draw(st.text("mpd", min_size=count, max_size=count).filter(table_serves))
    prefill = draw(st.integers(0, count - 1))
    plan = to_split(prefill, count - prefill) if prefill else to_mixed(count)
    return letters, plan, draw(st.integers(1, 4))


@settings(deadline=None)
@given(plans(), st.booleans(), st.booleans(), st.integers(0, 12))
def test_every_table_serves_every_batch_is_small_and_it_ends(
    case: tuple[str, Plan, int], traffic: bool, kv_moves: bool, crash_at: int
) -> None:
    letters, plan, at_once = case
    world = World.of(letters, spec(len(letters), soakSeconds=5, maxConcurrentEngines=at_once))
    world.traffic, world.kv_moves = traffic, kv_moves
    world.begin(plan)
    for _ in range(900):
        step = world.ask()
        assert step == world.ask()  # nothing is remembered between calls
        if crash_at == 0 and len(step.roles) > 1:  # killed half-way through the orders: only the first was carried out
            pod = next(iter(step.roles))
            step = replace(step, roles={pod: step.roles[pod]}, limits={})
        crash_at -= 1
        world.obey(step)
        if step.transition is None:
            break
        world.transition = TransitionStatus.model_validate_json(step.transition.model_dump_json(by_alias=True))
        world.serve()
        world.now += 1
    assert step.outcome is not None
    assert all(table_serves(t) for t in world.tables)
    assert max(world.at_once, default=0) <= at_once
    if step.outcome is Outcome.DONE:
        have = sorted(world.letters())
        assert have == sorted("p" * plan.target.prefill + "d" * plan.target.decode + "m" * plan.target.mixed)


@settings(deadline=None)
@given(plans(), st.lists(st.tuples(st.integers(0, 30), st.sampled_from(["kill", "blip", "join"])), max_size=6))
def test_engines_that_die_blink_or_join_never_wedge_it(
    case: tuple[str, Plan, int], events: list[tuple[int, str]]
) -> None:
    letters, plan, at_once = case
    world = World.of(letters, spec(len(letters), soakSeconds=5, maxConcurrentEngines=at_once))
    world.begin(plan)
    for second in range(900):
        for when, what in events:
            if when != second:
                continue
            names = sorted(world.engines)
            if what == "kill" and names:
                del world.engines[names[0]]
            if what == "blip" and names:
                engine = world.engines[names[-1]]
                world.engines[names[-1]] = replace(engine, ready=not engine.ready)
            if what == "join":
                world.engines[f"j{second}"] = replace(engines("m")[0], pod=f"j{second}")
        if second == 40:
            for pod, engine in world.engines.items():
                world.engines[pod] = replace(engine, ready=True)
        served = table_serves(
            "".join(letter for letter, e in zip(world.letters(), world.engines.values(), strict=True) if e.ready)
        )
        step = world.ask()
        world.obey(step)
        ready = "".join(letter for letter, e in zip(world.letters(), world.engines.values(), strict=True) if e.ready)
        assert not served or table_serves(ready)
        if step.transition is None:
            return
        world.serve()
        world.now += 1
    raise AssertionError(step.verdict)


def test_policies_other_than_static_do_not_supersede() -> None:
    world = started("mm", to_split(1, 1))
    world.spec = spec(2, Policy.RECOMMEND.value, soakSeconds=1)
    assert world.run(60).outcome is Outcome.DONE


def test_roll_backs_in_a_row_are_counted_from_the_status() -> None:
    world = started("mm", to_split(1, 1), kv_moves=False, status=FleetStatus(rolledBackTransitions=2))
    end = world.run(120)
    assert end.rolled_back_transitions == 3
    assert end.cooldown_until == world.now + 240
    assert world.now > NOW
