"""What kernels, collectives and the engine around them reach of an accelerator's peaks.

Each value stands for one thing that can be measured alone. GEMMs get no table by token count and shard size: with a
share of the peak FLOP/s, a share of the bandwidth and a fixed time per layer, both follow, for small shards and few
tokens spend most of their time in the fixed part.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, fields

MICRO = 1e-6
KIBI = 1024.0
MEBI = KIBI * KIBI


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds by size, linear between the sizes that were measured and beyond the last; flat below the first."""

    sizes: tuple[float, ...]
    seconds: tuple[float, ...]

    def at(self, size: float) -> float:
        """Seconds for this size."""
        sizes, seconds = self.sizes, self.seconds
        if size <= sizes[0]:
            return seconds[0]
        end = bisect_left(sizes, size, 1, len(sizes) - 1)
        slope = (seconds[end] - seconds[end - 1]) / (sizes[end] - sizes[end - 1])
        return seconds[end - 1] + (size - sizes[end - 1]) * slope


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Seconds of one all-reduce by the bytes that each GPU holds."""

    by_gpus: Mapping[int, Curve]

    def among(self, gpus: int) -> Curve:
        """The curve for so many GPUs: of the next larger number that was measured, beyond all of the largest."""
        return self.by_gpus[min((known for known in self.by_gpus if known >= gpus), default=max(self.by_gpus))]

    def slower_link(self, ratio: float) -> AllReduce:
        """The same over a link that takes `ratio` times as long for a byte; the latency of starting stays."""
        return AllReduce(
            {
                gpus: Curve(
                    curve.sizes, tuple(curve.seconds[0] + ratio * (s - curve.seconds[0]) for s in curve.seconds)
                )
                for gpus, curve in self.by_gpus.items()
            }
        )

    @classmethod
    def ring(cls, bytes_per_second: float, latency_seconds: float) -> AllReduce:
        """A ring: each GPU sends and receives 2 (n - 1) / n of its bytes."""
        sizes = (0.0, MEBI)
        return cls(
            {
                gpus: Curve(
                    sizes, tuple(latency_seconds + 2 * (gpus - 1) / gpus * size / bytes_per_second for size in sizes)
                )
                for gpus in (2, 4, 8)
            }
        )


@dataclass(frozen=True, slots=True)
class Efficiency:
    """What an engine reaches of its GPUs' peaks (shares, above 0 and at most 1), and the time that no peak explains."""

    source: str
    """What was measured, and what is carried over from another accelerator."""
    gemm_compute: float
    """Of the 16-bit peak FLOP/s, in GEMMs of many tokens."""
    gemm_compute_fp8: float
    """Of the FP8 peak."""
    weight_bandwidth: float
    """Of the memory bandwidth, while 16-bit weights stream through a GEMM of few tokens."""
    weight_bandwidth_narrow: float
    """The same for weights of a byte or less: the fixed parts of a kernel weigh twice as much."""
    expert_bandwidth: float
    """The same for routed experts, of the bytes that uniform routing would read."""
    attention_compute: float
    """Of the 16-bit peak, in attention over a long prompt."""
    attention_ramp_keys: float
    """Keys beyond those attended that a prompt token costs: short rows do not fill the tensor cores."""
    kv_bandwidth: float
    """Of the memory bandwidth, while decodes read the cache."""
    layer_seconds: float
    """What each layer takes beside its bytes and FLOPs: start and end of its kernels, norms, rotary embedding."""
    expert_layer_seconds: float
    """What a layer with routed experts takes beyond that: routing, sorting tokens by expert, summing up."""
    step_seconds: float
    """What each step takes: scheduling, preparing inputs, sampling."""
    sequence_seconds: float
    """What each sampled position adds to a step."""
    all_reduce: AllReduce
    launch_seconds: float = 0.0
    """Host time to launch one layer: a step is never shorter than this times its layers. None with CUDA graphs."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            share = field.name.startswith(("gemm_", "weight_", "expert_", "kv_")) or field.name == "attention_compute"
            if share and not 0.0 < value <= 1.0:
                raise ValueError(f"{field.name} is {value}; give a share of the peak, above 0 and at most 1")
            if isinstance(value, float) and value < 0.0:
                raise ValueError(f"{field.name} is {value}; give a number that is not negative")
