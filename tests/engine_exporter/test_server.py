from __future__ import annotations

import http.client
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ridgeline_exporters.engine import server as server_module
from ridgeline_exporters.engine.server import LARGEST_BODY_BYTES, MOST_CONNECTIONS, ExporterServer
from tests.engine_exporter.synthetic import Bench

TOKEN = "a-token-that-nobody-may-see"
RIGHT = f"Bearer {TOKEN}"


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def server(bench: Bench) -> Iterator[ExporterServer]:
    with ExporterServer(("127.0.0.1", 0), bench.exporter, TOKEN) as running:
        running.start()
        yield running
        running.shutdown()


def ask(server: ExporterServer, method: str, path: str, token: str | None = RIGHT, body: Any = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    connection.request(method, path, data, {} if token is None else {"Authorization": token})
    response = connection.getresponse()
    answer = response.status, response.read().decode()
    connection.close()
    return answer


@pytest.mark.parametrize("path", ["/metrics", "/healthz"])
def test_metrics_and_health_need_no_token(server: ExporterServer, path: str) -> None:
    assert ask(server, "GET", path, token=None)[0] == 200


CONTROLLED = [
    pytest.param("GET", "/v1/state", None, id="state"),
    pytest.param("PUT", "/v1/limits", {"max_num_scheduled_tokens": 64}, id="limits"),
    pytest.param("PUT", "/v1/objectives", {"inter_token_latency_milliseconds": 40}, id="objectives"),
    pytest.param("GET", "/v1/secrets", None, id="what does not exist"),
]


@pytest.mark.parametrize(("method", "path", "body"), CONTROLLED)
@pytest.mark.parametrize(
    "token",
    [
        pytest.param(None, id="no token"),
        pytest.param("Bearer wrong", id="a wrong token"),
        pytest.param(f"Bearer {TOKEN[:-1]}", id="all but the last character"),
        pytest.param(f"Bearer {TOKEN}x", id="one character too many"),
        pytest.param(f"Basic {TOKEN}", id="another scheme"),
        pytest.param(TOKEN, id="no scheme"),
        pytest.param("Bearer ", id="an empty token"),
        pytest.param("Bearer \xe9\xff", id="bytes that are no text"),
    ],
)
def test_without_the_token_nothing_is_told_or_changed(
    server: ExporterServer, bench: Bench, method: str, path: str, body: Any, token: str | None
) -> None:
    status, text = ask(server, method, path, token, body)
    assert status == 401
    assert TOKEN not in text
    assert bench.control.wanted == bench.control.maximum


@pytest.mark.parametrize(("method", "path", "body"), CONTROLLED)
def test_an_engine_without_a_token_refuses_all_control(method: str, path: str, body: Any) -> None:
    with ExporterServer(("127.0.0.1", 0), Bench().exporter, None) as server:
        server.start()
        for token in (None, RIGHT, "Bearer ", "Bearer None"):
            status, text = ask(server, method, path, token, body)
            assert (status, json.loads(text)) == (403, {"error": "no token configured"})
        assert ask(server, "GET", "/metrics", None)[0] == 200
        server.shutdown()


def test_limits_and_objectives_can_be_posted_and_read_back(server: ExporterServer) -> None:
    status, text = ask(server, "PUT", "/v1/limits", body={"max_num_scheduled_tokens": 64})
    assert status == 200
    assert json.loads(text) == {"accepted": {"max_num_scheduled_tokens": 64, "long_prefill_token_threshold": 0}}
    objectives = {"time_to_first_token_milliseconds": 900, "inter_token_latency_milliseconds": 45}
    status, text = ask(server, "PUT", "/v1/objectives", body=objectives)
    assert (status, json.loads(text)) == (200, {"accepted": objectives})
    state = json.loads(ask(server, "GET", "/v1/state")[1])
    assert state["limits"]["max_num_scheduled_tokens"] == 64
    assert state["maximum"] == {"max_num_scheduled_tokens": 256}
    assert state["objectives"] == objectives
    assert {
        "running",
        "waiting",
        "transferring",
        "decoding",
        "pinned_remote_reads",
        "prefills_finished",
    } <= state.keys()
    assert "ridgeline_engine_limit_tokens 64.0" in ask(server, "GET", "/metrics", None)[1]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="half a body"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(b"[" * 4000, id="deeply nested"),
        pytest.param({"max_num_scheduled_tokens": 257}, id="above the start-up value"),
        pytest.param({"budget": 1}, id="an unknown field"),
        pytest.param(b" " * (LARGEST_BODY_BYTES + 1), id="too long"),
    ],
)
def test_a_bad_body_is_refused_with_a_reason(server: ExporterServer, bench: Bench, body: Any) -> None:
    status, text = ask(server, "PUT", "/v1/limits", body=body)
    assert status == 400
    assert json.loads(text)["error"]
    assert bench.control.wanted == bench.control.maximum


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        pytest.param("GET", "/", 404, id="the root"),
        pytest.param("PUT", "/v1/state", 404, id="state cannot be put"),
        pytest.param("GET", "/v1/limits", 404, id="limits cannot be got"),
        pytest.param("POST", "/v1/limits", 501, id="another method"),
    ],
)
def test_what_does_not_exist_is_said_so(server: ExporterServer, method: str, path: str, status: int) -> None:
    assert ask(server, method, path)[0] == status


def test_an_exporter_that_can_no_longer_set_limits_says_so(server: ExporterServer, bench: Bench) -> None:
    bench.scheduler.scheduler_config = None  # type: ignore[assignment]
    assert ask(server, "PUT", "/v1/limits", body={"max_num_scheduled_tokens": 64})[0] == 200
    bench.exporter.before_schedule()
    assert ask(server, "PUT", "/v1/limits", body={"max_num_scheduled_tokens": 65})[0] == 503
    assert "ridgeline_engine_exporter_up 0.0" in ask(server, "GET", "/metrics", None)[1]


def test_clients_that_say_nothing_leave_room_after_a_while(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "CONNECTION_SECONDS", 0.5)
    with ExporterServer(("127.0.0.1", 0), bench.exporter, TOKEN) as server:
        server.start()
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(MOST_CONNECTIONS)]
        deadline = time.monotonic() + 30
        while True:  # refused while all are taken, served once the silent ones are ended
            try:
                if ask(server, "GET", "/healthz", None)[0] == 200:
                    break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        for connection in silent:
            connection.close()
        server.shutdown()


def test_no_more_threads_than_connections_are_made(server: ExporterServer) -> None:
    before = threading.active_count()
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(4 * MOST_CONNECTIONS)]
    time.sleep(0.3)
    assert threading.active_count() - before <= MOST_CONNECTIONS
    for connection in silent:
        connection.close()


def test_the_token_is_never_logged(server: ExporterServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for token in (RIGHT, "Bearer wrong"):
        ask(server, "PUT", "/v1/limits", token, {"max_num_scheduled_tokens": 64})
        ask(server, "PUT", "/v1/limits", token, {"max_num_scheduled_tokens": -1})
    assert TOKEN not in caplog.text
