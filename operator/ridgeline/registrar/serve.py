"""The registrar's process: the watch, the passes and a small HTTP server."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from ridgeline.registrar.metrics import RegistrarMetrics
from ridgeline.registrar.pods import PodWatch
from ridgeline.registrar.smg import SmgBackend
from ridgeline.registrar.synchronizer import Synchronizer

log = logging.getLogger(__name__)

STUCK_SECONDS = 60.0
"""A registrar without a pass for this long is hung: a pass that fails counts, one that never ends does not."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What one registrar is for."""

    namespace: str
    fleet: str
    router_url: str
    port: int
    router_key: str | None = field(default=None, repr=False)


async def run(settings: Settings) -> None:
    """Keep the router's table until SIGTERM or SIGINT.

    The table is left as it is: the router beside this registrar is ending too, or goes on serving.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    metrics = RegistrarMetrics()
    async with ApiClient(await load_configuration()) as api, aiohttp.ClientSession() as session:
        synchronizer = Synchronizer(SmgBackend(session, settings.router_url, settings.router_key), metrics)
        watch = PodWatch(api, settings.namespace, settings.fleet, lambda: synchronizer.pods_changed(watch.engines))
        server = web.AppRunner(application(synchronizer, watch, metrics), access_log=None)
        await server.setup()
        await web.TCPSite(server, port=settings.port).start()
        log.info("keeping the table of %s for fleet %s/%s", settings.router_url, settings.namespace, settings.fleet)
        tasks = [asyncio.create_task(watch.run()), asyncio.create_task(synchronizer.run(watch))]
        stop = asyncio.create_task(stopped.wait())
        try:
            done, _ = await asyncio.wait([*tasks, stop], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a task that ended by a fault ends the process, and the kubelet starts it anew
        finally:
            for task in (*tasks, stop):
                task.cancel()
            await asyncio.gather(*tasks, stop, return_exceptions=True)
            await server.cleanup()
    log.info("stopped; the table is left as it is")


async def load_configuration() -> Configuration:
    """Credentials of the pod, or of the KUBECONFIG where there is no pod around."""
    configuration = Configuration()
    try:
        load_incluster_config(client_configuration=configuration)
    except ConfigException:
        await load_kube_config(client_configuration=configuration)
    return configuration


def application(synchronizer: Synchronizer, watch: PodWatch, metrics: RegistrarMetrics) -> web.Application:
    """The HTTP server: what is in the table, whether it is right, and metrics."""

    async def workers(_: web.Request) -> web.Response:
        view = synchronizer.view
        roles = {pod: role.value for pod, role in sorted(view.workers.items())}
        return web.json_response(
            {"synchronized": view.synchronized, "message": message(synchronizer, watch), "workers": roles}
        )

    async def readyz(_: web.Request) -> web.Response:
        status = 200 if synchronizer.view.synchronized else 503
        return web.Response(status=status, text=(message(synchronizer, watch) or "ok") + "\n")

    async def servedz(_: web.Request) -> web.Response:
        text = "ok" if synchronizer.has_served else message(synchronizer, watch) or "no engine can answer requests yet"
        return web.Response(status=200 if synchronizer.has_served else 503, text=text + "\n")

    async def healthz(_: web.Request) -> web.Response:
        age = time.monotonic() - synchronizer.last_pass
        return web.Response(status=200 if age < STUCK_SECONDS else 503, text=f"last pass {age:.1f} s ago\n")

    async def exposition(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/v1/workers", workers)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/servedz", servedz)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/metrics", exposition)
    return app


def message(synchronizer: Synchronizer, watch: PodWatch) -> str:
    """What is wrong, in words; empty when nothing is."""
    if not watch.known:
        return f"the pods have not been listed yet: {watch.problem or 'the API server has not answered'}"
    away = f"the API server cannot be read ({watch.problem}); the last known pods stand" if watch.problem else ""
    return "; ".join(part for part in (synchronizer.view.message, away) if part)
