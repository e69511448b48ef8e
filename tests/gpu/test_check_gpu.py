"""The parts of `make check-gpu` that need no GPU: what it reads, how it judges, and how it says that it cannot."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.gpu import check_gpu
from tests.gpu.check_gpu import Comparison, last_rate, reported, run_load, state_of, table
from tests.gpu.exporter_process import exporter
from tests.gpu.stand_in import StandIn


@pytest.mark.parametrize(
    ("expected", "found", "agrees"),
    [(0.8, 0.87, True), (0.8, 0.73, True), (0.8, 0.89, False), (0.8, 0.71, False), (0.8, None, False)],
)
def test_a_number_agrees_within_its_tolerance(expected: float, found: float | None, agrees: bool) -> None:
    comparison = Comparison("copies", "DRAM active", expected, found, 0.10)
    assert comparison.agrees is agrees
    assert ("WRONG" in table([comparison])) is not agrees


def test_an_idle_gpu_is_judged_by_the_value_itself() -> None:
    assert Comparison("idle", "DRAM active", 0.0, 0.04, 0.05).agrees
    assert not Comparison("idle", "DRAM active", 0.0, 0.06, 0.05).agrees
    assert not Comparison("idle", "DRAM active", 0.0, None, 0.05).agrees


def test_the_rate_is_that_of_the_last_seconds() -> None:
    points = [(0.0, 100.0), (5.0, 200.0), (10.0, 300.0), (15.0, 800.0)]
    assert last_rate(points, 10.0) == pytest.approx(600 / 10)


def test_what_the_exporter_serves_is_what_the_check_reads(stand_in_library: Path, tmp_path: Path) -> None:
    player = StandIn(stand_in_library, tmp_path / "nvml")
    player.set(gpus=2, gpu1__no_gpm=1)

    def busy(text: str) -> bool:
        player.work(0.25, dram=0.5, tensor=0.125, sm=1.0)
        return reported(text, "dram_active_ratio", "GPU-0") is not None

    with exporter(player, tmp_path) as running:
        text = running.until(busy)
    assert reported(text, "dram_active_ratio", "GPU-0") == 0.5
    assert reported(text, "tensor_active_ratio", "GPU-0") == 0.125
    assert reported(text, "dram_active_ratio", "GPU-1") is None
    assert (state_of(text, "GPU-0"), state_of(text, "GPU-1"), state_of(text, "GPU-2")) == ("measured", "no_gpm", None)


def test_a_load_counts_its_work_and_rests_for_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def work() -> float:
        nonlocal now
        now += 0.03
        return 3.0

    def rest(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(check_gpu, "time", SimpleNamespace(monotonic=lambda: now, sleep=rest))
    assert last_rate(run_load(work, lambda: None, 2.0), 1.0) == pytest.approx(100.0)
    assert last_rate(run_load(work, lambda: None, 2.0, share=0.5), 1.0) == pytest.approx(50.0)


@pytest.mark.skipif(find_spec("torch") is not None, reason="this Python has torch")
def test_without_torch_it_says_so_and_compares_nothing() -> None:
    done = subprocess.run([sys.executable, check_gpu.__file__], text=True, capture_output=True, timeout=60)
    assert done.returncode == 2
    assert "has no torch" in done.stderr
    assert "PYTHON=" in done.stderr
    assert "Traceback" not in done.stderr


class Rehearsal:
    """An imitation of torch, NVML, the clock and the exporter: a GPU of 1 TB/s that does what it is asked to.

    Copies move 0.8 TB/s. Matrix products run at 90 % of what 100 SMs can do at 1 GHz.
    """

    NVML_CLOCK_MEM, NVML_CLOCK_SM = 2, 1

    def __init__(self, tensor: float = 0.9) -> None:
        self.now = 0.0
        self.load, self.share = "idle", 1.0
        self.tensor = tensor
        properties = SimpleNamespace(name="imitation", major=9, minor=0, multi_processor_count=100)
        self.cuda = SimpleNamespace(get_device_properties=lambda _: properties, synchronize=lambda: None)

    def nvmlDeviceGetHandleByUUID(self, _: str) -> None:  # noqa: N802
        return None

    def nvmlDeviceGetMaxClockInfo(self, _: None, which: int) -> int:  # noqa: N802
        return {self.NVML_CLOCK_MEM: 1000}[which]

    def nvmlDeviceGetMemoryBusWidth(self, _: None) -> int:  # noqa: N802
        return 4000

    def nvmlDeviceGetClockInfo(self, _: None, which: int) -> int:  # noqa: N802
        return {self.NVML_CLOCK_SM: 1000}[which]

    def start(self, load: str, work_per_second: float) -> SimpleNamespace:
        self.load = load

        def step() -> float:
            self.now += 0.05
            return work_per_second * 0.05

        return SimpleNamespace(step=step)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.share = 0.5 if self.load == "copies" else 1.0

    def read(self) -> str:
        dram = {"idle": 0.01, "copies": 0.8 * self.share, "products": 0.3}[self.load]
        tensor = self.tensor if self.load == "products" else 0.0
        return "".join(
            f'ridgeline_gpu_{name}_active_ratio{{gpu="0",uuid="GPU-0"}} {value}\n'
            for name, value in (("dram", dram), ("tensor", tensor))
        )


@pytest.mark.parametrize(("tensor", "wrong"), [(0.9, []), (0.5, ["matrix products"])])
def test_a_rehearsal_with_an_imitated_gpu_compares_every_load(
    monkeypatch: pytest.MonkeyPatch, tensor: float, wrong: list[str]
) -> None:
    gpu = Rehearsal(tensor)
    monkeypatch.setattr(check_gpu, "time", SimpleNamespace(monotonic=lambda: gpu.now, sleep=gpu.sleep))
    monkeypatch.setattr(check_gpu, "Copies", lambda *_: gpu.start("copies", 0.8e12))
    monkeypatch.setattr(check_gpu, "Products", lambda *_: gpu.start("products", 0.9 * 100 * 4096 * 1e9))
    found = check_gpu.compare(gpu, gpu, gpu.read, "GPU-0")
    assert [each.load for each in found] == ["idle", "idle", "copies", "copies half of the time", "matrix products"]
    assert [round(each.expected, 3) for each in found] == [0.0, 0.0, 0.8, 0.4, 0.9]
    assert [each.load for each in found if not each.agrees] == wrong
