from __future__ import annotations

import asyncio
import time
from typing import cast

import pytest

from ridgeline import process
from ridgeline.act.api import ApiError, Kind, KubernetesApi, Object
from ridgeline.process import STALL_SECONDS, State
from ridgeline.work_queue import WorkQueue


async def nothing(key: tuple[str, str]) -> float:
    return 100


async def test_a_process_that_does_its_work_is_healthy() -> None:
    state = State()
    assert state.problem() is None
    state.missed_since[("ns", "chat")] = time.monotonic()  # the watch may be a moment behind
    state.queue = WorkQueue(nothing)
    state.queue.last_turn = asyncio.get_running_loop().time()
    assert state.problem() is None


async def test_a_watch_that_stays_behind_is_a_reason_to_restart() -> None:
    state = State()
    state.missed_since[("ns", "chat")] = time.monotonic() - STALL_SECONDS - 1
    assert "ns/chat" in (state.problem() or "")


async def test_a_queue_that_stands_still_is_a_reason_to_restart() -> None:
    state = State(queue=WorkQueue(nothing))
    assert state.queue is not None
    state.queue.last_turn = asyncio.get_running_loop().time() - STALL_SECONDS - 1
    assert "queue" in (state.problem() or "")


class _BusyApiServer:
    """Refuses to list as the API server does while it takes a changed CRD in, then lists."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals

    async def select(self, kind: Kind, namespace: str | None) -> list[Object]:
        if self.refusals:
            self.refusals -= 1
            raise ApiError(429, "TooManyRequests", "storage is (re)initializing")
        return [{"metadata": {"namespace": "a", "name": "chat", "generation": 3}}]


async def test_a_leader_whose_api_server_does_not_list_yet_asks_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process, "API_AGAIN_SECONDS", 0.0)
    found = await process._fleets_at_start(cast(KubernetesApi, _BusyApiServer(refusals=2)), ())
    assert found == {("a", "chat"): 3}
    assert caplog.text.count("storage is (re)initializing") == 2
