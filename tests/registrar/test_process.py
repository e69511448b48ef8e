"""The whole registrar as a process: a real API server, the real SMG, stand-ins for the engines.

Nothing runs the pods: the tests write their status, as a kubelet would. Engines listen on port 8000 of
loopback addresses of their own.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from ridgeline.api import names
from ridgeline.api.fleet import InferenceFleet
from tests.registrar.real_smg import KEY, Ports, complete, smg
from tests.registrar.stand_in_engine import StandInEngine, stand_in_engine

if TYPE_CHECKING:
    from tests.tools.api_server import ApiServer

pytestmark = [pytest.mark.apiserver, pytest.mark.engine]

addresses = (f"127.83.{number // 250}.{number % 250 + 1}" for number in itertools.count())


@dataclass(frozen=True, slots=True)
class Pods:
    """Engine pods on the API server, with the stand-ins behind them."""

    server: ApiServer
    namespace: str
    stack: AsyncExitStack

    async def create(self, name: str, role: str = "mixed", fleet: str = "chat") -> StandInEngine:
        """A pod that is Ready from the start."""
        address = next(addresses)
        engine = await self.stack.enter_async_context(stand_in_engine(address, names.ENGINE_PORT))
        labels = {names.LABEL_FLEET: fleet, names.LABEL_COMPONENT: names.COMPONENT_ENGINE, names.LABEL_ROLE: role}
        await self.kubectl_apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": self.namespace, "labels": labels},
                "spec": {
                    "terminationGracePeriodSeconds": 300,
                    "nodeName": "node-1",  # a pod on a node outlives its deletion by the grace period
                    "containers": [{"name": "engine", "image": "stand-in"}],
                },
            }
        )
        await self.status(name, ready=True, address=address)
        return engine

    async def kubectl_apply(self, manifest: dict[str, Any]) -> None:
        await asyncio.to_thread(self.server.kubectl, "create", "-f", "-", stdin=json.dumps(manifest))

    async def kubectl(self, *arguments: str) -> str:
        return await asyncio.to_thread(self.server.kubectl, "--namespace", self.namespace, *arguments)

    async def status(self, name: str, *, ready: bool, address: str | None = None) -> None:
        """Write a pod's status, as its kubelet would."""
        status: dict[str, Any] = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": str(ready), "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        }
        if address:
            status |= {"podIP": address, "podIPs": [{"ip": address}]}
        await self.kubectl("patch", "pod", name, "--subresource=status", "-p", json.dumps({"status": status}))

    async def role(self, name: str, role: str) -> None:
        """Change a role, as the operator does."""
        await self.kubectl("label", "pod", name, "--overwrite", f"{names.LABEL_ROLE}={role}")


@dataclass(frozen=True, slots=True)
class Registrar:
    """A running registrar, seen from outside."""

    process: asyncio.subprocess.Process
    port: int
    session: aiohttp.ClientSession
    log: Path

    async def get(self, path: str) -> tuple[int, str]:
        """Status and body; (0, "") while it does not answer."""
        try:
            async with self.session.get(f"http://127.0.0.1:{self.port}{path}") as response:
                return response.status, await response.text()
        except aiohttp.ClientError:
            return 0, ""

    async def shows(self, seconds: float = 60, **workers: str) -> None:
        """Wait until the table holds these workers and equals the labels."""

        async def shown() -> bool:
            status, body = await self.get("/v1/workers")
            return status == 200 and json.loads(body) == {"synchronized": True, "message": "", "workers": workers}

        await self.wait(shown, seconds)

    async def wait(self, condition: Callable[[], Awaitable[bool]], seconds: float = 60) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not await condition():  # noqa: ASYNC110 - another process is watched
                    await asyncio.sleep(0.05)
        except TimeoutError:
            _, seen = await self.get("/v1/workers")
            tail = await asyncio.to_thread(self.log.read_text)
            raise AssertionError(f"last seen: {seen}\n{tail[-3000:]}") from None


@asynccontextmanager
async def registrar(kubeconfig: Path, namespace: str, router: Ports, folder: Path) -> AsyncIterator[Registrar]:
    port, log = Ports.free().router, folder / "registrar.log"
    arguments = ["--namespace", namespace, "--fleet", "chat", "--router-url", router.url, "--port", str(port)]
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "ROUTER_KEY": KEY}
    environment.pop("KUBERNETES_SERVICE_HOST", None)
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            "setpriv", "--pdeathsig", "KILL", "--", sys.executable, "-P", "-m", "ridgeline", "registrar", *arguments,
            env=environment, stdout=output, stderr=output,
        )  # fmt: skip
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        try:
            yield Registrar(process, port, session, log)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


@pytest.fixture
async def pods(api_server: ApiServer, api_namespace: str) -> AsyncIterator[Pods]:
    async with AsyncExitStack() as stack:
        yield Pods(api_server, api_namespace, stack)


@pytest.fixture
async def router(smg_fleet: InferenceFleet, tmp_path: Path) -> AsyncIterator[Ports]:
    ports = Ports.free()
    async with smg(smg_fleet, ports, tmp_path / "smg.log"):
        yield ports


async def test_labels_reach_the_router_and_its_traffic(
    api_server: ApiServer, pods: Pods, router: Ports, tmp_path: Path
) -> None:
    a, b = await pods.create("a"), await pods.create("b")
    await pods.create("other", fleet="another")
    async with registrar(api_server.kubeconfig, pods.namespace, router, tmp_path) as it:
        await it.shows(a="mixed", b="mixed")
        assert (await it.get("/readyz"))[0] == (await it.get("/healthz"))[0] == 200

        await pods.role("a", "prefill")
        await pods.role("b", "decode")
        await it.shows(a="prefill", b="decode")
        assert await complete(it.session, router) == 200
        assert (a.kinds, b.kinds) == (["prefill"], ["decode"])

        c = await pods.create("c")
        await it.shows(a="prefill", b="decode", c="mixed")
        await pods.status("c", ready=False)
        await it.shows(a="prefill", b="decode")
        assert c.kinds == []

        _, metrics = await it.get("/metrics")
        assert 'ridgeline_registrar_workers{role="prefill"} 1.0' in metrics
        assert "ridgeline_registrar_synchronized 1.0" in metrics
        assert "ridgeline_registrar_role_changes_total 2.0" in metrics


async def test_a_terminating_engine_leaves_the_table_while_it_still_answers(
    api_server: ApiServer, pods: Pods, router: Ports, tmp_path: Path
) -> None:
    await pods.create("a")
    await pods.create("b")
    async with registrar(api_server.kubeconfig, pods.namespace, router, tmp_path) as it:
        await it.shows(a="mixed", b="mixed")
        await pods.kubectl("delete", "pod", "b", "--wait=false")
        assert "deletionTimestamp" in await pods.kubectl("get", "pod", "b", "-o", "yaml")
        await it.shows(a="mixed")


async def test_a_registrar_that_was_killed_takes_up_the_table_that_it_finds(
    api_server: ApiServer, pods: Pods, router: Ports, tmp_path: Path
) -> None:
    await pods.create("a")
    await pods.create("b")
    async with registrar(api_server.kubeconfig, pods.namespace, router, tmp_path) as first:
        await first.shows(a="mixed", b="mixed")
        first.process.kill()
        await first.process.wait()
    await pods.role("a", "prefill")
    await pods.role("b", "decode")
    async with registrar(api_server.kubeconfig, pods.namespace, router, tmp_path) as second:
        await second.shows(a="prefill", b="decode")


async def test_sigterm_ends_it_at_once_and_leaves_the_table(
    api_server: ApiServer, pods: Pods, router: Ports, tmp_path: Path
) -> None:
    await pods.create("a")
    async with registrar(api_server.kubeconfig, pods.namespace, router, tmp_path) as it:
        await it.shows(a="mixed")
        it.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(5):
            assert await it.process.wait() == 0
        assert await complete(it.session, router) == 200
        log = await asyncio.to_thread(it.log.read_text)
    assert KEY not in log
    assert all(json.loads(line)["level"] == "info" for line in log.splitlines()), log


async def test_an_api_server_that_is_away_leaves_the_table_and_is_followed_again_when_it_is_back(
    pods: Pods, router: Ports, smg_fleet: InferenceFleet, tmp_path: Path
) -> None:
    """The API server is put behind a gate that the test can shut: ending the server itself would end other tests."""
    await pods.create("a")
    async with Gate.open_to(pods.server.url) as gate:
        kubeconfig = gate.kubeconfig(pods.server.kubeconfig, tmp_path)
        async with registrar(kubeconfig, pods.namespace, router, tmp_path) as it:
            await it.shows(a="mixed")
            gate.shut()

            async def says_so() -> bool:
                return "the last known pods stand" in (await it.get("/v1/workers"))[1]

            await it.wait(says_so)
            status, body = await it.get("/v1/workers")
            assert (status, json.loads(body)["workers"]) == (200, {"a": "mixed"})
            assert (await it.get("/readyz"))[0] == 200
            assert await complete(it.session, router) == 200
            await pods.role("a", "decode")
            gate.open()
            await it.shows(a="decode")


class Gate:
    """A TCP relay in front of the API server that can be shut, which also cuts what flows."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._open = True
        self.port = 0

    @classmethod
    @asynccontextmanager
    async def open_to(cls, url: str) -> AsyncIterator[Gate]:
        host, port = url.removeprefix("https://").split(":")
        gate = cls(host, int(port))
        server = await asyncio.start_server(gate._relay, "127.0.0.1", 0)
        gate.port = server.sockets[0].getsockname()[1]
        try:
            yield gate
        finally:
            gate.shut()
            server.close()

    def kubeconfig(self, original: Path, folder: Path) -> Path:
        """The same credentials, through the gate."""
        config = json.loads(original.read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self.port}"
        path = folder / "gate.kubeconfig"
        path.write_text(json.dumps(config))
        return path

    def open(self) -> None:
        self._open = True

    def shut(self) -> None:
        self._open = False
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._open:
            writer.transport.abort()
            return
        server_reader, server_writer = await asyncio.open_connection(*self._target)
        self._writers |= {writer, server_writer}
        await asyncio.gather(_copy(reader, server_writer), _copy(server_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()
