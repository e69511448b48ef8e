"""Engines and registrars are asked over HTTP: real requests to small servers that stand in for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import BaseTestServer, TestServer

from ridgeline.api.fleet import Role
from ridgeline.observe import fetch
from ridgeline.observe.engines import EngineProbe, parse_probe, probe_engine, with_counters_of
from ridgeline.observe.routers import read_router, router_state

STATE = {
    "running": 3,
    "waiting": 2,
    "transferring": 1,
    "decoding": 3,
    "pinned_remote_reads": 0,
    "limits": {"max_num_scheduled_tokens": 512, "long_prefill_token_threshold": 0},
    "maximum": {"max_num_scheduled_tokens": 2048},
    "objectives": {},
    "prefills_finished": 17,
    "external_prompt_tokens": 900,
}
METRICS = """\
# HELP vllm:nixl_bytes_transferred Bytes.
# TYPE vllm:nixl_bytes_transferred histogram
vllm:nixl_bytes_transferred_bucket{engine="0",le="+Inf",model_name="m"} 9.0
vllm:nixl_bytes_transferred_sum{engine="0",model_name="m"} 4096.0
vllm:nixl_bytes_transferred_sum{engine="1",model_name="m"} 1024.0
vllm:nixl_num_failed_transfers_total{engine="0",model_name="m"} 2.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 55.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="external_kv_transfer"} 1200.0
"""
OLDER = {name: value for name, value in STATE.items() if name != "decoding"}
"""Of an exporter that does not tell which of its requests decode."""
FULL = EngineProbe(6, 2, 3, 512, 2048, 5120.0, 2.0, 1200.0, 17.0)


@pytest.mark.parametrize(
    ("state", "metrics", "expected"),
    [
        pytest.param(STATE, METRICS, FULL, id="both answer"),
        pytest.param(STATE, None, EngineProbe(6, 2, 3, 512, 2048, None, None, 900.0, 17.0), id="vLLM is silent"),
        pytest.param(OLDER, METRICS, replace(FULL, decoding_requests=None), id="an older exporter"),
        pytest.param(None, METRICS, EngineProbe(None, None, None, None, None, 5120.0, 2.0, 1200.0), id="the exporter is silent"),
        pytest.param(None, None, EngineProbe(), id="nobody answers"),
        pytest.param({}, "", EngineProbe(), id="empty answers"),
        pytest.param(STATE | {"running": "3", "decoding": [3], "limits": [], "maximum": None}, "", EngineProbe(
            None, 2, None, None, None, None, None, 900.0, 17.0), id="other types than agreed"),
        pytest.param(STATE | {"running": -1, "prefills_finished": float("nan"), "waiting": True, "decoding": -2}, "", EngineProbe(
            None, None, None, 512, 2048, None, None, 900.0, None), id="numbers that cannot be"),
        pytest.param({"running": 0, "waiting": 0, "decoding": 0}, "", EngineProbe(0, 0, 0), id="zero is zero"),
        pytest.param(None, 'vllm:nixl_bytes_transferred_sum{engine="0" 4', EngineProbe(
            metrics_problem="vLLM's metrics are no Prometheus exposition"), id="a torn exposition"),
        pytest.param(None, "vllm:nixl_bytes_transferred_sum NaN\n", EngineProbe(), id="NaN"),
    ],
)  # fmt: skip
def test_answers_of_an_engine(state: dict[str, Any] | None, metrics: str | None, expected: EngineProbe) -> None:
    assert parse_probe(state, metrics) == expected


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def serve(**paths: Handler) -> TestServer:
    """A server on loopback; `v1_state` serves /v1/state."""
    app = web.Application()
    for name, handler in paths.items():
        app.router.add_get("/" + name.replace("_", "/"), handler)
    server = TestServer(app)
    await server.start_server()
    return server


def answer(body: Any, status: int = 200) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(text=text, status=status)

    return handle


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with fetch.new_session() as session:
        yield session


def port_of(server: BaseTestServer) -> int:
    assert server.port is not None
    return server.port


async def probe_of(session: aiohttp.ClientSession, port: int) -> EngineProbe:
    return await probe_engine(session, "127.0.0.1", "t", exporter_port=port, engine_port=port)


async def test_an_engine_is_asked_with_the_token_and_vllm_without(session: aiohttp.ClientSession) -> None:
    seen: dict[str, str | None] = {}

    def noting(body: Any) -> Handler:
        inner = answer(body)

        async def handle(request: web.Request) -> web.StreamResponse:
            seen[request.path] = request.headers.get("Authorization")
            return await inner(request)

        return handle

    async with await serve(v1_state=noting(STATE), metrics=noting(METRICS)) as server:
        assert await probe_of(session, port_of(server)) == FULL
    assert seen == {"/v1/state": "Bearer t", "/metrics": None}


@pytest.mark.parametrize(
    ("handler", "problem"),
    [
        pytest.param(answer("no token configured", 403), "answers 403", id="refused"),
        pytest.param(answer("<html>"), "does not answer with JSON", id="not JSON"),
        pytest.param(answer([1]), "JSON object", id="not an object"),
        pytest.param(answer("x" * (fetch.LARGEST_ANSWER_BYTES + 1)), "more than", id="endless"),
    ],
)
async def test_an_exporter_that_does_not_answer_leaves_its_fields_unknown(
    handler: Handler, problem: str, session: aiohttp.ClientSession
) -> None:
    async with await serve(v1_state=handler, metrics=answer(METRICS)) as server:
        probe = await probe_of(session, port_of(server))
    assert probe.limit_tokens is None
    assert probe.kv_bytes_received == 5120
    assert problem in str(probe.problem)


async def test_an_engine_that_is_away_is_no_error(session: aiohttp.ClientSession) -> None:
    server = await serve(metrics=answer(""))
    port = port_of(server)
    await server.close()
    probe = await probe_of(session, port)
    assert (probe.running_requests, probe.kv_bytes_received) == (None, None)
    assert "fails" in str(probe.problem)
    assert "fails" in str(probe.metrics_problem)


def test_a_counter_that_vllm_does_not_have_is_told_from_a_vllm_that_does_not_answer() -> None:
    uncounted = parse_probe(STATE, "vllm:num_requests_running 0.0\n")
    silent = parse_probe(STATE, None, metrics_problem="no answer within 2 s")
    assert uncounted.kv_bytes_received is silent.kv_bytes_received is None
    assert (uncounted.metrics_problem, silent.metrics_problem) == (None, "no answer within 2 s")


def test_counters_that_an_engine_does_not_tell_this_time_are_those_of_before() -> None:
    before = EngineProbe(running_requests=4, kv_bytes_received=5120.0, kv_failures=2.0, prompt_requests=7.0)
    silent = with_counters_of(before, EngineProbe(problem="no answer"))
    assert (silent.kv_bytes_received, silent.kv_failures, silent.prompt_requests) == (5120.0, 2.0, 7.0)
    assert (silent.running_requests, silent.problem) == (None, "no answer")
    assert with_counters_of(before, EngineProbe(kv_bytes_received=6000.0)).kv_bytes_received == 6000.0


async def test_an_engine_that_hangs_is_given_up(
    session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "TIMEOUT_SECONDS", 0.2)
    let_go = asyncio.Event()

    async def hang(request: web.Request) -> web.Response:
        await let_go.wait()
        return web.Response()

    async with await serve(v1_state=hang, metrics=answer(METRICS)) as server:
        probe = await probe_of(session, port_of(server))
        let_go.set()
    assert "no answer within 0.2 s" in str(probe.problem)
    assert probe.kv_bytes_received == 5120


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        pytest.param("10.0.0.7", "http://10.0.0.7:9400/v1/state", id="IPv4"),
        pytest.param("fd00::7", "http://[fd00::7]:9400/v1/state", id="IPv6"),
    ],
)
def test_addresses_of_pods(address: str, expected: str) -> None:
    assert fetch.url(address, 9400, "/v1/state") == expected


ROUTER = {
    "metadata": {"name": "chat-router-1"},
    "status": {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
}


@pytest.mark.parametrize(
    ("body", "workers", "synchronized", "message"),
    [
        pytest.param(
            {"synchronized": True, "message": "", "workers": {"a": "prefill", "b": "decode"}},
            {"a": Role.PREFILL, "b": Role.DECODE},
            True,
            "",
            id="in step",
        ),
        pytest.param(
            {"synchronized": False, "message": "1 worker is pending", "workers": {}},
            {},
            False,
            "1 worker is pending",
            id="not yet in step",
        ),
        pytest.param({"synchronized": True, "workers": {"a": "encode"}}, None, False, "unreadable", id="unknown role"),
        pytest.param({"synchronized": True, "workers": ["a"]}, None, False, "unreadable", id="not a table"),
        pytest.param({}, None, False, "unreadable", id="empty"),
        pytest.param({"synchronized": "yes", "workers": {}}, {}, False, "", id="only true is true"),
    ],
)
def test_answer_of_a_registrar(
    body: dict[str, Any], workers: dict[str, Role] | None, synchronized: bool, message: str
) -> None:
    state = router_state(ROUTER, body)
    assert (state.pod, state.ready) == ("chat-router-1", True)
    assert state.workers == workers
    assert state.synchronized is synchronized
    assert message in state.message


async def test_a_registrar_is_asked_and_may_be_away(session: aiohttp.ClientSession) -> None:
    server = await serve(v1_workers=answer({"synchronized": True, "message": "", "workers": {"a": "mixed"}}))
    port = port_of(server)
    assert (await read_router(session, ROUTER, port=port)).workers == {"a": Role.MIXED}
    await server.close()
    away = await read_router(session, ROUTER, port=port)
    assert away.workers is None
    assert not away.synchronized
    assert "fails" in away.message


async def test_a_router_without_an_address_is_not_asked(session: aiohttp.ClientSession) -> None:
    state = await read_router(session, {"metadata": {"name": "r"}, "status": {}})
    assert (state.ready, state.workers, state.message) == (False, None, "the router pod has no address yet")
