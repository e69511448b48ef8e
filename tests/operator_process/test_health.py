from __future__ import annotations

import asyncio
import time

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
