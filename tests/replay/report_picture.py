"""Makes the picture of the report in the README: a generated hour, eight policies, one screenshot.

    python -m tests.replay.report_picture docs/images/replay-report.png [--keep FOLDER]

The hour has four quarters: quiet chat, a rush of chat, a rush of long documents with short answers, quiet chat again.
Lengths have the published statistics of Azure's conversation trace (`tests.bench.simulator`); documents are four times
as long. Needs Chromium; `--keep` leaves the trace and the report in a folder.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from ridgeline.__main__ import main as ridgeline
from ridgeline.simulate.traces import Arrival
from tests.bench.replay_memory import azure_lines
from tests.bench.simulator import generated

QUARTER_SECONDS = 900.0
QUARTERS = ((1.2, 1.0, 1.0), (4.0, 1.0, 1.0), (2.2, 4.0, 0.5), (1.0, 1.0, 1.0))
"""Times the rate of the conversation trace, times the length of its prompts, times that of its answers."""
OPTIONS = ["--model", "llama-3.1-70b", "--tensor-parallel", "4", "--engines", "8"]
WIDTH, HEIGHT = 1180, 1490


def hour() -> Iterator[Arrival]:
    """The requests."""
    for number, (rate, prompts, outputs) in enumerate(QUARTERS):
        for each in generated(QUARTER_SECONDS * rate, seed=number):
            at = number * QUARTER_SECONDS + each.seconds / rate
            yield Arrival(at, round(each.prompt_tokens * prompts), max(1, round(each.output_tokens * outputs)))


def write_trace(path: Path) -> None:
    """The requests in the format of Azure's traces."""
    path.write_text("".join(azure_lines(hour())))


def picture(report: Path, image: Path, width: int, height: int, *options: str) -> None:
    """What a browser without a window shows of a report."""
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                f"--user-data-dir={profile}", f"--window-size={width},{height}", f"--screenshot={image}",
                *options, report.absolute().as_uri(),
            ],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip


def main() -> int:
    """Play, and take the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", type=Path)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        trace, report = folder / "chat-and-documents.csv", folder / "report.html"
        write_trace(trace)
        status = ridgeline(["replay", "--trace", str(trace), *OPTIONS, "--report", str(report)])
        if status == 0:
            picture(report, options.image.absolute(), WIDTH, HEIGHT)
    return status


if __name__ == "__main__":
    sys.exit(main())
