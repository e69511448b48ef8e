"""The operator's process: what runs in it, in which order it starts, and how it ends.

All replicas watch, so that a follower is warm; only the leader reconciles. A part that ends on its own ends the
process: Kubernetes starts it again, and everything it needs is in the cluster.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from prometheus_client import start_http_server

from ridgeline.act.api import FLEETS, ApiError, KubernetesApi, connect
from ridgeline.act.events import EventRecorder
from ridgeline.act.leadership import Leadership, LeadershipLost, lead
from ridgeline.handlers import Watch, watch_forever
from ridgeline.metrics import OperatorMetrics
from ridgeline.observe.fetch import new_session
from ridgeline.observe.metrics import MetricsReader
from ridgeline.reconcile import Options, Reconciler
from ridgeline.reporting import Reporter
from ridgeline.signals_source import Key, SharedSignals
from ridgeline.work_queue import WorkQueue

STALE_SCRAPES = 5
"""Samples older than so many scrape intervals are not acted on."""
API_AGAIN_SECONDS = 2.0
"""Pause before an API server that does not serve fleets yet is asked again."""
AUDIT_SECONDS = 10.0
"""How often the list of fleets is compared with what the watch has shown."""
STALL_SECONDS = 60.0
"""A watch that misses a change for so long is dead, and so is a queue that has not turned."""
STOP_SECONDS = 15.0

log = logging.getLogger(__name__)


class StartError(Exception):
    """The process cannot start; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """The flags of `ridgeline operator`."""

    prometheus_url: str
    namespaces: tuple[str, ...]
    lease_namespace: str
    lease_name: str
    identity: str
    metrics_port: int
    health_port: int
    reconcile: Options
    prometheus_token_file: Path | None = None


@dataclass(slots=True)
class State:
    """What the parts of the process know of each other."""

    stop: asyncio.Event = field(default_factory=asyncio.Event)
    watching: bool = False
    missed_since: dict[Key, float] = field(default_factory=dict)
    """Fleets whose change the watch has not shown → since when, monotonic seconds."""
    queue: WorkQueue[Key] | None = None
    """Only while leading."""

    def wake(self, key: Key) -> None:
        """Have a fleet looked at; a follower looks at none."""
        if self.queue is not None:
            self.queue.wake(key)

    def wake_all(self) -> None:
        """Have every fleet looked at."""
        if self.queue is not None:
            for key in self.queue.keys:
                self.queue.wake(key)

    def problem(self) -> str | None:
        """Why this process should be restarted."""
        now = time.monotonic()
        late = [key for key, since in self.missed_since.items() if now - since > STALL_SECONDS]
        if late:
            return f"the watch has not shown the last change of {'/'.join(late[0])}"
        if self.queue is not None and self.queue.last_turn:
            stalled = asyncio.get_running_loop().time() - self.queue.last_turn
            if stalled > STALL_SECONDS:
                return f"the queue has not turned for {stalled:.0f} s"
        return None


async def run_operator(options: ProcessOptions) -> int:
    """Run until SIGTERM or SIGINT: 0; until leadership or the watch is lost: 1.

    Raises:
        NoClusterError: there is no cluster to connect to.
        StartError: a port is taken.
    """
    state = State()
    metrics = OperatorMetrics()
    leadership = Leadership()
    async with AsyncExitStack() as stack:
        client = await connect()
        stack.push_async_callback(client.close)
        api = KubernetesApi(client, fence=lambda: leadership.holds)
        _stop_on_signals(state)
        _serve_metrics(options.metrics_port, metrics, stack)
        await _serve_health(options.health_port, state, stack)
        if not await _crd_is_there(api, state):
            return 0
        session = await stack.enter_async_context(new_session())
        reader = await stack.enter_async_context(_reader(options))

        async def work() -> None:
            await _lead(options, api, session, reader, metrics, state)

        watch = Watch(state.wake)
        tasks = [
            asyncio.create_task(_audit(api, options.namespaces, watch, state), name="audit"),
            asyncio.create_task(
                lead(client, namespace=options.lease_namespace, name=options.lease_name, identity=options.identity,
                     leadership=leadership, work=work),
                name="leadership",
            ),
            asyncio.create_task(_watch(watch, options.namespaces, state), name="watch"),
        ]  # fmt: skip
        return await _until_stopped(tasks, state)


def _reader(options: ProcessOptions) -> MetricsReader:
    return MetricsReader(
        options.prometheus_url,
        stale_after_seconds=_stale_after(options),
        token_file=options.prometheus_token_file,
    )


def _stale_after(options: ProcessOptions) -> float:
    return STALE_SCRAPES * options.reconcile.scrape_interval_seconds


async def _crd_is_there(api: KubernetesApi, state: State) -> bool:
    """Wait for the API server and the kind; False when told to stop before."""
    said = ""
    while not state.stop.is_set():
        try:
            if await api.serves(FLEETS):
                return True
            message = "the cluster does not know InferenceFleet yet; apply it with: ridgeline crd | kubectl apply -f -"
        except ApiError as error:
            message = str(error)
        if message != said:
            log.warning("%s", message)
            said = message
        await _sleep_or_stop(state, API_AGAIN_SECONDS)
    return False


async def _lead(
    options: ProcessOptions,
    api: KubernetesApi,
    session: Any,
    reader: MetricsReader,
    metrics: OperatorMetrics,
    state: State,
) -> None:
    """What the leader does: read the signals of all fleets, and reconcile each."""
    signals = SharedSignals(
        reader,
        interval_seconds=options.reconcile.interval_seconds,
        stale_after_seconds=max(_stale_after(options), 3 * options.reconcile.interval_seconds),
        clock=time.time,
        on_read=state.wake_all,
    )
    reporter = Reporter(metrics, EventRecorder(api, options.identity))
    reconciler = Reconciler(api, session, signals, metrics, reporter, options.reconcile)

    def failed(key: Key, error: BaseException) -> None:
        metrics.reconcile_errors.inc()
        if isinstance(error, ApiError):
            log.warning("%s/%s: %s", *key, error)
        else:
            log.error("%s/%s: the pass failed", *key, exc_info=error)

    queue: WorkQueue[Key] = WorkQueue(reconciler.reconcile, on_error=failed)
    for key in await _fleets_at_start(api, options.namespaces):
        queue.wake(key)
    state.queue = queue
    metrics.leader.set(1)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(queue.run(), name="queue")
            group.create_task(signals.run(), name="signals")
    finally:
        state.queue = None
        metrics.leader.set(0)
        metrics.forget_all()


async def _fleets(api: KubernetesApi, namespaces: Sequence[str]) -> dict[Key, int]:
    """All fleets → their generation."""
    found: dict[Key, int] = {}
    for namespace in namespaces or (None,):
        for raw in await api.select(FLEETS, namespace):
            metadata = raw["metadata"]
            found[metadata["namespace"], metadata["name"]] = int(metadata.get("generation") or 0)
    return found


async def _fleets_at_start(api: KubernetesApi, namespaces: Sequence[str]) -> dict[Key, int]:
    """All fleets, as soon as the API server lists them: right after a change of the CRD it answers 429 for a while."""
    while True:
        try:
            return await _fleets(api, namespaces)
        except ApiError as error:
            log.warning("the fleets cannot be listed yet: %s", error)
            await asyncio.sleep(API_AGAIN_SECONDS)


async def _audit(api: KubernetesApi, namespaces: Sequence[str], watch: Watch, state: State) -> None:
    """Compare what exists with what the watch has shown, so that a watch that died silently is noticed."""
    while True:
        await asyncio.sleep(AUDIT_SECONDS)
        try:
            listed = await _fleets(api, namespaces)
        except ApiError as error:
            log.warning("the fleets cannot be listed: %s", error)
            continue
        missed = {key for key in listed.keys() | watch.fleets.keys() if listed.get(key) != watch.fleets.get(key)}
        now = time.monotonic()
        state.missed_since = {key: state.missed_since.get(key, now) for key in missed}
        for key in missed:
            state.wake(key)


async def _watch(watch: Watch, namespaces: Sequence[str], state: State) -> None:
    started = asyncio.Event()

    async def own_the_signals() -> None:
        await started.wait()
        _stop_on_signals(state)  # kopf has set its own handlers meanwhile
        state.watching = True

    async with asyncio.TaskGroup() as group:
        group.create_task(own_the_signals())
        await watch_forever(watch, namespaces, state.stop, started)


async def _until_stopped(tasks: Sequence[asyncio.Task[None]], state: State) -> int:
    """Wait for the signal or for the end of any part, then end the others."""
    audit, leading, watching = tasks
    stopped = asyncio.create_task(state.stop.wait(), name="stop")
    done, _ = await asyncio.wait({*tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
    status = 0 if stopped in done else 1
    for task in done - {stopped}:
        error = task.exception() if not task.cancelled() else None
        if isinstance(error, LeadershipLost):
            log.error("%s: this process ends, so that it cannot disturb another leader", error)
        else:
            log.error("the %s ended: %s", task.get_name(), error, exc_info=error)
    log.info("stopping")
    leading.cancel()
    audit.cancel()
    stopped.cancel()
    await _within(STOP_SECONDS, asyncio.wait({leading, audit}))  # gives the lease back
    state.stop.set()
    await _within(STOP_SECONDS, asyncio.wait({watching}))
    return status


async def _within(seconds: float, ending: Awaitable[object]) -> None:
    try:
        async with asyncio.timeout(seconds):
            await ending
    except TimeoutError:
        log.warning("a part of the process did not end within %.0f s", seconds)


async def _sleep_or_stop(state: State, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await state.stop.wait()
    except TimeoutError:
        pass


def _stop_on_signals(state: State) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, state.stop.set)


# ---------------------------------------------------------------- ports


def _serve_metrics(port: int, metrics: OperatorMetrics, stack: AsyncExitStack) -> None:
    try:
        server, thread = start_http_server(port, registry=metrics.registry)
    except OSError as error:
        raise StartError(
            f"the metrics port {port} cannot be opened: {error}; choose another with --metrics-port"
        ) from error

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)

    stack.callback(close)


async def _serve_health(port: int, state: State, stack: AsyncExitStack) -> None:
    """Serve /healthz and /readyz from the event loop itself: when that stalls, so do the probes."""

    async def healthz(_: web.Request) -> web.Response:
        problem = state.problem()
        return web.Response(status=503 if problem else 200, text=f"{problem or 'ok'}\n")

    async def readyz(request: web.Request) -> web.Response:
        if not state.watching:
            return web.Response(status=503, text="not watching yet\n")
        return await healthz(request)

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz)])
    runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    try:
        await web.TCPSite(runner, None, port).start()
    except OSError as error:
        raise StartError(
            f"the health port {port} cannot be opened: {error}; choose another with --health-port"
        ) from error
