"""Operators as processes of their own, against a real API server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tools.api_server import ApiServer, KubectlError
from tests.tools.processes import free_ports, program

NO_PROMETHEUS = "http://127.0.0.1:9"
"""The discard port: nobody listens."""


@dataclass(slots=True)
class Operator:
    """A running `ridgeline operator`."""

    process: subprocess.Popen[bytes]
    log: Path
    metrics_port: int
    health_port: int

    def lines(self) -> list[dict[str, Any]]:
        """Its log so far."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def messages(self) -> list[str]:
        """Messages of its log so far."""
        return [str(line["message"]) for line in self.lines()]

    def metrics(self) -> dict[str, float]:
        """Its samples, by name and labels as exposed."""
        text = self._get(self.metrics_port, "/metrics")
        samples = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    def healthy(self) -> bool:
        """Whether /healthz answers 200."""
        return bool(self._get(self.health_port, "/healthz"))

    @staticmethod
    def _get(port: int, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return str(answer.read().decode())

    def stop(self) -> int:
        """Ask it to end, as Kubernetes does, and return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)

    def kill(self) -> None:
        """End it at once, as a lost node does."""
        self.process.kill()
        self.process.wait(timeout=10)


@contextmanager
def operator(server: ApiServer, namespace: str, folder: Path, *flags: str) -> Iterator[Operator]:
    """Run an operator for one namespace, with its Lease there too."""
    metrics_port, health_port = free_ports(2)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "operator.log"
    command = [
        *(sys.executable, "-P", "-m", "ridgeline", "operator"),
        f"--prometheus-url={NO_PROMETHEUS}",
        "--operator-image=registry.example/ridgeline:test",
        f"--namespace={namespace}",
        f"--lease-namespace={namespace}",
        f"--metrics-port={metrics_port}",
        f"--health-port={health_port}",
        "--interval-seconds=1",
        *flags,
    ]
    with program(command, log, environment={**os.environ, "KUBECONFIG": str(server.kubeconfig)}) as process:
        try:
            yield Operator(process, log, metrics_port, health_port)
        except BaseException:
            print(log.read_text(errors="replace"))
            raise


def eventually(check: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """The first true answer of `check`; objects and ports that are not there yet are waited for."""
    deadline = time.monotonic() + seconds
    problem: object = None
    while time.monotonic() < deadline:
        try:
            if answer := check():
                return answer
        except (KubectlError, OSError, KeyError, AssertionError) as error:
            problem = error
        time.sleep(0.2)
    raise AssertionError(f"not within {seconds:.0f} s: {what} ({problem})")


def condition(fleet: dict[str, Any], kind: str) -> dict[str, Any]:
    """One condition of a fleet as stored."""
    return next(c for c in fleet["status"]["conditions"] if c["type"] == kind)
