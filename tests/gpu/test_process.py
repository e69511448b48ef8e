"""The command as the DaemonSet runs it: a process with the stand-in library, a kubelet that is played, and HTTP."""

from __future__ import annotations

import signal
import socket as sockets
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path

import pynvml
import pytest

from tests.gpu.exporter_process import PATIENCE_SECONDS, exporter
from tests.gpu.kubelet_stand_in import KubeletStandIn, kubelet
from tests.gpu.stand_in import StandIn


@pytest.fixture
def player(stand_in_library: Path, tmp_path: Path) -> StandIn:
    return StandIn(stand_in_library, tmp_path / "nvml")


def test_it_measures_maps_and_stops_gracefully(player: StandIn, tmp_path: Path) -> None:
    pods = KubeletStandIn({("chat", "engines-a"): {"nvidia.com/gpu": ["GPU-0"]}})
    with kubelet(tmp_path / "kubelet.sock", pods), exporter(player, tmp_path) as running:
        running.until(lambda text: 'state="measured",uuid="GPU-0"} 1.0' in text and 'pod="engines-a"' in text)
        assert running.get("/healthz") == (200, "ok\n")
        assert running.get("/readyz") == (200, "ok\n")
        assert running.get("/")[0] == 404

        def busy(text: str) -> bool:
            player.work(0.25, dram=0.5, tensor=0.125, sm=1.0)
            return "ridgeline_gpu_dram_active_ratio{" in text

        [dram] = [line for line in running.until(busy).splitlines() if line.startswith("ridgeline_gpu_dram_active")]
        assert 'namespace="chat",node="node-1",pod="engines-a"' in dram
        assert dram.endswith(" 0.5")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(PATIENCE_SECONDS) == 0
        assert "Stopped." in running.log.read_text()


def test_it_serves_and_waits_without_a_driver_and_without_a_kubelet(player: StandIn, tmp_path: Path) -> None:
    player.set(init=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    with exporter(player, tmp_path) as running:
        running.until(lambda text: 'ridgeline_gpu_exporter_errors_total{node="node-1",source="nvml"} 1.0' in text)
        text = running.until(lambda text: 'source="pod_resources"} 0.0' not in text)
        assert 'ridgeline_gpu_exporter_up{node="node-1"} 0.0' in text
        assert 'ridgeline_gpu_pod_resources_up{node="node-1"} 0.0' in text
        assert running.get("/healthz")[0] == 200, "a new process would find no driver either"
        log = running.log.read_text()
        assert log.count("Driver Not Loaded") == 1
        assert "dmesg" in log


@pytest.mark.skipif(find_library("nvidia-ml") is not None, reason="this machine has the real library")
def test_it_says_what_to_do_where_the_library_is_missing(player: StandIn, tmp_path: Path) -> None:
    with exporter(player, tmp_path, libraries=tmp_path) as running:
        running.until(lambda text: 'source="nvml"} 1.0' in text)
        assert "runtime class of NVIDIA's container toolkit" in running.log.read_text()


def test_a_port_that_is_taken_is_said_in_a_line(tmp_path: Path) -> None:
    with sockets.create_server(("127.0.0.1", 0)) as taken:
        command = [sys.executable, "-m", "ridgeline_exporters.gpu", "--host", "127.0.0.1"]
        command += ["--port", str(taken.getsockname()[1])]
        done = subprocess.run(command, text=True, capture_output=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 1
    assert "cannot listen on 127.0.0.1" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_says_what_it_does_and_needs() -> None:
    command = [sys.executable, "-m", "ridgeline_exporters.gpu", "--help"]
    done = subprocess.run(command, text=True, capture_output=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0
    assert "libnvidia-ml.so.1" in done.stdout
    assert "--pod-resources-socket" in done.stdout
