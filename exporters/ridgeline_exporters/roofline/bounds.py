"""Time bounds: how long a step takes at least on given peaks, and what limits it.

    seconds >= max(FLOPs / peak FLOP/s, bytes / peak bytes/s)

Ridge = peak FLOP/s / peak bytes/s: left of it (fewer FLOP/byte) memory limits, right of it compute does. The bound
leaves out launch overhead, all-reduces and the efficiency of kernels: a real H100 step takes 1.2 to 2 times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ridgeline_exporters.roofline.hardware import Accelerator
from ridgeline_exporters.roofline.model import ModelShape
from ridgeline_exporters.roofline.work import PhaseWork

Limit = Literal["compute", "memory"]


@dataclass(frozen=True, slots=True)
class Roof:
    """Peaks of one engine: all its GPUs together."""

    flops_per_second: float
    memory_bytes_per_second: float

    @classmethod
    def of(cls, accelerator: Accelerator, gpus: int = 1, activations: str = "bf16") -> Roof:
        """The roof over so many GPUs, with the tensor cores' peak for activations in this format.

        Take the format of most weights (`ModelShape.weights.activations`): layers left in 16 bit are slower, which
        keeps the bound a lower one.
        """
        return cls(gpus * accelerator.peak_flops(activations), gpus * accelerator.memory_bytes_per_second)

    @property
    def ridge(self) -> float:
        """FLOP/byte at which memory and compute take equally long."""
        return self.flops_per_second / self.memory_bytes_per_second

    def bound(self, work: PhaseWork) -> Bound:
        """The least time of this work, and what sets it."""
        return Bound(work.flops / self.flops_per_second, work.memory_bytes / self.memory_bytes_per_second)


@dataclass(frozen=True, slots=True)
class Bound:
    """Least seconds of some work on a roof."""

    compute_seconds: float
    memory_seconds: float

    @property
    def seconds(self) -> float:
        """The longer of the two: they overlap at best."""
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def limit(self) -> Limit:
        """What the work waits for."""
        return "compute" if self.compute_seconds > self.memory_seconds else "memory"


def step_seconds(work: PhaseWork, accelerator: Accelerator, gpus: int = 1, activations: str = "bf16") -> float:
    """Least seconds of this work on an engine of so many GPUs."""
    return Roof.of(accelerator, gpus, activations).bound(work).seconds


def decode_batch_at_ridge(shape: ModelShape, ridge: float) -> int:
    """Decode batch up to which streaming the weights takes longer than computing with them.

    Attention and activations are left out: reading caches never gets near the ridge with grouped or plain attention,
    so with long contexts decode stays memory-bound at every batch. With experts a larger batch reads more weights too,
    until all are hit.
    """
    flops = shape.decode.flops_per_token + shape.lm_head_flops
    low, high = 0, 1 + int(ridge * shape.step_weight_bytes(0.0, float("inf")) / flops)
    while high - low > 1:
        batch = (low + high) // 2
        if batch * flops <= ridge * shape.step_weight_bytes(0.0, batch):
            low = batch
        else:
            high = batch
    return low
