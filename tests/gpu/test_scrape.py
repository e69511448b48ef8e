"""Exporter, Prometheus and rules together: a real Prometheus scrapes the process as the chart has it scrape."""

from __future__ import annotations

import json
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.exporter_process import exporter
from tests.gpu.kubelet_stand_in import KubeletStandIn, kubelet
from tests.gpu.stand_in import StandIn
from tests.observe.exposition_server import exposition_server
from tests.observe.prometheus_process import running_prometheus
from tests.tools import programs

PATIENCE_SECONDS = 90.0
ENGINE = """\
# TYPE ridgeline_engine_exporter_up gauge
ridgeline_engine_exporter_up 1
# TYPE ridgeline_engine_peak_memory_bytes_per_second gauge
ridgeline_engine_peak_memory_bytes_per_second 1000
# TYPE ridgeline_engine_memory_bytes_total counter
ridgeline_engine_memory_bytes_total{{phase="decode",kind="weights"}} {moved}
# TYPE ridgeline_engine_busy_seconds_total counter
ridgeline_engine_busy_seconds_total{{phase="decode"}} {busy}
"""


def ask(url: str, expression: str) -> list[dict[str, Any]]:
    query = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=10) as answer:
        result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return result


def until(url: str, expression: str, step: Callable[[], None]) -> list[dict[str, Any]]:
    """What Prometheus answers, once it is anything."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if found := ask(url, expression):
            return found
        step()
        time.sleep(0.2)
    everything = ask(url, '{__name__=~"ridgeline.*"}')
    raise AssertionError(f"{expression} has no result: {everything}")


@pytest.mark.timeout(300)
def test_series_keep_the_pod_that_holds_the_gpu_and_an_error_of_the_model_comes_of_them(
    stand_in_library: Path, tmp_path: Path
) -> None:
    player = StandIn(stand_in_library, tmp_path / "nvml")
    player.set(gpus=2)
    pods = KubeletStandIn({("chat", "engines-a"): {"nvidia.com/gpu": ["GPU-0"]}})
    began = time.monotonic()

    def engine() -> str:
        """An engine that moves half of its peak and is busy all the time."""
        seconds = time.monotonic() - began
        return ENGINE.format(moved=500 * seconds, busy=seconds)

    def work() -> None:
        player.work(0.2, "gpu0", dram=0.75, tensor=0.5, sm=1.0)
        player.work(0.2, "gpu1", dram=0.0, tensor=0.0, sm=0.0)

    with (
        kubelet(tmp_path / "kubelet.sock", pods),
        exporter(player, tmp_path) as running,
        exposition_server({"/metrics": engine}) as engine_port,
    ):
        targets = {
            "ridgeline-gpu": (running.port, {"namespace": "ridgeline-system", "pod": "gpu-exporter-1"}),
            "ridgeline-engine": (engine_port, {"namespace": "chat", "pod": "engines-a", "fleet": "f"}),
        }
        scrapes = [
            {
                "job_name": job,
                "honor_labels": job == "ridgeline-gpu",
                "static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": labels}],
            }
            for job, (port, labels) in targets.items()
        ]
        with running_prometheus(programs.prometheus(), tmp_path, scrapes, window="15s") as url:
            [error] = until(url, "fleet:ridgeline_model_error:ratio", work)
            assert error["metric"]["fleet"] == "f"
            [held] = ask(url, 'ridgeline_gpu_dram_active_ratio{gpu="0"}')
            [free] = ask(url, 'ridgeline_gpu_dram_active_ratio{gpu="1"}')
            [measured] = ask(url, "engine:ridgeline_measured_dram_active:ratio")
            [up] = ask(url, "ridgeline_gpu_exporter_up")
    assert (held["metric"]["namespace"], held["metric"]["pod"]) == ("chat", "engines-a")
    assert not {"namespace", "pod"} & set(free["metric"]), "empty labels are not filled with the exporter's own"
    assert float(free["value"][1]) == 0.0
    assert measured["metric"]["pod"] == "engines-a"
    assert float(measured["value"][1]) == pytest.approx(0.75)
    assert up["metric"]["node"] == "node-1"
