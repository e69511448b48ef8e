"""Memory of `ridgeline replay` over a million requests: they stream from the file, and only their numbers are kept."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import islice
from math import inf
from pathlib import Path

from ridgeline.simulate.traces import Arrival
from tests.bench.figures import Figure, not_measured
from tests.bench.simulator import generated

REQUESTS = 1_000_000
POLICIES = ("ridgeline", "mixed:512")
FLEET = ("--model", "llama-3.1-70b", "--tensor-parallel", "4", "--engines", "8")
MOST_MEBIBYTES = 1024.0
STATUS = Path("/proc/self/status")
_REPLAY = """
import sys
from pathlib import Path
from ridgeline.__main__ import main
status = main(sys.argv[1:])
print(Path("/proc/self/status").read_text())
sys.exit(status)
"""
"""The command, which then says what it took: `ru_maxrss` of a child also counts the process that started it."""


def azure_lines(arrivals: Iterable[Arrival]) -> Iterator[str]:
    """A trace in the format of Azure's, line by line."""
    start = datetime(2026, 1, 1)
    yield "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    for each in arrivals:
        at = start + timedelta(seconds=each.seconds)
        yield f"{at:%Y-%m-%d %H:%M:%S.%f},{each.prompt_tokens},{each.output_tokens}\n"


def replay_memory(requests: int = REQUESTS) -> list[Figure]:
    """Most memory that the command ever held, of so many requests, and how that grows with them."""
    if not STATUS.exists():
        return [not_measured("memory of a replay", f"the system does not tell it ({STATUS} is Linux's)")]
    with tempfile.TemporaryDirectory() as folder:
        few, many = (_most_bytes(Path(folder), count) for count in (requests // 10, requests))
    each = (many - few) / (requests - requests // 10)
    note = f"most resident memory of `ridgeline replay` with {' and '.join(POLICIES)} and a report; generated chat"
    return [
        Figure(f"memory, {requests:,} requests", many / 2**20, "MiB", MOST_MEBIBYTES, note),
        Figure("memory for each more request", each, "bytes", None, f"beside a trace of {requests // 10:,}"),
    ]


def _most_bytes(folder: Path, requests: int) -> int:
    trace = folder / f"{requests}.csv"
    with trace.open("w") as file:
        file.writelines(azure_lines(islice(generated(inf), requests)))
    options = ["replay", "--trace", str(trace), *FLEET, "--policies", ",".join(POLICIES)]
    options += ["--report", str(folder / "report.html")]
    ended = subprocess.run([sys.executable, "-c", _REPLAY, *options], capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"ridgeline replay ended with {ended.returncode}: {ended.stderr}")
    (kibibytes,) = re.findall(r"^VmHWM:\s+(\d+) kB$", ended.stdout, re.MULTILINE)
    return int(kibibytes) * 1024
