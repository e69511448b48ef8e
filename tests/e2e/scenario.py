"""The scenes that the cluster tests and the demonstration play, and what is told while they run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from tests.e2e.fleets import LiveFleet
from tests.e2e.load import Load, Planned, Shape, plan, trace_rows

T = TypeVar("T")


def bursts(seconds: float) -> Sequence[Planned]:
    """Steady decodes, and every few seconds two long prompts at once."""
    rows, source = trace_rows(300)
    print(f"\nload: steady decodes with bursts of long prompts for {seconds:.0f} s; {source}", flush=True)
    return plan(rows, Shape(seconds, chats_per_second=1.0, burst_every_seconds=3.0, burst_prompts=2))


def calm(seconds: float) -> Sequence[Planned]:
    """A few short requests."""
    return plan(trace_rows(300)[0], Shape(seconds, chats_per_second=0.3))


async def calm_until(load: Load, happens: Awaitable[T]) -> T:
    """Keep sending a few short requests until something has happened; what it answers."""
    awaited = asyncio.ensure_future(happens)
    while not awaited.done():
        await load.run(calm(15))
    return await awaited


async def narrate(fleet: LiveFleet, also: Callable[[], None] = lambda: None) -> None:
    """Print what changes, with the reasons, until cancelled.

    Args:
        fleet: the fleet to watch.
        also: called every second, in a thread: it may ask the cluster.
    """
    lines = fleet.watch()
    while True:
        if line := await asyncio.to_thread(next, lines):
            print(line, flush=True)
        await asyncio.to_thread(also)
        await asyncio.sleep(1)


def no_request_failed(load: Load) -> None:
    """Fail with the first request that failed or was cut."""
    failed = load.failed
    assert not failed, (
        f"{len(failed)} of {len(load.sent)} requests failed, the first: {failed[0].error or 'cut'} {failed[0]}"
    )
