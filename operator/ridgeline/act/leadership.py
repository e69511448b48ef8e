"""One leader among the replicas of the operator, by a Lease.

Election is the client library's; three of its habits need care. Its lock cannot create a Lease and lets network
errors escape (`_Lock` mends both), and cancelling it leaves the leader's task running (`lead` owns that task). Its
deadline is looked at between calls only, hence the time-out on each call: what a deposed leader may still do must be
over before the successor starts,

    retry period + renew deadline + two calls  <  lease duration:   2 + 11 + 2 x 3 = 19 s < 20 s.

A process that was stopped and continued (SIGSTOP, a frozen machine) does not come by that sum, so every write asks
`Leadership.holds` first: it counts from the last renewal by a clock that runs on while the process stands.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from kubernetes.aio.client import ApiClient, V1Lease
from kubernetes.aio.client.rest import ApiException
from kubernetes.aio.leaderelection.electionconfig import Config
from kubernetes.aio.leaderelection.leaderelection import LeaderElection
from kubernetes.aio.leaderelection.resourcelock.leaselock import LeaseLock

from ridgeline.act.api import LEASES, ApiError, KubernetesApi

LEASE_SECONDS = 20
RENEW_DEADLINE_SECONDS = 11
RETRY_SECONDS = 2
CALL_SECONDS = 3

log = logging.getLogger(__name__)


class LeadershipLost(Exception):  # noqa: N818 - says what happened
    """Another process may lead now: this one must end."""


class Leadership:
    """Whether this process may write."""

    def __init__(self) -> None:
        self._renewed_at: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the last renewal is recent enough that nobody else can have taken over."""
        return self._renewed_at is not None and time.monotonic() - self._renewed_at < LEASE_SECONDS

    def renewed(self, sent_at: float) -> None:
        """Count the lease from the moment the renewal was sent, monotonic seconds."""
        self._renewed_at = sent_at

    def end(self) -> None:
        """Give up the right to write."""
        self._renewed_at = None


class _Lock(LeaseLock):  # type: ignore[misc]  # the client library is untyped
    def __init__(self, name: str, namespace: str, identity: str, client: ApiClient, leadership: Leadership) -> None:
        super().__init__(name, namespace, identity, client)
        self._leadership = leadership

    async def get(self, name: str, namespace: str) -> tuple[bool, Any]:
        try:
            async with asyncio.timeout(CALL_SECONDS):
                found: tuple[bool, Any] = await super().get(name, namespace)
                return found
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return False, ApiException(status=0, reason=str(error) or f"no answer within {CALL_SECONDS} s")

    async def create(self, name: str, namespace: str, election_record: Any) -> bool:
        lease = V1Lease(metadata={"name": name}, spec=self.update_lease(election_record))
        return await self._write(lambda: self.api_instance.create_namespaced_lease(namespace, lease))

    async def update(self, name: str, namespace: str, updated_record: Any) -> bool:
        lease = self.lease_reference
        assert lease is not None, "the election reads the lease before it updates it"
        lease.spec = self.update_lease(updated_record, lease.spec)
        return await self._write(lambda: self.api_instance.replace_namespaced_lease(name, namespace, lease))

    async def _write(self, call: Callable[[], Awaitable[object]]) -> bool:
        sent_at = time.monotonic()
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await call()
        except ApiException as error:
            if error.status != 409:  # 409: another candidate was faster
                log.warning("the lease could not be written: %s %s", error.status, error.reason)
            return False
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.warning("the lease could not be written: %s", str(error) or f"no answer within {CALL_SECONDS} s")
            return False
        self._leadership.renewed(sent_at)
        return True


async def lead(
    client: ApiClient,
    *,
    namespace: str,
    name: str,
    identity: str,
    leadership: Leadership,
    work: Callable[[], Awaitable[None]],
) -> None:
    """Wait for the lease, then do `work` for as long as it is held.

    Raises:
        LeadershipLost: the lease could not be renewed; `work` has ended by then.
    """
    elected = asyncio.Event()

    async def on_elected() -> None:
        elected.set()

    async def on_lost() -> None:
        leadership.end()

    lock = _Lock(name, namespace, identity, client, leadership)
    election = LeaderElection(Config(lock, LEASE_SECONDS, RENEW_DEADLINE_SECONDS, RETRY_SECONDS, on_elected, on_lost))
    holding = asyncio.create_task(election.run(), name="lease")
    working: asyncio.Task[None] | None = None
    try:
        waiting = asyncio.create_task(elected.wait(), name="election")
        try:
            await asyncio.wait({holding, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if elected.is_set() and not holding.done():
            log.info("elected leader as %s", identity)
            working = asyncio.create_task(_awaited(work), name="leader")
            await asyncio.wait({holding, working}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _end(working)
        held = leadership.holds
        await _end(holding)
        leadership.end()
        if held:
            await _release(client, namespace, name, identity)
    if working is not None and working.done() and not working.cancelled():
        working.result()
        return
    if holding.done() and not holding.cancelled() and (error := holding.exception()):
        raise LeadershipLost(f"the election failed: {error}") from error
    raise LeadershipLost(f"the lease {namespace}/{name} could not be renewed")


async def _awaited(work: Callable[[], Awaitable[None]]) -> None:
    await work()


async def _end(task: asyncio.Task[Any] | None) -> None:
    """Cancel a task and wait until it has ended, whatever it raises on the way."""
    if task is None:
        return
    task.cancel()
    await asyncio.wait({task})


async def _release(client: ApiClient, namespace: str, name: str, identity: str) -> None:
    """Empty the lease if it is still ours, so that a follower need not wait until it has run out."""
    try:
        await KubernetesApi(client).patch(
            LEASES, namespace, name,
            [
                {"op": "test", "path": "/spec/holderIdentity", "value": identity},
                {"op": "replace", "path": "/spec/holderIdentity", "value": ""},
            ],
        )  # fmt: skip
        log.info("the lease is released")
    except ApiError as error:
        log.info("the lease is left to run out: %s", error)
