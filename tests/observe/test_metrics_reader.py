"""A Prometheus that is away, slow, locked or something else: a problem that says what to do, never an exception."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from ridgeline.decide.snapshot import MetricsProblem, Signals
from ridgeline.observe.metrics import MetricsReader
from ridgeline.observe.signals import FleetSignals

NOW = 1000.0
CHAT = ("default", "chat")
VECTOR = {
    "status": "success",
    "data": {
        "resultType": "vector",
        "result": [
            {
                "metric": {"__name__": f"fleet:ridgeline_{name}", "namespace": "default", "fleet": "chat"},
                "value": [NOW, value],
            }
            for name, value in (
                ("sample_timestamp_seconds", "999"),
                ("requests_arriving:rate", "4"),
                ("peak_flops", "NaN"),
            )
        ],
    },
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def answers(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(text=text, status=status, headers=headers)

    return handle


@asynccontextmanager
async def server_of(handler: Handler, prefix: str = "") -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post(f"{prefix}/api/v1/query", handler)
    async with TestServer(app) as server:
        yield f"http://127.0.0.1:{server.port}{prefix}"


def problem(found: FleetSignals) -> MetricsProblem:
    result = found[CHAT]
    assert isinstance(result, MetricsProblem)
    return result


@pytest.mark.parametrize("prefix", ["", "/prometheus"])
async def test_signals_are_read_with_one_query(prefix: str) -> None:
    queries = []

    async def handle(request: web.Request) -> web.Response:
        queries.append((await request.post())["query"])
        return web.json_response(VECTOR)

    async with server_of(handle, prefix) as url, MetricsReader(url, stale_after_seconds=15) as reader:
        found = (await reader.read(NOW))[CHAT]
    assert isinstance(found, Signals)
    assert (found.sampled_at, found.requests_per_second, found.peak_flops) == (999, 4, None)
    assert queries == ['{__name__=~"fleet:ridgeline_.+"}']


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        pytest.param(answers("Unauthorized", 401), "check its bearer token", id="no token"),
        pytest.param(answers("Forbidden", 403), "check its bearer token", id="no right"),
        pytest.param(answers("", 302, {"Location": "/login"}), "does not answer like Prometheus", id="a login page"),
        pytest.param(answers("<html>Grafana"), "does not answer like Prometheus", id="something else"),
        pytest.param(answers("404 page not found", 404), "check --prometheus-url", id="the wrong path"),
        pytest.param(answers("upstream down", 502), "HTTP 502", id="a proxy in trouble"),
        pytest.param(
            answers({"status": "error", "errorType": "execution", "error": "too many samples"}, 422),
            "too many samples",
            id="a query that fails",
        ),
        pytest.param(answers([]), "not an object", id="JSON of another kind"),
        pytest.param(answers({"status": "success"}), "not a vector", id="no data"),
        pytest.param(
            answers({"status": "success", "data": {"resultType": "scalar", "result": [1, "2"]}}),
            "not a vector",
            id="a scalar",
        ),
        pytest.param(
            answers({"status": "success", "data": {"result": [{"metric": {}, "value": [1, "many"]}]}}),
            "not a vector",
            id="a value that is no number",
        ),
    ],
)
async def test_a_useless_answer_is_a_problem_for_every_fleet(handler: Handler, message: str) -> None:
    async with server_of(handler) as url, MetricsReader(url, stale_after_seconds=15) as reader:
        found = await reader.read(NOW)
    assert len(found) == 0
    assert problem(found).reason == "PrometheusUnreachable"
    assert message in problem(found).message
    assert problem(found).message.count("\n") == 0


async def test_nobody_listens() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    async with MetricsReader(f"http://127.0.0.1:{port}", stale_after_seconds=15) as reader:
        found = await reader.read(NOW)
    assert problem(found).reason == "PrometheusUnreachable"
    assert "cannot be reached" in problem(found).message


@pytest.mark.parametrize("url", ["prometheus:9090", "http://", "http://no-such-host.invalid:9090"])
async def test_an_address_that_is_none(url: str) -> None:
    async with MetricsReader(url, stale_after_seconds=15) as reader:
        assert problem(await reader.read(NOW)).reason == "PrometheusUnreachable"


async def test_a_slow_prometheus_is_given_up_and_asked_again() -> None:
    let_go = asyncio.Event()

    async def slow_once(request: web.Request) -> web.Response:
        if not let_go.is_set():
            await let_go.wait()
        return web.json_response(VECTOR)

    async with (
        server_of(slow_once) as url,
        MetricsReader(url, stale_after_seconds=15, timeout_seconds=0.3) as reader,
    ):
        assert "did not answer within 0.3 s" in problem(await reader.read(NOW)).message
        let_go.set()
        assert isinstance((await reader.read(NOW))[CHAT], Signals)


async def test_the_token_is_read_anew_for_each_query(tmp_path: Path) -> None:
    seen = []

    async def handle(request: web.Request) -> web.Response:
        seen.append(request.headers["Authorization"])
        return web.json_response(VECTOR)

    token = tmp_path / "token"
    token.write_text("first\n")
    async with server_of(handle) as url, MetricsReader(url, stale_after_seconds=15, token_file=token) as reader:
        await reader.read(NOW)
        token.write_text("second\n")
        await reader.read(NOW)
    assert seen == ["Bearer first", "Bearer second"]


async def test_files_that_are_not_there(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    async with MetricsReader("http://127.0.0.1:1", stale_after_seconds=15, token_file=missing) as reader:
        assert "token for Prometheus cannot be read" in problem(await reader.read(NOW)).message
    async with MetricsReader("https://127.0.0.1:1", stale_after_seconds=15, ca_file=missing) as reader:
        assert problem(await reader.read(NOW)).reason == "PrometheusUnreachable"


async def test_a_closed_reader_opens_again() -> None:
    async with server_of(answers(VECTOR)) as url:
        reader = MetricsReader(url, stale_after_seconds=15)
        await reader.read(NOW)
        await reader.close()
        assert isinstance((await reader.read(NOW))[CHAT], Signals)
        await reader.close()
        await reader.close()
