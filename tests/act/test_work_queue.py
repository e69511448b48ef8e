from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from ridgeline import work_queue
from ridgeline.work_queue import WorkQueue

Work = Callable[[str], Awaitable[float | None]]


@asynccontextmanager
async def running(
    work: Work, on_error: Callable[[str, BaseException], None] = lambda k, e: None
) -> AsyncIterator[WorkQueue[str]]:
    queue = WorkQueue(work, on_error=on_error)
    task = asyncio.create_task(queue.run())
    try:
        yield queue
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_many_wakes_before_a_pass_are_one_pass() -> None:
    passes: list[str] = []

    async def work(key: str) -> float:
        passes.append(key)
        return 100

    async with running(work) as queue:
        for _ in range(20):
            queue.wake("a")
        await asyncio.sleep(0.05)
    assert passes == ["a"]


async def test_a_wake_during_a_pass_brings_exactly_one_more() -> None:
    passes = 0
    release = asyncio.Event()

    async def work(key: str) -> float:
        nonlocal passes
        passes += 1
        await release.wait()
        return 100

    async with running(work) as queue:
        queue.wake("a")
        await asyncio.sleep(0.02)
        queue.wake("a")
        queue.wake("a")
        await asyncio.sleep(0.02)
        assert passes == 1, "one pass at a time for each key"
        release.set()
        await asyncio.sleep(0.3)
    assert passes == 2


async def test_keys_are_worked_on_side_by_side() -> None:
    both = asyncio.Barrier(2)

    async def work(key: str) -> float:
        async with asyncio.timeout(1):
            await both.wait()
        return 100

    errors: list[BaseException] = []
    async with running(work, lambda key, error: errors.append(error)) as queue:
        queue.wake("a")
        queue.wake("b")
        await asyncio.sleep(0.1)
    assert not errors


async def test_a_pass_says_when_it_wants_to_look_again() -> None:
    passes = 0

    async def work(key: str) -> float:
        nonlocal passes
        passes += 1
        return 0.1 if passes < 3 else 100

    async with running(work) as queue:
        queue.wake("a")
        await asyncio.sleep(0.6)
    assert passes == 3


async def test_a_key_that_is_gone_is_forgotten() -> None:
    async def work(key: str) -> None:
        return None

    async with running(work) as queue:
        queue.wake("a")
        await asyncio.sleep(0.05)
        assert queue.keys == frozenset()


async def test_a_key_woken_while_its_last_pass_ends_is_not_forgotten() -> None:
    passes = 0

    async def work(key: str) -> float | None:
        nonlocal passes
        passes += 1
        if passes == 1:
            queue.wake("a")
            return None
        return 100

    async with running(work) as queue:
        queue.wake("a")
        await asyncio.sleep(0.3)
        assert passes == 2
        assert queue.keys == {"a"}


async def test_failures_come_again_after_a_growing_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_queue, "FIRST_BACKOFF_SECONDS", 0.05)
    times: list[float] = []
    errors: list[BaseException] = []

    async def work(key: str) -> float:
        times.append(asyncio.get_running_loop().time())
        if len(times) < 4:
            raise RuntimeError("no")
        return 100

    async with running(work, lambda key, error: errors.append(error)) as queue:
        queue.wake("a")
        await asyncio.sleep(0.02)
        queue.wake("a")  # does not shorten the pause
        await asyncio.sleep(1)
    assert len(errors) == 3
    pauses = [b - a for a, b in itertools.pairwise(times)]
    assert pauses[0] >= 0.05
    assert pauses[1] >= 0.1
    assert pauses[2] >= 0.2
