"""Passes over the router's table: on each change and every two seconds."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ridgeline.api.fleet import Role
from ridgeline.registrar.backend import RouterBackend, RouterError
from ridgeline.registrar.metrics import Outcome, RegistrarMetrics
from ridgeline.registrar.pods import PodWatch
from ridgeline.registrar.table import (
    Add,
    Desired,
    Operation,
    Remove,
    State,
    Update,
    Worker,
    differences,
    operations,
    serves,
)

log = logging.getLogger(__name__)

PASS_SECONDS = 2.0
"""Time between two passes over a table that is right."""
RETRY_SECONDS = 0.5
"""Time until the next pass over one that is not."""
SETTLE_SECONDS = 2.0
"""Longest wait for one operation to be in force before the next is sent all the same."""
FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS = 0.01, 0.1


@dataclass(frozen=True, slots=True)
class TableView:
    """What the registrar tells others about the table."""

    synchronized: bool
    message: str
    workers: dict[str, Role]
    """Healthy workers: engine pod → role."""


CHANGED = "the pods have changed and a pass is under way"
NOT_LOOKED_YET = TableView(False, "the table has not been read yet", {})


class Synchronizer:
    """Makes the router's table follow the pods."""

    def __init__(self, backend: RouterBackend, metrics: RegistrarMetrics) -> None:
        self._backend = backend
        self._metrics = metrics
        self._wake = asyncio.Event()
        self._seen: Desired = {}
        self._slow: frozenset[str] = frozenset()
        self._changed_at: float | None = None
        self._logged: str | None = None
        self.view = NOT_LOOKED_YET
        self.has_served = False
        """Whether the router has had a table with which it could answer requests, once since this process began."""
        self.last_pass: float = time.monotonic()
        """Monotonic seconds when the last pass ended, well or not."""

    def pods_changed(self, desired: Desired) -> None:
        """Take note of what the pods say now; a pass follows at once if the engines differ."""
        if desired == self._seen:
            return
        self._seen = desired
        self._changed_at = self._changed_at or time.monotonic()
        self.view = replace(self.view, synchronized=False, message=CHANGED)
        self._wake.set()

    async def run(self, watch: PodWatch) -> None:
        """Pass after pass until cancelled. Before the pods are known, nothing is touched."""
        while True:
            if watch.known:
                await self.run_pass(watch.engines, lambda: watch.engines)
            self.last_pass = time.monotonic()
            timeout = PASS_SECONDS if self.view.synchronized else RETRY_SECONDS
            try:
                await asyncio.wait_for(self._wake.wait(), timeout)
            except TimeoutError:
                continue
            self._wake.clear()

    async def run_pass(self, desired: Desired, latest: Callable[[], Desired] | None = None) -> None:
        """One pass. Never raises for a router that is away: the view says so and the next pass tries again.

        Args:
            desired: engines that should take requests.
            latest: what they are by now; a pass that is overtaken stops between two operations.
        """
        try:
            table, sent = await self._apply(desired, latest or (lambda: desired))
        except RouterError as error:
            self._metrics.passed(Outcome.FAILED)
            self._metrics.synchronized.set(0)
            self._metrics.show(())
            self._log_once(str(error))
            self.view = TableView(False, str(error), {})  # whatever it held, it cannot be said to hold it now
            return
        self._metrics.passed(Outcome.CHANGED if sent else Outcome.UNCHANGED)
        self._show(desired, table)

    async def _apply(self, desired: Desired, latest: Callable[[], Desired]) -> tuple[Sequence[Worker], int]:
        """Send the difference, one operation in force before the next; stop when the pods have changed again."""

        def overtaken() -> bool:
            return latest() != desired

        table = await self._backend.workers()
        planned = operations(desired, table)
        added = [operation for operation in planned if isinstance(operation, Add)]
        for addition in added:
            await self._send(addition)
        # An engine that the last pass waited for in vain must not hold up the roles of all others.
        prompt = [addition for addition in added if addition.engine.url not in self._slow]
        table = await self._settled(prompt, table, overtaken)
        self._slow = frozenset(addition.engine.url for addition in added if not in_force(addition, table))
        sent = len(added)
        for operation in planned[len(added) :]:
            if overtaken():
                break
            await self._send(operation)
            table = await self._settled([operation], table, overtaken)
            sent += 1
        return table, sent

    async def _send(self, operation: Operation) -> None:
        if isinstance(operation, Add):
            log.info("adding %s (%s) as %s", operation.engine.pod, operation.engine.url, operation.engine.role)
            await self._backend.add(operation.engine)
        elif isinstance(operation, Update):
            log.info("%s becomes %s, was %s", operation.engine.pod, operation.engine.role, operation.worker.role)
            await self._backend.update(operation.worker, operation.engine)
            self._metrics.role_changes.inc(operation.changes_role)
        else:
            log.info("removing %s (%s)", operation.worker.pod or "an unknown worker", operation.worker.url)
            await self._backend.remove(operation.worker)

    async def _settled(
        self, sent: Sequence[Operation], table: Sequence[Worker], overtaken: Callable[[], bool]
    ) -> Sequence[Worker]:
        """Wait until operations are in force: the next one may rely on them to keep the table serving."""
        deadline = time.monotonic() + SETTLE_SECONDS
        pause = FIRST_POLL_SECONDS
        while sent:
            table = await self._backend.workers()
            if all(in_force(operation, table) for operation in sent) or overtaken() or time.monotonic() > deadline:
                break
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_POLL_SECONDS)
        return table

    def _show(self, desired: Desired, table: Sequence[Worker]) -> None:
        found = differences(desired, table)
        healthy = {w.pod: w.role for w in table if w.state is State.HEALTHY and w.role and w.pod}
        self._metrics.show(table)
        self._metrics.synchronized.set(not found)
        if not found:
            self._metrics.last_synchronized.set(time.time())
            if self._changed_at is not None and desired == self._seen:
                self._metrics.synchronization_seconds.observe(time.monotonic() - self._changed_at)
                self._changed_at = None
        message = "; ".join(found[:5]) + (f"; and {len(found) - 5} more" if len(found) > 5 else "")
        self._log_once(message)
        self.view = TableView(not found, message, healthy)
        self.has_served = self.has_served or serves(healthy.values())

    def _log_once(self, message: str) -> None:
        if message == self._logged:
            return
        self._logged = message
        if message:
            log.warning("the table differs from the labels: %s", message)
        else:
            log.info("the table equals the labels")


def in_force(operation: Operation, table: Sequence[Worker]) -> bool:
    """Whether the table shows an operation."""
    listed = {worker.url: worker for worker in table}
    if isinstance(operation, Remove):
        worker = listed.get(operation.worker.url)
        return worker is None or worker.state is State.DRAINING
    worker = listed.get(operation.engine.url)
    if worker is None or (worker.role, worker.pod) != (operation.engine.role, operation.engine.pod):
        return False
    return worker.state is State.HEALTHY or isinstance(operation, Update)  # a new entry may be listed before it serves
