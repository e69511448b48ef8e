"""Arrow: Algorithms 1 to 3 case by case, and what becomes of them on a fleet."""

from __future__ import annotations

import pytest

from ridgeline.api.fleet import Role
from ridgeline.simulate.controller import Event, steer
from ridgeline.simulate.counters import Outcome
from ridgeline.simulate.engine import Engine
from ridgeline.simulate.fleet import Fleet
from ridgeline.simulate.replay import play
from ridgeline.simulate.request import Request
from ridgeline.simulate.rivals.arrow import (
    COOLDOWN_SECONDS,
    Arrow,
    ArrowRouter,
    Load,
    cheapest,
    decode_cost,
    donor,
    prefill_cost,
    triggered,
)
from ridgeline.simulate.traces import Arrival
from tests.simulate.test_rivals import COST, SETTINGS, plant, shifting

KV_TOKENS = SETTINGS.engine.kv_blocks * SETTINGS.engine.block_tokens
TABLE: dict[Role, list[Engine]] = {role: [] for role in Role}
"""Arrow goes by the labels, whatever a router's table says."""


def load(seconds: float = 0.0, prefill: int = 0, decode: int = 0) -> Load:
    return Load(prefill_seconds=seconds, prefill_tokens=prefill, decode_tokens=decode, decodes=decode // 1000)


class Placer:
    """A router that has met two prefill and two decode engines, at 100 s, with what they hold."""

    def __init__(self, *loads: Load, roles: str = "PPDD") -> None:
        self.told: list[Event] = []
        self.router = ArrowRouter(COST, 2.0, 0.05, KV_TOKENS, self.told.append)
        self.fleet = Fleet(SETTINGS, COST, self.router)
        words = {"P": Role.PREFILL, "D": Role.DECODE}
        self.fleet.set_roles_at_once({name: words[role] for name, role in zip(self.fleet.engines, roles, strict=True)})
        self.router.meet(self.fleet)
        self.fleet.now = 100.0
        for name, held in zip(self.fleet.engines, loads, strict=True):
            held._since = 100.0
            self.router._loads[name] = held

    def prefill(self, tokens: int = 1000) -> str:
        pair = self.router.choose(TABLE, Request(1, Arrival(100.0, tokens, 10), 100.0))
        assert pair is not None
        return pair[0].name

    def decode(self, source: str, tokens: int = 1000) -> str:
        request = Request(1, Arrival(100.0, tokens, 10), 100.0)
        request.kv_source = self.fleet.engines[source]
        return self.router.decode_engine(TABLE, request).name

    def roles(self) -> str:
        return "".join(str(engine.role)[0].upper() for engine in self.fleet.engines.values())


def test_costs_are_compared_first_by_the_other_phase() -> None:
    assert prefill_cost(load(0.5, decode=7), 0.25) == (7, 0.75)
    assert decode_cost(load(prefill=9, decode=1000), 500, 1200.0) == (9, 300.0)
    assert cheapest([(5.0, 0.1), (0.0, 1.9), (0.0, 2.1)], 2.0) == 1, "without decodes first, if it is in time"
    assert cheapest([(0.0, 2.1)], 2.0) is None


@pytest.mark.parametrize(
    ("loads", "chosen", "roles"),
    [
        pytest.param((load(0.5), load(0.2), load(), load()), "engine-1", "PPDD", id="the shorter queue"),
        pytest.param(
            (load(0.5), load(0.2, decode=10), load(), load()), "engine-0", "PPDD", id="the one without decodes"
        ),
        pytest.param(
            (load(1.99), load(1.99), load(decode=50), load(decode=20)),
            "engine-3",
            "PPDP",
            id="none is in time: the decode engine with the least is flipped, and takes it",
        ),
    ],
)
def test_a_prefill_goes_where_it_is_in_time(loads: tuple[Load, ...], chosen: str, roles: str) -> None:
    placer = Placer(*loads)
    assert (placer.prefill(), placer.roles()) == (chosen, roles)


def test_a_loaded_decode_pool_gives_no_engine_and_the_cheapest_takes_the_prefill() -> None:
    busy = load(decode=50)
    busy.decode_load = 1.2
    placer = Placer(load(1.99), load(1.995), busy, load(decode=20))
    assert (placer.prefill(), placer.roles()) == ("engine-0", "PPDD"), "mean decode load 0.6, shrink 0.5"


def test_the_last_decode_engine_stays() -> None:
    placer = Placer(load(3.0), load(3.0), load(3.0), load(), roles="PPPD")
    assert (placer.prefill(), placer.roles()) == ("engine-0", "PPPD")


def test_a_decode_stays_at_a_prefill_engine_that_was_flipped() -> None:
    placer = Placer(load(), load(), load(), load(decode=10), roles="PDDD")
    assert placer.decode("engine-1") == "engine-1"
    assert placer.decode("engine-0") == "engine-2", "the least tokens: engine-1 holds the first by now"


def test_a_decode_for_which_no_engine_has_room_flips_a_prefill_engine_once_in_a_cooldown() -> None:
    full = KV_TOKENS
    placer = Placer(load(0.1), load(0.3), load(decode=full), load(decode=full))
    assert (placer.decode("engine-0"), placer.roles()) == ("engine-0", "DPDD")
    placer = Placer(load(0.1), load(0.3), load(0.2), load(decode=full), roles="PPPD")
    placer.decode("engine-0", tokens=full)
    assert placer.roles() == "DPPD"
    placer.fleet.now += COOLDOWN_SECONDS - 0.1
    assert placer.decode("engine-1", tokens=full) == "engine-0", "the cheapest, whether or not it is in time"
    assert placer.roles() == "DPPD"
    placer.fleet.now += 0.1
    placer.decode("engine-1", tokens=full)
    assert placer.roles() == "DDPD"


@pytest.mark.parametrize(
    ("loads", "role", "place"),
    [
        pytest.param([load(0.1), load(0.5, decode=9)], Role.PREFILL, 1, id="half flipped goes first"),
        pytest.param([load(0.5), load(0.1)], Role.PREFILL, 1, id="then the least prefill"),
        pytest.param([load(decode=9), load(decode=50, prefill=1)], Role.DECODE, 1, id="half flipped decode"),
        pytest.param([load(decode=50), load(decode=9)], Role.DECODE, 1, id="then the least tokens"),
        pytest.param([load()], Role.DECODE, None, id="never the last"),
    ],
)
def test_the_engine_that_flips_is_the_one_with_the_least_to_finish(
    loads: list[Load], role: Role, place: int | None
) -> None:
    assert donor(loads, role) == place


@pytest.mark.parametrize(
    ("prefill", "decode", "fires"),
    [(2.0, 1.0, True), (0.5, 0.5, True), (0.5, 0.4, False), (0.6, 0.9, False), (0.0, 0.0, False)],
)
def test_the_monitor_helps_decode_when_it_is_late_or_prefill_is_idle(
    prefill: float, decode: float, fires: bool
) -> None:
    assert triggered(prefill, decode) is fires


def test_the_load_of_an_interval_is_the_mean_of_what_was_there() -> None:
    held = Load()
    held.prefill(2.0, 100, 0.25)
    held.prefill(-2.0, -100, 0.75)
    held.close_interval(1.0)
    assert held.mean_prefill_seconds == pytest.approx(1.0)
    held.close_interval(2.0)
    assert held.mean_prefill_seconds == 0.0


def test_a_decode_flood_takes_engines_from_prefill_and_what_they_hold_moves_no_kv() -> None:
    arrow = Arrow(COST, 2.0, 0.05, KV_TOKENS)
    ended: list[Outcome] = []
    fleet = Fleet(SETTINGS, COST, arrow.router(), lambda request, outcome, now: ended.append(outcome))
    steer(fleet, arrow)
    flood = [Arrival(0.02 * i, 300, 900) for i in range(1500)]
    fleet.run(arrow.attend(fleet, flood))
    assert any("prefill → decode" in event.message for event in arrow.events)
    assert {Outcome.FAILED, Outcome.REFUSED}.isdisjoint(ended)
    assert len(ended) == 1500
    moved = fleet.counters.kv_bytes_moved / (300 * SETTINGS.kv_bytes_per_token)
    assert 0 < moved < 1500, "those that were prefilled where they decode stayed there"
    for engine in fleet.engines.values():
        assert engine.scheduler.cache.free == engine.scheduler.cache.total, "every block is given back"


def test_long_prompts_take_engines_from_decode_and_chat_gives_them_back() -> None:
    played = play("arrow", plant(), shifting(300.0, 30.0, every=100.0))
    messages = [event["message"] for event in played["decisions"]]
    assert any("decode → prefill" in message for message in messages)
    assert any("prefill → decode" in message for message in messages)
    assert all(i["prefill"] >= 1 and i["decode"] >= 1 for i in played["timeline"])
