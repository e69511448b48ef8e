"""Clients of the exporter that misbehave, beside a request whose answer must not change."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from tests.engines.engines import BUDGET, TOKEN, Engine, eventually, request

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500)]

SCRAPES, AT_ONCE, SLOW = 1000, 200, 30
PROMPT = [(11 * i) % 250 + 2 for i in range(90)]

MALFORMED = [
    b'PUT /v1/limits HTTP/1.1\r\nAuthorization: Bearer %s\r\nContent-Length: 5\r\n\r\n{"a":',
    b"PUT /v1/limits HTTP/1.1\r\nAuthorization: Bearer %s\r\nContent-Length: many\r\n\r\n{}",
    b"PUT /v1/limits HTTP/1.1\r\nAuthorization: Bearer %s\r\n\r\n",
    b"PUT /v1/limits HTTP/1.1\r\nAuthorization: Bearer %s\r\nContent-Length: 99999999\r\n\r\n",
    b"\x00\xff\xfe nonsense\r\n\r\n",
    b"GET /metrics HTTP/9.9\r\n\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
]


def test_no_client_of_the_exporter_changes_an_answer_or_ends_it(engine: Engine) -> None:
    engine.complete(PROMPT, 5)
    expected = engine.complete(PROMPT, 400)["choices"][0]["text"]  # its prompt is in the cache, as it is from now on
    address = ("127.0.0.1", engine.exporter_port)

    def scrape(_: int) -> int:
        with suppress(OSError):  # most are turned away: only a few are served at a time
            return request("GET", f"{engine.exporter}/metrics", seconds=60)[0]
        return 0

    def malformed(data: bytes) -> None:
        with suppress(OSError), socket.create_connection(address, timeout=60) as connection:
            connection.sendall(data.replace(b"%s", TOKEN.encode()))
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass

    def forged(token: str | None) -> int:
        with suppress(OSError):
            return request("PUT", f"{engine.exporter}/v1/limits", {"max_num_scheduled_tokens": 16}, token, 60)[0]
        return 0

    slow = [socket.create_connection(address) for _ in range(SLOW)]
    for connection in slow:
        with suppress(OSError):
            connection.sendall(b"GET /metrics HTT")  # and nothing more for as long as it may
    with ThreadPoolExecutor(AT_ONCE + 2) as clients:
        answers = [clients.submit(engine.complete, PROMPT, 400) for _ in range(2)]
        statuses = set(clients.map(scrape, range(SCRAPES)))
        list(clients.map(malformed, 5 * MALFORMED))
        refused = set(clients.map(forged, 10 * [None, "wrong", TOKEN[:-1], ""]))
        texts = [answer.result()["choices"][0]["text"] for answer in answers]
    for connection in slow:
        connection.close()
    assert texts == [expected, expected]
    assert statuses <= {0, 200}
    assert refused <= {0, 401}

    def serves() -> bool:
        with suppress(OSError):
            return request("GET", f"{engine.exporter}/metrics", seconds=60)[0] == 200
        return False

    eventually(serves, "the exporter serves again")
    assert engine.metrics()[("exporter_up", ())] == 1
    assert engine.metrics()[("exporter_errors_total", ())] == 0
    assert engine.state()["limits"]["max_num_scheduled_tokens"] == BUDGET
