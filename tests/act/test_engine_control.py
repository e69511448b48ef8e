from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from ridgeline.act.engines import Engine, EngineControl
from ridgeline.api.fleet import Objectives

TOKEN = "token-of-this-test"


class StandInExporter:
    """Takes orders with the right token and writes them down."""

    def __init__(self) -> None:
        self.orders: list[tuple[str, Any]] = []
        self.port = 0

    async def put(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.Response(status=401, text="who are you")
        body = await request.json()
        if body.get("max_num_scheduled_tokens", 1) < 1:
            return web.Response(status=400, text="must be positive")
        self.orders.append((request.path, body))
        return web.json_response({})


@pytest.fixture
async def exporter() -> AsyncIterator[StandInExporter]:
    stand_in = StandInExporter()
    app = web.Application()
    app.add_routes([web.put("/v1/{what}", stand_in.put)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    stand_in.port = runner.addresses[0][1]
    yield stand_in
    await runner.cleanup()


async def test_orders_reach_the_engine(exporter: StandInExporter) -> None:
    engine = Engine("e1", "127.0.0.1")
    async with aiohttp.ClientSession() as session:
        control = EngineControl(session, TOKEN, exporter.port)
        assert await control.set_limits({engine: 512}) == {}
        assert await control.set_objectives([engine], Objectives()) == {}
    objectives = {"time_to_first_token_milliseconds": 2000, "inter_token_latency_milliseconds": 50}
    assert exporter.orders == [("/v1/limits", {"max_num_scheduled_tokens": 512}), ("/v1/objectives", objectives)]


async def test_an_engine_that_is_away_holds_up_no_other(exporter: StandInExporter) -> None:
    async with aiohttp.ClientSession() as session:
        control = EngineControl(session, TOKEN, exporter.port)
        problems = await control.set_limits({Engine("e1", "127.0.0.1"): 512, Engine("gone", "127.99.0.1"): 512})
    assert list(problems) == ["gone"]
    assert len(exporter.orders) == 1


@pytest.mark.parametrize(
    ("token", "tokens", "status"),
    [pytest.param("wrong", 512, "401", id="wrong token"), pytest.param(TOKEN, 0, "400", id="refused value")],
)
async def test_a_refusal_is_told_without_the_token(
    exporter: StandInExporter, token: str, tokens: int, status: str
) -> None:
    async with aiohttp.ClientSession() as session:
        problems = await EngineControl(session, token, exporter.port).set_limits({Engine("e1", "127.0.0.1"): tokens})
    assert status in problems["e1"]
    assert token not in problems["e1"]
