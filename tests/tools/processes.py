"""Programs that tests start, and ports for them: each ends with its block, and with the test run if that is killed."""

from __future__ import annotations

import random
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

END_SECONDS = 30.0
PORTS = range(20_000, 30_000)


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different.

    From below the range that the kernel gives to outgoing connections: one of those could take a port of that range
    between this look at it and the start of the program.
    """
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with closing(socket.socket()) as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"no {count} ports are free between {PORTS[0]} and {PORTS[-1]}")


@contextmanager
def program(
    command: Sequence[str | Path], log: Path, *, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program for the length of the block, with its output in `log`."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", "--", *command], stdout=output, stderr=output, env=environment
        )
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask the process to end, and end it if it does not."""
    process.terminate()
    try:
        process.wait(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
