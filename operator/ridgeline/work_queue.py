"""A queue of keys: each key is worked on by one pass at a time, and again as soon as something woke it.

A wake-up carries no news. It says "look again", so any number of them before a pass begins are one, and one that
arrives during a pass brings exactly one more pass. Passes that fail come again after a growing pause.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

FIRST_BACKOFF_SECONDS = 1.0
LAST_BACKOFF_SECONDS = 15.0
"""Short enough that a pair of engines that broke meanwhile is not left without repair for long."""
SPACING_SECONDS = 0.05
"""Pause between two passes of a key that is woken all the time: a burst of pod events is one pass."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Entry:
    due: float
    failures: int = 0
    running: bool = False
    not_before: float = 0.0


class WorkQueue(Generic[Key]):
    """Runs `work(key)` when a key is due.

    `work` answers in how many seconds it wants to look again, or None to forget the key.
    """

    def __init__(
        self,
        work: Callable[[Key], Awaitable[float | None]],
        *,
        workers: int = 8,
        on_error: Callable[[Key, BaseException], None] = lambda key, error: None,
    ) -> None:
        self._work = work
        self._on_error = on_error
        self._entries: dict[Key, _Entry] = {}
        self._changed = asyncio.Event()
        self._slots = asyncio.Semaphore(workers)
        self._tasks: set[asyncio.Task[None]] = set()
        self.last_turn = 0.0
        """When the dispatcher last looked around, by the loop's clock."""

    @property
    def keys(self) -> frozenset[Key]:
        """Keys that are being looked after."""
        return frozenset(self._entries)

    def wake(self, key: Key, after: float = 0.0) -> None:
        """Look at the key in `after` seconds at the latest."""
        due = asyncio.get_running_loop().time() + after
        entry = self._entries.setdefault(key, _Entry(due=due))
        entry.due = min(entry.due, due)
        self._changed.set()

    async def run(self) -> None:
        """Dispatch until cancelled; passes under way are cancelled with it."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                self.last_turn = now = loop.time()
                self._changed.clear()
                waiting = [(k, e) for k, e in self._entries.items() if not e.running]
                for key, entry in waiting:
                    if max(entry.due, entry.not_before) <= now:
                        entry.running = True
                        entry.due = float("inf")
                        task = asyncio.create_task(self._pass(key, entry), name=f"reconcile {key}")
                        self._tasks.add(task)
                        task.add_done_callback(self._tasks.discard)
                idle = [max(e.due, e.not_before) for _, e in waiting if not e.running]
                pause = max(0.0, min([*idle, now + 1.0]) - now)
                try:
                    async with asyncio.timeout(pause):
                        await self._changed.wait()
                except TimeoutError:
                    pass
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(set(self._tasks))

    async def _pass(self, key: Key, entry: _Entry) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with self._slots:
                again = await self._work(key)
            entry.failures = 0
            entry.not_before = loop.time() + SPACING_SECONDS
            if again is not None:
                entry.due = min(entry.due, loop.time() + again)
            elif entry.due == float("inf"):  # not woken meanwhile
                del self._entries[key]
        except Exception as error:
            entry.failures += 1
            pause = min(FIRST_BACKOFF_SECONDS * 2 ** (entry.failures - 1), LAST_BACKOFF_SECONDS)
            entry.due = entry.not_before = loop.time() + pause
            self._on_error(key, error)
        finally:
            entry.running = False
            self._changed.set()
