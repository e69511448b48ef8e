"""Rival policies: each does what its published rule says, acts in the simulator, and loses no request."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.api.fleet import Role
from ridgeline.decide.snapshot import StepTimes
from ridgeline.simulate.counters import Counters, Outcome
from ridgeline.simulate.engine import Engine
from ridgeline.simulate.fleet import Fleet, FleetSettings
from ridgeline.simulate.observer import Delays
from ridgeline.simulate.replay import Plant, WrongReplay, controller, play
from ridgeline.simulate.request import Request
from ridgeline.simulate.rivals import dynamo, heteroscale, wva
from ridgeline.simulate.rivals.capacity import shares
from ridgeline.simulate.rivals.overflow import CHUNK_TOKENS, QUEUED_TOKENS, OverflowRouter, queued_prompt_tokens
from ridgeline.simulate.rivals.rival import START_UP_SECONDS
from ridgeline.simulate.rivals.sight import EngineSample, Sight
from ridgeline.simulate.router import least_load
from ridgeline.simulate.scheduler import Chunk, EngineSettings
from ridgeline.simulate.traces import Arrival
from ridgeline_exporters.roofline import catalogue, hardware
from ridgeline_exporters.roofline.model import ModelShape
from ridgeline_exporters.roofline.parallelism import Parallelism
from tests.simulate.scenarios import LinearCost

ENGINE = EngineSettings(kv_blocks=20_000)
SETTINGS = FleetSettings(
    engines=4,
    engine=ENGINE,
    kv_bytes_per_token=327_680.0,
    link_bytes_per_second=200e9,
    first_token_objective_seconds=2.0,
    inter_token_objective_seconds=0.05,
)
COST = LinearCost(fixed=0.018, token=6e-5, context=3e-8)
STEPS = StepTimes(0.02, 1e-5, 1e-7, 1e-4, "measured")
LIMITS = dynamo.Limits(2.0, 0.05, 400_000.0)
RIVALS = ("overflow:2", "dynamo", "wva", "heteroscale", "arrow", "clairvoyant")


def plant(engines: int = 4, first_token_milliseconds: int = 5000) -> Plant:
    shape = ModelShape.from_config(catalogue.find_model("llama-3.1-70b"), "fp8", parallelism=Parallelism(4))
    return Plant(shape, hardware.find("H100-SXM5-80GB"), engines, first_token_milliseconds, 50)


def shifting(seconds: float, per_second: float, every: float = 200.0, seed: int = 1) -> Iterator[Arrival]:
    """Chat, then long prompts with short answers, and again."""
    dice, now = random.Random(seed), 0.0
    while now < seconds:
        chat = int(now // every) % 2 == 0
        prompt, output = (800, 300) if chat else (8000, 60)
        yield Arrival(now, 1 + int(2 * prompt * dice.random()), 1 + int(2 * output * dice.random()))
        now += dice.expovariate(per_second if chat else per_second / 4.0)


def sample(decodes: int = 0, tokens: int = 0, queued: int = 0) -> EngineSample:
    return EngineSample(0, 0.0, 0, decodes, tokens, queued)


# ---------------------------------------------------------------- overflow


def loaded(tokens: dict[str, list[int]]) -> Fleet:
    """Two prefill and two decode engines; prompts that wait there behind a step that is under way."""
    fleet = Fleet(SETTINGS, COST, least_load())
    fleet.set_roles_at_once(
        {"engine-0": Role.PREFILL, "engine-1": Role.PREFILL, "engine-2": Role.DECODE, "engine-3": Role.DECODE}
    )
    for name, prompts in tokens.items():
        for prompt in prompts:
            fleet.engines[name].scheduler.add(Request(0, Arrival(0.0, prompt, 10), 0.0))
    return fleet


@pytest.mark.parametrize(
    ("queues", "chosen"),
    [
        pytest.param({}, ("engine-0", "engine-2"), id="nothing waits: a pair"),
        pytest.param(
            {"engine-0": [QUEUED_TOKENS + 1], "engine-1": [QUEUED_TOKENS]},
            ("engine-0", "engine-2"),
            id="one prefill engine is not above the threshold: a pair",
        ),
        pytest.param(
            {"engine-0": [20_000, 9000], "engine-1": [QUEUED_TOKENS + 1], "engine-2": [50]},
            ("engine-3", "engine-3"),
            id="all are above it: the decode engine with the least prefill",
        ),
    ],
)
def test_prompts_overflow_when_every_prefill_engine_is_backed_up(
    queues: dict[str, list[int]], chosen: tuple[str, str]
) -> None:
    fleet = loaded(queues)
    table = {role: [e for e in fleet.engines.values() if e.role is role] for role in Role}
    pair = OverflowRouter().choose(table, Request(9, Arrival(0.0, 1000, 10), 0.0))
    assert pair is not None
    assert tuple(engine.name for engine in pair) == chosen


def test_a_queue_is_counted_no_further_than_asked() -> None:
    engine = loaded({"engine-0": [30_000, 40_000]}).engines["engine-0"]
    assert queued_prompt_tokens(engine) == 70_000
    assert queued_prompt_tokens(engine, QUEUED_TOKENS) == 30_000


def test_overflow_prompts_move_no_kv_and_come_in_small_chunks() -> None:
    burst = [Arrival(0.01 * i, 8000, 20) for i in range(40)]
    taken: list[int] = []

    def record(engine: Engine, started_at: float, chunks: list[Chunk], decodes: list[Request], steps: int) -> None:
        if engine.role is Role.DECODE:
            taken.extend(chunk.tokens for chunk in chunks if not chunk.request.transferred)

    rival = controller("overflow:2", plant())
    fleet = Fleet(SETTINGS, COST, OverflowRouter(), record=record)
    orders = rival.begin(tuple(fleet.engines))
    fleet.set_roles_at_once(dict(orders.roles))
    for name, tokens in orders.limits.items():
        fleet.set_limit(name, tokens)
    fleet.run(burst)
    assert taken, "the queues of two engines hold 25,000 tokens after a few prompts"
    assert max(taken) <= CHUNK_TOKENS
    assert fleet.counters.outcomes[Outcome.FAILED] == fleet.counters.outcomes[Outcome.REFUSED] == 0
    overflowed = sum(taken) / 8000
    assert fleet.counters.kv_bytes_moved == pytest.approx((40 - overflowed) * 8000 * SETTINGS.kv_bytes_per_token)


# ---------------------------------------------------------------- WVA


@pytest.mark.parametrize(
    ("replicas", "wish"),
    [
        pytest.param([(0.1, 0), (0.1, 0)], wva.Wish.FEWER, id="nearly idle"),
        pytest.param([(0.1, 0)], wva.Wish.SAME, id="the last one stays"),
        pytest.param([(0.71, 0), (0.71, 0)], wva.Wish.MORE, id="spare KV below 0.10"),
        pytest.param([(0.1, 3), (0.1, 2)], wva.Wish.MORE, id="spare queue below 3"),
        pytest.param([(0.1, 2), (0.1, 2)], wva.Wish.SAME, id="spare queue at the trigger, and not with one fewer"),
        pytest.param([(0.4, 0), (0.4, 0)], wva.Wish.SAME, id="both on one replica would be 0.8"),
        pytest.param([(0.95, 0), (0.1, 0), (0.1, 0)], wva.Wish.FEWER, id="a saturated one does not count"),
        pytest.param([(0.80, 0), (0.1, 5)], wva.Wish.MORE, id="all are saturated"),
    ],
)
def test_wva_goes_by_spare_capacity(replicas: list[tuple[float, int]], wish: wva.Wish) -> None:
    assert wva.wish(replicas) is wish


# ---------------------------------------------------------------- HeteroScale


@pytest.mark.parametrize(
    ("prefill_rate", "decode_rate", "wanted"),
    [
        pytest.param(40_000.0, 4000.0, 4, id="in proportion"),
        pytest.param(42_000.0, 4000.0, 4, id="within the tolerance"),
        pytest.param(60_000.0, 2000.0, 6, id="three times the prefill"),
        pytest.param(1000.0, 9000.0, 1, id="one engine at least"),
    ],
)
def test_heteroscale_keeps_both_pools_at_the_same_share_of_their_targets(
    prefill_rate: float, decode_rate: float, wanted: int
) -> None:
    targets = heteroscale.Targets(prefill=10_000.0, decode=1000.0)
    assert heteroscale.wanted_prefill(prefill_rate, decode_rate, targets, 4, 4) == wanted


# ---------------------------------------------------------------- Dynamo


@pytest.mark.parametrize(
    ("queued", "change"),
    [
        pytest.param([20_000, 30_000], 1, id="every engine above 2 s"),
        pytest.param([20_000, 10_000], 0, id="one engine is not"),
        pytest.param([0, 0], -1, id="nothing waits"),
        pytest.param([8000, 8000], 0, id="on one engine 16,000 tokens would add more than 80 % of the room"),
        pytest.param([0], 0, id="the last engine stays"),
    ],
)
def test_dynamos_load_loop_goes_by_the_estimated_time_to_first_token(queued: list[int], change: int) -> None:
    assert dynamo.prefill_change(queued, 1000.0, STEPS, LIMITS) == change


def test_dynamo_asks_for_more_prefill_when_a_prompt_alone_takes_too_long() -> None:
    assert dynamo.prefill_change([0, 0], 20_000.0, STEPS, LIMITS) == 1


@pytest.mark.parametrize(
    ("engines", "change"),
    [
        pytest.param([sample(100, 300_000), sample(100, 310_000)], 1, id="every step above 50 ms"),
        pytest.param([sample(100, 300_000), sample(10, 1000)], 0, id="one step is not"),
        pytest.param([sample(10, 1000), sample(10, 1000)], -1, id="nearly idle"),
        pytest.param(
            [sample(100, 91_000), sample(100, 91_000)], 0, id="on one engine more than 40 ms, 80 % of the objective"
        ),
        pytest.param([sample(10, 1000, 350_000), sample(10, 1000)], 0, id="KV that waits would not fit on one"),
        pytest.param([sample(10, 1000)], 0, id="the last engine stays"),
    ],
)
def test_dynamos_load_loop_goes_by_the_estimated_step(engines: list[EngineSample], change: int) -> None:
    assert dynamo.decode_change(engines, STEPS, LIMITS) == change


def test_dynamos_throughput_loop_counts_replicas_for_rate_and_lengths() -> None:
    """A prefill engine does 8192 / (0.02 + 0.8192 s) = 9,762 tokens/s; a decode engine at 2,100 tokens of context."""
    traffic = dynamo.Traffic(requests_per_second=20.0, prompt_tokens=2000.0, output_tokens=200.0)
    batch = 0.03 / (1e-5 + 2100 * 1e-7)
    assert batch < 400_000 / 2100
    decode = 20.0 * 200.0 / (batch / 0.05)
    assert 1.0 < decode < 2.0
    assert dynamo.floors(traffic, STEPS, LIMITS, 8) == (5, 2)
    assert dynamo.floors(traffic, STEPS, LIMITS, 4) == (3, 1), "floors beyond the budget shrink in proportion"
    slow = dynamo.Traffic(0.01, 60_000.0, 10.0)
    assert dynamo.floors(slow, STEPS, LIMITS, 8)[0] == 4, "6.2 s of its own prefill, in parts of 2 s"


@pytest.mark.parametrize(
    ("now", "floor", "change", "moves"),
    [
        pytest.param((4, 4), (1, 1), (1, -1), 1, id="one asks, the other gives"),
        pytest.param((4, 4), (1, 1), (-1, 1), -1, id="the other way"),
        pytest.param((4, 4), (1, 1), (1, 0), 0, id="nobody gives: the budget is full"),
        pytest.param((4, 4), (1, 1), (1, 1), 0, id="both ask"),
        pytest.param((4, 4), (1, 4), (1, -1), 0, id="not below the floor"),
        pytest.param((4, 4), (6, 2), (0, 0), 2, id="up to the floor at once"),
        pytest.param((4, 4), (6, 3), (0, 0), 1, id="no more than the other has above its own"),
        pytest.param((6, 2), (2, 4), (1, -1), -2, id="a floor goes before the load"),
    ],
)
def test_dynamo_moves_within_a_fixed_total(
    now: tuple[int, int], floor: tuple[int, int], change: tuple[int, int], moves: int
) -> None:
    assert dynamo.moves_to_prefill(now, floor, change) == moves


def test_traffic_without_a_request_that_ended_is_not_known() -> None:
    counters = Counters()
    for _ in range(5):
        counters.arrived(1000)
    assert dynamo.Traffic.between(Counters(), counters, 180.0) is None
    counters.finished(Outcome.MET, 50)
    assert dynamo.Traffic.between(Counters(), counters, 2.0) == dynamo.Traffic(2.5, 1000.0, 50.0)


# ---------------------------------------------------------------- on a fleet


def test_what_is_scraped_is_seen_half_an_interval_later() -> None:
    fleet = Fleet(SETTINGS, COST, least_load())
    sight = Sight(fleet, 60.0, Delays(scrape_interval_seconds=10.0))
    seen: list[tuple[float, float | None]] = []

    def look(now: float) -> None:
        latest = sight.latest(now)
        seen.append((now, None if latest is None else latest.seconds))

    for time in (1.0, 5.0, 12.0, 16.0, 100.0):
        fleet.at(time, look)
    fleet.run([Arrival(0.0, 100, 10), Arrival(110.0, 100, 10)])
    assert seen == [(1.0, None), (5.0, 0.0), (12.0, 0.0), (16.0, 10.0), (100.0, 90.0)]
    assert [s.seconds for s in sight.window(100.0, 60.0)] == [40.0, 50.0, 60.0, 70.0, 80.0, 90.0]


def test_a_replaced_engine_works_off_what_it_has_and_comes_back_in_its_new_role() -> None:
    ended: list[Outcome] = []
    fleet = Fleet(SETTINGS, COST, least_load(), lambda request, outcome, now: ended.append(outcome))
    states: list[tuple[float, bool, bool, Role, Role | None]] = []
    engine = fleet.engines["engine-0"]

    def look(now: float) -> None:
        states.append((now, engine.draining, engine.ready, engine.role, fleet.seen_roles.get(engine.name)))

    fleet.at(10.0, lambda now: fleet.replace("engine-0", Role.DECODE, 60.0))
    for time in (9.0, 10.6, 15.0, 120.0):
        fleet.at(time, look)
    fleet.run([Arrival(0.5 * i, 500, 120) for i in range(300)])
    assert states[0] == (9.0, False, True, Role.MIXED, Role.MIXED)
    assert states[1] == (10.6, True, True, Role.MIXED, None), "it gets nothing more, and works on"
    assert states[2][1:] == (False, False, Role.DECODE, None), "stopped"
    assert states[3][1:] == (False, True, Role.DECODE, Role.DECODE)
    assert ended == [Outcome.MET] * 300


def test_an_engine_that_is_being_replaced_is_not_replaced_again() -> None:
    fleet = Fleet(SETTINGS, COST, least_load())
    fleet.at(1.0, lambda now: fleet.replace("engine-0", Role.DECODE, 5.0))
    fleet.at(1.5, lambda now: fleet.replace("engine-0", Role.PREFILL, 5.0))
    fleet.run([Arrival(i, 100, 10) for i in range(30)])
    assert fleet.engines["engine-0"].role is Role.DECODE


@pytest.mark.parametrize("name", ["dynamo", "wva", "heteroscale"])
def test_autoscalers_restart_an_engine_of_the_pool_that_can_spare_it(name: str) -> None:
    played = play(name, plant(), shifting(1000.0, 22.0, every=500.0))
    assert played["decisions"], "half and half does not suit this load"
    first = played["decisions"][0]
    assert first["action"] == "Rebalance"
    later = [i for i in played["timeline"] if i["start_seconds"] > first["seconds"]]
    gone = [i for i in later if i["prefill"] + i["decode"] < 4]
    assert len(gone) >= START_UP_SECONDS // 60 - 1, "its engine is away while it starts"
    assert all(i["prefill"] >= 1 and i["decode"] >= 1 for i in played["timeline"])
    assert sum(i["mixed"] for i in played["timeline"]) == 0


@pytest.mark.parametrize("name", RIVALS)
def test_no_rival_loses_a_request_and_each_plays_the_same_twice(name: str) -> None:
    one, two = (play(name, plant(), shifting(300.0, 12.0, every=100.0)) for _ in range(2))
    assert one == two
    outcomes = one["summary"]["outcomes"]
    assert outcomes["failed"] == outcomes["refused"] == outcomes["unfinished"] == 0


@pytest.mark.parametrize(
    "name", ["overflow:0", "overflow:4", "overflow", "dynamo:3", "wva:", "heteroscale:1", "arrows"]
)
def test_names_that_mean_nothing_are_refused_with_those_that_do(name: str) -> None:
    with pytest.raises(WrongReplay, match="overflow:PREFILL"):
        controller(name, plant())
    with pytest.raises(WrongReplay, match="for 1 engines"):
        controller("dynamo", plant(engines=1))


@given(st.floats(0.0, 1e6), st.floats(0.0, 1e6), st.integers(2, 64))
@settings(max_examples=200)
def test_shares_leave_no_pool_empty_and_none_over(prefill: float, decode: float, engines: int) -> None:
    first, second = shares(prefill, decode, engines)
    assert first >= 1 <= second
    assert first + second == engines
