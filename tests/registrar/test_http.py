"""What the registrar tells over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from kubernetes.aio.client import ApiClient, Configuration

from ridgeline.api.fleet import Role
from ridgeline.registrar.metrics import RegistrarMetrics
from ridgeline.registrar.pods import PodWatch
from ridgeline.registrar.serve import STUCK_SECONDS, application
from ridgeline.registrar.synchronizer import Synchronizer
from ridgeline.registrar.table import Engine
from tests.registrar.test_synchronizer import TableInMemory

Client = TestClient[Any, Any]


@dataclass(frozen=True, slots=True)
class Parts:
    """A registrar without its loops: the test makes the passes."""

    client: Client
    synchronizer: Synchronizer
    watch: PodWatch
    backend: TableInMemory

    async def get(self, path: str) -> tuple[int, Any]:
        response = await self.client.get(path)
        return response.status, await (response.json() if path.startswith("/v1") else response.text())


@pytest.fixture
async def parts() -> AsyncIterator[Parts]:
    metrics, backend = RegistrarMetrics(), TableInMemory()
    synchronizer = Synchronizer(backend, metrics)
    async with ApiClient(Configuration(host="http://127.0.0.1:1")) as api:
        watch = PodWatch(api, "inference", "chat", lambda: None)
        async with TestClient(TestServer(application(synchronizer, watch, metrics))) as client:
            yield Parts(client, synchronizer, watch, backend)


ONE = {"http://10.0.0.1:8000": Engine("chat-1", "http://10.0.0.1:8000", Role.PREFILL)}


async def test_before_the_pods_are_known_it_is_alive_and_not_ready(parts: Parts) -> None:
    assert (await parts.get("/healthz"))[0] == 200
    status, text = await parts.get("/readyz")
    assert status == 503
    assert "the pods have not been listed yet" in text
    _, body = await parts.get("/v1/workers")
    assert (body["synchronized"], body["workers"]) == (False, {})


async def test_a_table_that_equals_the_labels_is_ready(parts: Parts) -> None:
    parts.watch.known = True
    await parts.synchronizer.run_pass(ONE)
    assert await parts.get("/readyz") == (200, "ok\n")
    assert await parts.get("/v1/workers") == (
        200,
        {"synchronized": True, "message": "", "workers": {"chat-1": "prefill"}},
    )


async def test_from_a_change_of_the_pods_until_the_pass_the_table_is_not_called_right(parts: Parts) -> None:
    parts.watch.known = True
    await parts.synchronizer.run_pass({})
    parts.synchronizer.pods_changed(ONE)
    status, body = await parts.get("/v1/workers")
    assert (status, body["synchronized"], body["workers"]) == (200, False, {})
    assert (await parts.get("/readyz"))[0] == 503
    await parts.synchronizer.run_pass(ONE)
    assert (await parts.get("/readyz"))[0] == 200


async def test_an_api_server_that_is_away_is_named_and_does_not_make_the_table_wrong(parts: Parts) -> None:
    parts.watch.known = True
    await parts.synchronizer.run_pass(ONE)
    parts.watch.problem = "connection refused"
    status, body = await parts.get("/v1/workers")
    assert (status, body["synchronized"]) == (200, True)
    assert body["message"] == "the API server cannot be read (connection refused); the last known pods stand"


async def test_a_router_is_held_back_until_its_table_serves_once(parts: Parts) -> None:
    """Half of a pair answers 503; once the router has served, no engine closes it to the others."""
    parts.watch.known = True
    await parts.synchronizer.run_pass(ONE)
    status, text = await parts.get("/servedz")
    assert (status, text) == (503, "no engine can answer requests yet\n")
    decode = Engine("chat-2", "http://10.0.0.2:8000", Role.DECODE)
    await parts.synchronizer.run_pass({**ONE, decode.url: decode})
    assert (await parts.get("/servedz"))[0] == 200
    await parts.synchronizer.run_pass(ONE)
    assert (await parts.get("/servedz"))[0] == 200


async def test_a_registrar_whose_passes_never_end_is_not_alive(parts: Parts) -> None:
    parts.synchronizer.last_pass -= STUCK_SECONDS + 1
    assert (await parts.get("/healthz"))[0] == 503


async def test_every_series_is_there_from_the_start(parts: Parts) -> None:
    _, text = await parts.get("/metrics")
    series = {line.rsplit(" ", 1)[0] for line in text.splitlines() if not line.startswith("#")}
    assert {
        'ridgeline_registrar_workers{role="mixed"}',
        'ridgeline_registrar_workers{role="prefill"}',
        'ridgeline_registrar_workers{role="decode"}',
        "ridgeline_registrar_synchronized",
        'ridgeline_registrar_passes_total{outcome="unchanged"}',
        'ridgeline_registrar_passes_total{outcome="changed"}',
        'ridgeline_registrar_passes_total{outcome="failed"}',
        "ridgeline_registrar_role_changes_total",
        "ridgeline_registrar_last_synchronized_timestamp_seconds",
        "ridgeline_registrar_synchronization_seconds_count",
    } <= series
