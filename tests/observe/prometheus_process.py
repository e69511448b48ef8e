"""A real Prometheus on loopback, with the chart's rules, ended by its own id."""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.tools.processes import free_ports, program

RULES = Path(__file__).resolve().parents[2] / "helm" / "ridgeline" / "rules"
START_SECONDS = 30.0


@contextmanager
def running_prometheus(path: Path, folder: Path, scrapes: Sequence[dict[str, Any]], *, window: str) -> Iterator[str]:
    """Start Prometheus with one-second scrapes and rules, and end it; yields its address.

    Args:
        path: Prometheus, of whatever version.
        folder: for its configuration, data and log.
        scrapes: scrape configurations.
        window: window of the rules' rates.
    """
    for source in RULES.glob("*.yaml"):
        text = source.read_text().replace("${window}", window).replace("${interval}", "1s")
        (folder / source.name).write_text(text)
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / source.name) for source in RULES.glob("*.yaml")],
        "scrape_configs": list(scrapes),
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    [port] = free_ports(1)
    command: list[str | Path] = [path, f"--config.file={folder / 'prometheus.yml'}"]
    command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    log = folder / "prometheus.log"
    with program(command, log) as process:
        url = f"http://127.0.0.1:{port}"
        _wait_ready(url, process, log)
        yield url


def _wait_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=2):
                return
        except (urllib.error.URLError, OSError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Prometheus did not become ready: {log.read_text(errors='replace')}") from error
            time.sleep(0.1)
