"""The real router in front of the engines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.engines.engines import Engine, eventually, python, request
from tests.tools.processes import free_ports


class Router:
    """SMG with two engines in its table."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def add(self, engine: Engine, role: str) -> None:
        """Register an engine and wait until it is listed."""
        assert request("POST", f"{self.url}/workers", self._spec(engine, role))[0] == 202
        self._wait_for(engine, role)

    def set_role(self, engine: Engine, role: str) -> None:
        """Change the role of an engine and wait until the table shows it."""
        identity = self._workers()[engine.url][0]
        assert request("PUT", f"{self.url}/workers/{identity}", self._spec(engine, role))[0] == 202
        self._wait_for(engine, role)

    def _wait_for(self, engine: Engine, role: str) -> None:
        eventually(lambda: self._workers().get(engine.url, ("", ""))[1] == role, f"{engine.name} is {role}", 60)

    def _workers(self) -> dict[str, tuple[str, str]]:
        status, text = request("GET", f"{self.url}/workers")
        assert status == 200
        return {w["url"]: (w["id"], w["worker_type"]) for w in json.loads(text)["workers"] if w["is_healthy"]}

    @staticmethod
    def _spec(engine: Engine, role: str) -> dict[str, str]:
        return {"url": engine.url, "worker_type": role, "runtime_type": "vllm", "kv_connector": "NixlConnector"}


@contextmanager
def router(log: Path) -> Iterator[Router]:
    """Run the engines' environment's SMG for the length of the block."""
    port, metrics_port = free_ports(2)
    command = [
        "setpriv", "--pdeathsig", "KILL", "--", str(python().parent / "smg"), "launch", "--enable-igw",
        "--policy", "round_robin", "--host", "127.0.0.1", "--port", str(port),
        "--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port),
        "--health-check-interval-secs", "1", "--worker-startup-check-interval", "1",
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        _wait(process, f"http://127.0.0.1:{port}/liveness", log)
        yield Router(port)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # a graceful end would wait for its grace period
        process.wait(30)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + 120
    while True:
        with suppress(OSError):
            if request("GET", url, seconds=10)[0] == 200:
                return
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the router did not start:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.2)
