"""What an operator sees of a simulated fleet, what its orders do, and what comes out at the end."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from ridgeline.api.fleet import Action, Mode, Role
from ridgeline.decide.snapshot import MetricsProblem, Signals, Snapshot
from ridgeline.simulate.controller import Orders, StaticMixed, StaticSplit, obey, steer
from ridgeline.simulate.fleet import Fleet, FleetSettings
from ridgeline.simulate.observer import Delays, Observer, bucket_quantile
from ridgeline.simulate.results import Results, exact_quantile
from ridgeline.simulate.ridgeline_policy import RidgelinePolicy
from ridgeline.simulate.router import least_load
from ridgeline.simulate.scheduler import EngineSettings
from ridgeline.simulate.traces import Arrival
from tests.decide.fleets import LLAMA_70B, spec
from tests.simulate.scenarios import LinearCost, requests

GOLDEN = Path(__file__).with_name("golden.json")
ENGINE = EngineSettings(kv_blocks=20_000, max_num_batched_tokens=8192, max_num_seqs=1024)
SETTINGS = FleetSettings(
    engines=4,
    engine=ENGINE,
    kv_bytes_per_token=327_680.0,
    link_bytes_per_second=48e9,
    first_token_objective_seconds=2.0,
    inter_token_objective_seconds=0.05,
)
COST = LinearCost(fixed=0.018, token=6e-5, context=3e-8)
"""About a 70B model on four GPUs."""


def steady(
    seconds: float, per_second: float, prompt: int = 1500, output: int = 150, seed: int = 1
) -> Iterator[Arrival]:
    dice = random.Random(seed)
    now = 0.0
    while now < seconds:
        yield Arrival(now, 1 + int(dice.random() * 2 * prompt), 1 + int(dice.random() * 2 * output))
        now += dice.expovariate(per_second)


@dataclass
class Looker:
    """Looks, and gives the orders of a list."""

    orders: dict[int, Orders] = field(default_factory=dict)
    seen: list[tuple[float, Snapshot]] = field(default_factory=list)
    name: str = "looker"

    def begin(self, engines: tuple[str, ...]) -> Orders:
        return Orders()

    def decide(self, now: float, snapshot: Snapshot) -> Orders:
        self.seen.append((now, snapshot))
        return self.orders.get(len(self.seen), Orders())


def watched(looker: Looker, seconds: float = 120.0, delays: Delays | None = None, rate: float = 4.0) -> Fleet:
    fleet = Fleet(SETTINGS, COST, least_load())
    steer(fleet, looker, Observer(fleet, LLAMA_70B, delays))
    fleet.run(steady(seconds, rate))
    return fleet


def test_the_first_signals_come_after_two_scrapes_and_are_never_taken_for_zero() -> None:
    looker = Looker()
    watched(looker, 40.0)
    (early, first), (_, second), (_, third), *_ = looker.seen
    assert early == 5.0
    assert isinstance(first.signals, Signals)
    assert first.signals.requests_per_second is None, "one scrape makes no rate"
    assert isinstance(second.signals, Signals)
    assert second.signals.requests_per_second is not None
    assert isinstance(third.signals, Signals)
    assert third.signals.sampled_at == 1_700_000_010.0, "at 15 s the evaluation of 12.5 s, of the scrape of 10 s"
    fleet = Fleet(SETTINGS, COST, least_load())
    assert isinstance(Observer(fleet, LLAMA_70B).signals(1.0), MetricsProblem)


def test_signals_are_what_happened_in_the_window() -> None:
    looker = Looker()
    fleet = Fleet(SETTINGS, COST, least_load())
    ended: list[tuple[float, int, int, float]] = []
    fleet = Fleet(
        SETTINGS, COST, least_load(), lambda r, o, now: ended.append((now, r.prompt_tokens, r.output_tokens, 0.0))
    )
    steer(fleet, looker, Observer(fleet, LLAMA_70B))
    fleet.run(steady(120.0, 4.0))
    _now, snapshot = next(look for look in looker.seen if look[0] == 100.0)
    signals = snapshot.signals
    assert isinstance(signals, Signals)
    newest, oldest = 95.0, 55.0  # evaluated at 97.5 s over the 45 s before it
    inside = [e for e in ended if oldest < e[0] <= newest]
    came = [arrival for arrival in steady(120.0, 4.0) if oldest < arrival.seconds <= newest]
    assert signals.requests_per_second == pytest.approx(len(came) / (newest - oldest))
    assert signals.prompt_tokens is not None
    mean = sum(tokens * weight for tokens, weight in signals.prompt_tokens)
    assert mean == pytest.approx(sum(a.prompt_tokens for a in came) / len(came), rel=0.01)
    assert signals.output_tokens is not None
    mean = sum(tokens * weight for tokens, weight in signals.output_tokens)
    assert mean == pytest.approx(sum(e[2] for e in inside) / len(inside), rel=0.05), (
        "with those that run, about the same"
    )
    assert signals.missed_ratio is not None
    assert signals.inter_token_p99_seconds is not None
    assert signals.engines_reporting == 4
    assert signals.weight_bytes == LLAMA_70B.weight_bytes


def test_engines_learn_their_step_times() -> None:
    looker = Looker()
    watched(looker, rate=8.0)
    signals = looker.seen[-1][1].signals
    assert isinstance(signals, Signals)
    assert signals.measured_steps is not None
    assert signals.measured_steps.fixed_seconds == pytest.approx(COST.fixed, rel=0.05)
    assert signals.measured_steps.seconds_per_prefill_token == pytest.approx(COST.token, rel=0.05)


def test_steps_are_told_by_what_they_held_and_what_they_took() -> None:
    looker = Looker()
    watched(looker, rate=8.0)
    signals = looker.seen[-1][1].signals
    assert isinstance(signals, Signals)
    decode, prefill = signals.decode_steps, signals.prefill_steps
    assert decode is not None
    assert prefill is not None
    assert decode.prefill_tokens == 0.0
    for taken in (decode, prefill):
        modelled = COST.fixed * taken.steps + COST.token * taken.prefill_tokens
        assert 0.0 < modelled < taken.seconds
        assert 0.0 < taken.decode_sequences < taken.kv_tokens
    assert signals.prefill.tokens_per_second == pytest.approx(prefill.prefill_tokens)
    assert signals.decode.tokens_per_second == pytest.approx(decode.decode_sequences + prefill.decode_sequences)


def test_orders_come_into_force_after_their_delay_and_the_routers() -> None:
    looker = Looker({2: Orders({"engine-0": Role.PREFILL, "engine-1": Role.DECODE}, {"engine-2": 512})})
    watched(looker)
    seen = dict(looker.seen)
    at_ten, after = seen[10.0], next(s for now, s in looker.seen if now > 10.0)
    assert at_ten.topology.mode is Mode.MIXED
    assert (after.topology.prefill, after.topology.decode, after.topology.mixed) == (1, 1, 2)
    assert after.topology.tokenBudget == 512
    assert looker.seen[2][0] == pytest.approx(15.2), "the next look begins when the orders are given"
    assert looker.seen[2][1].routers[0].workers == {
        "engine-0": Role.PREFILL, "engine-1": Role.DECODE, "engine-2": Role.MIXED, "engine-3": Role.MIXED,
    }  # fmt: skip
    last = looker.seen[-1][1].engines[1]
    assert last.kv_bytes_received, "KV has moved"


def test_an_engine_that_is_down_takes_a_label_and_no_limit() -> None:
    fleet = Fleet(SETTINGS, COST, least_load())
    fleet.fail("engine-0", 10.0)
    obey(fleet, Orders({"engine-0": Role.PREFILL}, {"engine-0": 256}))
    engine = fleet.engines["engine-0"]
    assert (engine.role, engine.scheduler.budget_tokens) == (Role.PREFILL, ENGINE.max_num_batched_tokens)
    looker = Looker()
    steer(fleet, looker, Observer(fleet, LLAMA_70B))
    fleet.run(steady(30.0, 2.0))
    down, up = looker.seen[0][1].engines[0], looker.seen[-1][1].engines[0]
    assert (down.ready, down.unready_since, down.running_requests) == (False, 1_700_000_000.0, None)
    assert (up.ready, up.unready_since, up.role) == (True, None, Role.PREFILL)
    assert up.running_requests is not None


def test_static_controllers_set_up_a_fleet_and_leave_it() -> None:
    for controller in (StaticMixed(512), StaticSplit(3)):
        fleet, results = Fleet(SETTINGS, COST, least_load()), Results()
        results.watch(fleet)
        steer(fleet, controller)
        fleet.run(steady(200.0, 2.0))
        topologies = {(i.mixed, i.prefill, i.decode, i.token_budget) for i in results.timeline()}
        assert topologies == {(4, 0, 0, 512) if controller.name == "mixed 512" else (0, 3, 1, None)}
    with pytest.raises(ValueError, match="leaves a pool empty"):
        steer(Fleet(SETTINGS, COST, least_load()), StaticSplit(4))


def play(controller: StaticMixed | StaticSplit | RidgelinePolicy, seconds: float, rate: float) -> tuple[Fleet, Results]:
    results = Results()
    fleet = Fleet(SETTINGS, COST, least_load(), results.done)
    results.watch(fleet)
    steer(fleet, controller, Observer(fleet, LLAMA_70B))
    fleet.run(steady(seconds, rate))
    return fleet, results


def test_ridgelines_own_passes_find_a_better_topology_and_reach_it() -> None:
    policy = RidgelinePolicy(spec(4, soakSeconds=60))
    _, managed = play(policy, 600.0, 11.0)
    _, default = play(StaticMixed(8192), 600.0, 11.0)
    done = [event.action for event in policy.events]
    assert done, "decode stalls: something is done about it"
    assert set(done) & {Action.TUNE, Action.SPLIT}
    before, after = default.attainment(200.0), managed.attainment(200.0)
    assert before is not None
    assert after is not None
    assert after > before + 0.1


def test_recommend_changes_nothing() -> None:
    policy = RidgelinePolicy(spec(4, "Recommend"))
    fleet, _ = play(policy, 300.0, 11.0)
    assert policy.events == []
    assert policy.status.recommendation is not None
    assert {engine.role for engine in fleet.engines.values()} == {Role.MIXED}
    assert {engine.scheduler.budget_tokens for engine in fleet.engines.values()} == {8192}


def test_a_static_split_is_reached_through_the_real_transition() -> None:
    policy = RidgelinePolicy(spec(4, "Static", prefillReplicas=2))
    fleet, results = play(policy, 300.0, 4.0)
    assert [event.action for event in policy.events] == [Action.SPLIT, "done"]
    assert sorted(engine.role for engine in fleet.engines.values()) == [Role.DECODE] * 2 + [Role.PREFILL] * 2
    assert fleet.counters.kv_bytes_moved > 0
    assert results.summary()["outcomes"]["refused"] == 0, "every table on the way serves"


def golden() -> str:
    results = Results(10.0)
    small = replace(SETTINGS, engine=replace(ENGINE, kv_blocks=400, hash_tokens=64), kv_bytes_per_token=1e5)
    fleet = Fleet(small, COST, least_load(), results.done)
    results.watch(fleet)
    steer(fleet, StaticMixed(512))
    fleet.at(15.0, lambda now: fleet.set_role("engine-0", Role.PREFILL))
    fleet.at(15.0, lambda now: fleet.set_role("engine-1", Role.DECODE))
    fleet.at(25.0, lambda now: fleet.fail("engine-3", 10.0))
    fleet.run(requests(7, 400, 8.0, (65, 2000), (1, 300), shared=10))
    return results.to_json()


def test_the_same_simulation_gives_the_same_bytes_in_every_python() -> None:
    """The golden is compared by the tests of each Python version."""
    assert golden() == golden()
    assert golden() == GOLDEN.read_text()


def test_results_add_up() -> None:
    told = json.loads(golden())
    summary, timeline = told["summary"], told["timeline"]
    assert sum(summary["outcomes"].values()) == summary["requests"] == 400
    assert sum(interval["arrived"] for interval in timeline) == 400
    assert sum(interval["outcomes"]["met"] for interval in timeline) == summary["outcomes"]["met"]
    assert sum(interval["preemptions"] for interval in timeline) == summary["preemptions"]
    assert timeline[-1]["end_seconds"] == summary["seconds"]
    assert summary["outcomes"]["failed"] > 0
    assert summary["attainment"] == summary["outcomes"]["met"] / 400


def test_requests_that_are_left_count_as_missed() -> None:
    results = Results()
    fleet = Fleet(SETTINGS, COST, least_load(), results.done)
    results.watch(fleet)
    fleet.run([Arrival(0.0, 100, 10), Arrival(0.0, 100, 9000)], until=20.0)
    assert fleet.now == 20.0
    assert results.summary()["outcomes"]["unfinished"] == 1
    assert results.attainment() == 0.5


def test_quantiles() -> None:
    assert exact_quantile(0.95, [float(i) for i in range(1, 101)]) == 95.0
    assert exact_quantile(0.5, []) is None
    assert bucket_quantile(0.5, (1.0, 2.0), [2, 2, 0]) == 1.0
    assert bucket_quantile(0.75, (1.0, 2.0), [2, 2, 0]) == 1.5
    assert bucket_quantile(0.9, (1.0, 2.0), [0, 0, 5]) == 2.0
    assert bucket_quantile(0.9, (1.0, 2.0), [0, 0, 0]) is None


def test_a_long_trace_takes_no_memory_for_its_requests() -> None:
    """Requests that have ended are gone: what grows with them is a few numbers each."""
    import gc

    from ridgeline.simulate.request import Request

    def requests() -> set[int]:
        return {id(thing) for thing in gc.get_objects() if isinstance(thing, Request)}

    others = requests()  # of other tests' fleets
    results = Results()
    fleet = Fleet(SETTINGS, COST, least_load(), results.done)
    results.watch(fleet)
    most = 0

    def count(now: float) -> None:
        nonlocal most
        most = max(most, len(requests() - others))

    fleet.every(100.0, count)
    fleet.run(steady(400.0, 10.0, 200, 40))
    assert fleet.counters.arrivals > 3000
    assert 0 < most < 300
