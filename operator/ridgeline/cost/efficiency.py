"""What kernels, collectives and the engine around them reach of an accelerator's peaks.

Each value stands for one thing that can be measured alone. GEMMs get no table by token count and shard size: with a
fixed time per layer beside a share of the bandwidth and a share of the peak FLOP/s, both follow, for small shards and
few tokens spend most of their time in the fixed part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MICRO = 1e-6
KIBI = 1024.0
MEBI = KIBI * KIBI


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Seconds of one all-reduce by its size, measured at a few sizes and linear between them."""

    message_bytes: tuple[float, ...]
    seconds: Mapping[int, tuple[float, ...]]
    """By number of GPUs, one value for each size."""

    def seconds_of(self, gpus: int, message_bytes: float) -> float:
        """Seconds of one all-reduce among `gpus` GPUs; of a number between two measured ones, those of the larger."""
        if gpus <= 1 or message_bytes <= 0.0:
            return 0.0
        measured = self.seconds[next((known for known in sorted(self.seconds) if known >= gpus), max(self.seconds))]
        sizes = self.message_bytes
        if message_bytes <= sizes[0]:
            return measured[0]
        last = len(sizes) - 1
        at = next((index for index in range(1, last) if message_bytes <= sizes[index]), last)
        slope = (measured[at] - measured[at - 1]) / (sizes[at] - sizes[at - 1])
        return measured[at - 1] + (message_bytes - sizes[at - 1]) * slope


@dataclass(frozen=True, slots=True)
class Efficiency:
    """What an engine reaches of its GPUs' peaks, and the time that no peak explains."""

    gemm_compute: float
    """Share of the peak FLOP/s in large GEMMs with 16-bit inputs, 0 to 1."""
    gemm_compute_fp8: float
    """The same of the FP8 peak."""
    weight_bandwidth: float
    """Share of the peak bandwidth while weights stream."""
    attention_compute: float
    """Share of the 16-bit peak FLOP/s in attention over a long prompt."""
    attention_ramp_keys: float
    """Keys beyond those attended that a prompt token costs: short rows do not fill the tensor cores."""
    kv_bandwidth: float
    """Share of the peak bandwidth while decodes read the cache."""
    layer_seconds: float
    """What each layer takes beside its bytes and FLOPs: starts and ends of its kernels, norms, rotary embedding."""
    step_seconds: float
    """What each step takes: scheduling, input preparation, sampling."""
    sequence_seconds: float
    """What each sampled position adds to a step."""
    all_reduce: AllReduce
    launch_seconds: float = 0.0
    """Seconds of the host to launch one layer: a step is never shorter than this, times its layers. Zero with CUDA
    graphs."""


NVLINK_4 = AllReduce(
    (16 * KIBI, 256 * KIBI, MEBI, 8 * MEBI, 64 * MEBI),
    {
        2: (4.4 * MICRO, 6.3 * MICRO, 12.4 * MICRO, 81 * MICRO, 469 * MICRO),
        4: (4.9 * MICRO, 11.4 * MICRO, 18.6 * MICRO, 99 * MICRO, 619 * MICRO),
        8: (5.6 * MICRO, 12.0 * MICRO, 19.4 * MICRO, 92 * MICRO, 577 * MICRO),
    },
)
"""H100 SXM, vLLM's custom all-reduce in graph mode, from the tables of ai-dynamo/aiconfigurator (Apache-2.0)."""

H100 = Efficiency(
    gemm_compute=0.82,
    gemm_compute_fp8=0.60,
    weight_bandwidth=0.90,
    attention_compute=0.71,
    attention_ramp_keys=750.0,
    kv_bandwidth=0.93,
    layer_seconds=32 * MICRO,
    step_seconds=126 * MICRO,
    sequence_seconds=4.4 * MICRO,
    all_reduce=NVLINK_4,
)
