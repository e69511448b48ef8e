"""The real SMG, started as the router container starts it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from ridgeline.api import names
from ridgeline.api.fleet import InferenceFleet
from ridgeline.render.router import router_arguments
from tests.registrar.stand_in_engine import MODEL
from tests.tools.processes import free_ports

KEY = "key-of-this-test"
CLUSTER = Path(os.environ.get("RIDGELINE_CLUSTER", "/var/tmp/ridgeline-cluster"))
START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Ports:
    """Where one SMG listens."""

    router: int
    health: int
    metrics: int

    @classmethod
    def free(cls) -> Ports:
        """Ports that were free a moment ago."""
        return cls(*free_ports(3))

    @property
    def url(self) -> str:
        """Of the router."""
        return f"http://127.0.0.1:{self.router}"


def program() -> str:
    """SMG of an environment of its own (API server tier) or of the engines' (engine tier), or the one on PATH."""
    kept = [CLUSTER / folder / "bin" / "smg" for folder in ("smg", "vllm")]
    if found := next((str(path) for path in kept if path.exists()), None) or shutil.which("smg"):
        return found
    raise FileNotFoundError(
        f"{kept[0]} is missing and no smg is on PATH: `python3 tests/cluster/images.py router-environment` makes it"
    )


def arguments(fleet: InferenceFleet, ports: Ports) -> list[str]:
    """The rendered arguments, with the ports and the key of this test in their place."""
    replaced = {
        str(names.ROUTER_PORT): str(ports.router),
        str(names.ROUTER_HEALTH_PORT): str(ports.health),
        str(names.ROUTER_METRICS_PORT): str(ports.metrics),
    }
    return [replaced.get(word, word).replace("$(ROUTER_KEY)", KEY) for word in router_arguments(fleet)]


@asynccontextmanager
async def smg(fleet: InferenceFleet, ports: Ports, log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run an SMG for the length of the block."""
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            "setpriv", "--pdeathsig", "KILL", "--", program(), "launch", *arguments(fleet, ports),
            stdout=output, stderr=output,
        )  # fmt: skip
    try:
        await _ready(process, ports, log)
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)  # a graceful end waits for its grace period
        await process.wait()


async def complete(session: aiohttp.ClientSession, ports: Ports) -> int:
    """Send one request through the router; returns the status."""
    body = {"model": MODEL, "prompt": "a", "max_tokens": 1}
    async with session.post(f"{ports.url}/v1/completions", json=body) as response:
        await response.read()
        return response.status


async def _ready(process: asyncio.subprocess.Process, ports: Ports, log: Path) -> None:
    deadline = asyncio.get_running_loop().time() + START_SECONDS
    async with aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(f"http://127.0.0.1:{ports.health}/liveness") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            if process.returncode is not None or asyncio.get_running_loop().time() > deadline:
                tail = await asyncio.to_thread(log.read_text)
                raise RuntimeError(f"SMG did not start:\n{tail[-3000:]}")
            await asyncio.sleep(0.1)
