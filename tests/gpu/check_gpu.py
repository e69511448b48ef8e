"""Holds the GPU exporter against work that is known: `make check-gpu`, about a minute on a machine with a GPU.

The exporter runs as a process of its own. Beside it, this script copies memory and multiplies matrices on the first
GPU, counts the bytes and FLOPs itself, and compares what the exporter reported of the same seconds. It ends with 0 if
all agree, with 1 if not, and with 2 where nothing could be compared; it says why.

It needs an NVIDIA GPU from Hopper on that nothing else uses, and a Python with torch for CUDA, prometheus-client and
the packages of the extra `gpu`: make check-gpu PYTHON=/path/to/python
"""

from __future__ import annotations

import importlib
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LOAD_SECONDS = 14.0
"""Longer than the ten seconds of the exporter's window and one sample, so that a report holds one load alone."""
WINDOW_SECONDS = 10.0
START_SECONDS = 60.0
COPY_BYTES = 2 << 30
"""Size of a copied buffer: far more than any cache, so that each byte is read from memory and written to it."""
MATRIX = 8192
BURST_SECONDS = 0.05

BANDWIDTH_TOLERANCE = 0.10
TENSOR_TOLERANCE = 0.15
IDLE_DRAM, IDLE_TENSOR = 0.05, 0.01

FLOPS_PER_CLOCK_PER_SM = {(9, 0): 4096, (10, 0): 8192}
"""Dense BF16 FLOPs of one SM in one clock by compute capability: NVIDIA's peak over SMs and boost clock. For an H100
SXM, 989.4 TFLOPS / (132 x 1.83 GHz)."""


class CannotCheckError(Exception):
    """Nothing can be compared here. The message says why and what helps."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One number of the exporter beside what it should be."""

    load: str
    quantity: str
    expected: float
    reported: float | None
    tolerance: float
    """Largest difference, as a share of what is expected; of 0 it is the largest value."""

    @property
    def difference(self) -> float | None:
        """Reported against expected, as a share of it; the value itself where nothing is expected."""
        if self.reported is None:
            return None
        return self.reported / self.expected - 1 if self.expected else self.reported

    @property
    def agrees(self) -> bool:
        """Whether the two are within tolerance. What is not reported does not agree."""
        return self.difference is not None and abs(self.difference) <= self.tolerance


def table(comparisons: Sequence[Comparison]) -> str:
    """The comparisons, a line each."""
    lines = [f"{'load':<22} {'quantity':<24} {'expected':>9} {'reported':>9} {'differs':>9} {'allowed':>8}"]
    for each in comparisons:
        reported = "nothing" if each.reported is None else f"{each.reported:.3f}"
        differs = "" if each.difference is None else f"{each.difference:+.1%}"
        verdict = "" if each.agrees else "   WRONG"
        lines.append(
            f"{each.load:<22} {each.quantity:<24} {each.expected:>9.3f} {reported:>9} {differs:>9}"
            f" {each.tolerance:>8.0%}{verdict}"
        )
    return "\n".join(lines)


def reported(text: str, name: str, uuid: str) -> float | None:
    """A value of one GPU in an exposition, or None where there is none."""
    for line in text.splitlines():
        if line.startswith(f"ridgeline_gpu_{name}{{") and f'uuid="{uuid}"' in line:
            return float(line.rpartition(" ")[2])
    return None


def state_of(text: str, uuid: str) -> str | None:
    """The state of one GPU in an exposition, or None where the GPU is not in it."""
    found = re.findall(rf'^ridgeline_gpu_state{{.*state="(\w+)",uuid="{re.escape(uuid)}"}} 1\.0$', text, re.MULTILINE)
    return found[0] if found else None


def last_rate(points: Sequence[tuple[float, float]], seconds: float) -> float:
    """Work per second over the last seconds of a load, from (time, work done so far) of each of its steps."""
    end, total = points[-1]
    since, before = next(point for point in points if point[0] >= end - seconds)
    return (total - before) / (end - since)


# ---------------------------------------------------------------- loads


class Copies:
    """Copies from one buffer to another; each reads and writes every byte once."""

    def __init__(self, torch: Any, device: str, size: int = COPY_BYTES) -> None:
        self._source = torch.ones(size, dtype=torch.uint8, device=device)
        self._target = torch.empty_like(self._source)
        self._size = size

    def step(self) -> float:
        """Start some work; returns the bytes it moves."""
        for _ in range(4):
            self._target.copy_(self._source)
        return 4 * 2.0 * self._size


class Products:
    """Products of square matrices in BF16."""

    def __init__(self, torch: Any, device: str, size: int = MATRIX) -> None:
        self._left, self._right = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
        self._product = torch.empty_like(self._left)
        self._torch = torch
        self._size = size

    def step(self) -> float:
        """Start some work; returns its FLOPs."""
        for _ in range(8):
            self._torch.matmul(self._left, self._right, out=self._product)
        return 8 * 2.0 * self._size**3


def run_load(
    step: Callable[[], float], synchronize: Callable[[], None], seconds: float, *, share: float = 1.0
) -> list[tuple[float, float]]:
    """Work for a while, or for a share of each moment of it.

    Returns:
        (time, work done so far) after each step.
    """
    began, total = time.monotonic(), 0.0
    points: list[tuple[float, float]] = []
    while not points or points[-1][0] - began < seconds:
        burst = time.monotonic()
        while True:
            total += step()
            synchronize()
            if time.monotonic() - burst >= BURST_SECONDS:
                break
        if share < 1:
            time.sleep((time.monotonic() - burst) * (1 - share) / share)
        points.append((time.monotonic(), total))
    return points


# ---------------------------------------------------------------- the machine


def need(name: str, cure: str) -> Any:
    """A module, or the reason why nothing can be compared."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise CannotCheckError(f"{sys.executable} has no {name} ({error}); {cure}") from error


@contextmanager
def exporter() -> Iterator[Callable[[], str]]:
    """The exporter in a process of its own; yields what reads its metrics."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "ridgeline_exporters.gpu", "--host", "127.0.0.1", "--port", str(port)]
    path = os.pathsep.join(filter(None, [str(ROOT / "exporters"), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen([*command, "--node", "checked"], env=os.environ | {"PYTHONPATH": path})

    def read() -> str:
        if process.poll() is not None:
            raise CannotCheckError(f"the exporter ended with status {process.returncode}; its log is above")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    try:
        yield read
    finally:
        process.terminate()
        process.wait(30)


def wait_until_measured(read: Callable[[], str], uuid: str) -> None:
    """Until the exporter has measured the GPU twice."""
    deadline, text = time.monotonic() + START_SECONDS, ""
    while time.monotonic() < deadline:
        text = read()
        state = state_of(text, uuid)
        if state not in (None, "measured"):
            raise CannotCheckError(f"the exporter says that {uuid} is in state {state}: it has nothing to compare")
        if reported(text, "dram_active_ratio", uuid) is not None:
            return
        time.sleep(0.5)
    raise CannotCheckError(f"the exporter measured nothing of {uuid} in {START_SECONDS:.0f} s:\n{text}")


def compare(torch: Any, pynvml: Any, read: Callable[[], str], uuid: str) -> list[Comparison]:
    """Run each load and compare."""
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    # Two transfers a clock over the width of the bus.
    clock_hertz = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM) * 1e6
    peak = 2 * clock_hertz * pynvml.nvmlDeviceGetMemoryBusWidth(handle) / 8
    properties = torch.cuda.get_device_properties(0)
    print(f"{properties.name}, {uuid}: peak {peak / 1e12:.2f} TB/s by memory clock and bus width")

    def ratio(name: str) -> float | None:
        return reported(read(), name, uuid)

    def copies(share: float) -> tuple[float, float | None]:
        points = run_load(Copies(torch, "cuda:0").step, torch.cuda.synchronize, LOAD_SECONDS, share=share)
        return last_rate(points, WINDOW_SECONDS) / peak, ratio("dram_active_ratio")

    time.sleep(LOAD_SECONDS)
    found = [
        Comparison("idle", "DRAM active", 0.0, ratio("dram_active_ratio"), IDLE_DRAM),
        Comparison("idle", "tensor active", 0.0, ratio("tensor_active_ratio"), IDLE_TENSOR),
    ]
    for name, share in (("copies", 1.0), ("copies half of the time", 0.5)):
        found.append(Comparison(name, "DRAM active", *copies(share), BANDWIDTH_TOLERANCE))
    clocks: list[float] = []
    products = Products(torch, "cuda:0")

    def step() -> float:
        clocks.append(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM) * 1e6)
        return products.step()

    points = run_load(step, torch.cuda.synchronize, LOAD_SECONDS)
    tensor, flops = ratio("tensor_active_ratio"), last_rate(points, WINDOW_SECONDS)
    per_clock = FLOPS_PER_CLOCK_PER_SM.get((properties.major, properties.minor))
    if per_clock is None:
        print(
            f"Tensor activity is not judged: the FLOPs per clock of {properties.name} are not known here ({tensor=})."
        )
        return found
    # A GPU at its power limit runs below its boost clock; activity is a share of the clocks that there were.
    late = clocks[len(clocks) // 3 :]
    most = properties.multi_processor_count * per_clock * sum(late) / len(late)
    print(f"matrix products: {flops / 1e12:.0f} TFLOPS at {sum(late) / len(late) / 1e6:.0f} MHz")
    found.append(Comparison("matrix products", "tensor active", flops / most, tensor, TENSOR_TOLERANCE))
    return found


def check() -> list[Comparison]:
    """Everything; raises CannotCheckError."""
    torch = need("torch", "name a Python with torch for CUDA: make check-gpu PYTHON=/path/to/python")
    if not torch.cuda.is_available():
        raise CannotCheckError("torch sees no GPU here: run this on a machine with an NVIDIA GPU, Hopper or later")
    packages = "pip install prometheus-client grpcio nvidia-ml-py protobuf"
    pynvml = need("pynvml", packages)
    for name in ("prometheus_client", "grpc", "google.protobuf"):
        need(name, packages)
    uuid = getattr(torch.cuda.get_device_properties(0), "uuid", None)
    if uuid is None:
        raise CannotCheckError(f"torch {torch.__version__} does not say a GPU's UUID; it needs 2.5 or later")
    uuid = f"GPU-{uuid}".replace("GPU-GPU-", "GPU-")
    pynvml.nvmlInit()
    with exporter() as read:
        wait_until_measured(read, uuid)
        return compare(torch, pynvml, read, uuid)


def main() -> int:
    """Check, print, and say how it went."""
    try:
        comparisons = check()
    except CannotCheckError as error:
        print(f"check-gpu: {error}", file=sys.stderr)
        return 2
    print(table(comparisons))
    wrong = [each for each in comparisons if not each.agrees]
    print(f"{len(wrong)} of {len(comparisons)} differ." if wrong else "All agree.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
