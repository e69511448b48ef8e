"""The exporter as a process: started with the stand-in library, asked over HTTP, ended by its own id."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.gpu.stand_in import VARIABLE, StandIn
from tests.tools.processes import free_ports, program

PATIENCE_SECONDS = 60.0


@dataclass
class Exporter:
    """A running exporter."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def until(self, condition: Callable[[str], bool]) -> str:
        """The metrics, once they are as wanted."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            text = self.get("/metrics")[1]
            if condition(text):
                return text
            time.sleep(0.2)
        raise AssertionError(f"{self.get('/metrics')[1]}\n{self.log.read_text()}")


@contextmanager
def exporter(player: StandIn, folder: Path, libraries: Path | None = None) -> Iterator[Exporter]:
    """Run it for the length of the block, with its log and the kubelet's socket in a folder."""
    [port] = free_ports(1)
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(libraries or player.shared_object.parent),
        VARIABLE: str(player.file),
        "NODE_NAME": "node-1",
    }
    log = folder / "log"
    command = [sys.executable, "-m", "ridgeline_exporters.gpu", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--pod-resources-socket", str(folder / "kubelet.sock")]
    with program(command, log, environment=environment) as process:
        yield Exporter(process, port, log)
