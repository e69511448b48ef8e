"""Seconds of one engine step, from its work on the roofline and the efficiencies that engines reach.

    step      = step overhead + sequence overhead · samples + max(layers, launches) + attention
    layers    = max(weight bytes / bandwidth, linear FLOPs / peak) + layer overhead · L + 2 L all-reduces
    attention = max(pairs · FLOPs / peak, cached bytes / bandwidth) of the prompts  +  the same of the decodes

with each peak times its efficiency (`efficiency.py`) and all work over the engine's GPUs together. Weights stream
while the tensor cores work, hence the maxima; kernels, collectives and the engine's own work follow one another, hence
the sums. The KV tokens of decodes enter in one linear term, so that a run of steps has a closed form.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from ridgeline.cost.efficiency import H100, Efficiency
from ridgeline_exporters.roofline.bounds import Roof
from ridgeline_exporters.roofline.formats import SIXTEEN_BIT_BYTES
from ridgeline_exporters.roofline.hardware import Accelerator
from ridgeline_exporters.roofline.model import ModelShape
from ridgeline_exporters.roofline.work import phase_work


class StepCost(Protocol):
    """Seconds of one step of one engine."""

    def seconds(
        self,
        prefill_tokens: int,
        prefill_pairs: int,
        prefill_kv_tokens: int,
        decode_sequences: int,
        decode_kv_tokens: int,
        samples: int,
    ) -> float:
        """Seconds of a step; 0 for one without tokens.

        Args:
            prefill_tokens: New tokens of the prompt chunks.
            prefill_pairs: Their attended (query, key) pairs.
            prefill_kv_tokens: Cached tokens that the chunks read.
            decode_sequences: Sequences that decode, one token each.
            decode_kv_tokens: Tokens in the contexts of all of them.
            samples: Positions sampled: the decodes and the prompts that end in this step.
        """
        ...

    def decode_run(self, sequences: int) -> tuple[float, float]:
        """A step that decodes so many sequences takes `first + second x (KV tokens in all their contexts)` seconds."""
        ...


@dataclass(frozen=True, slots=True)
class EngineCost:
    """Steps of one engine; the formats of weights and KV cache are those of the shape."""

    shape: ModelShape
    accelerator: Accelerator
    tensor_parallel: int = 1
    efficiency: Efficiency = H100

    _gemm_flops_per_second: float = field(init=False)
    _weight_bytes_per_second: float = field(init=False)
    _pair_seconds: float = field(init=False)
    _kv_token_seconds: float = field(init=False)
    _runs: dict[int, tuple[float, float]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        shape, reached, gpus = self.shape, self.efficiency, self.tensor_parallel
        roof = Roof.of(self.accelerator, gpus, shape.weights.name)
        sixteen_bit = gpus * self.accelerator.bf16_flops
        fp8 = roof.flops_per_second > sixteen_bit
        kv_bandwidth = roof.memory_bytes_per_second * reached.kv_bandwidth
        copies = max(1.0, gpus / shape.kv_heads)  # with fewer KV heads than GPUs, several hold the same head
        pair = phase_work(shape, 0, 1, 0, 0, 0.0).flops / (sixteen_bit * reached.attention_compute)
        kv_token = copies * phase_work(shape, 0, 0, 1, 0, 0.0).kv_read_bytes / kv_bandwidth
        values = {
            "_gemm_flops_per_second": roof.flops_per_second
            * (reached.gemm_compute_fp8 if fp8 else reached.gemm_compute),
            "_weight_bytes_per_second": roof.memory_bytes_per_second * reached.weight_bandwidth,
            "_pair_seconds": pair,
            "_kv_token_seconds": kv_token,
            "_runs": {},
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)  # the way of a frozen dataclass to set its derived fields

    def seconds(
        self,
        prefill_tokens: int,
        prefill_pairs: int,
        prefill_kv_tokens: int,
        decode_sequences: int,
        decode_kv_tokens: int,
        samples: int,
    ) -> float:
        """Seconds of a step, see `StepCost`."""
        if prefill_tokens <= 0:
            if samples == decode_sequences:
                first, second = self.decode_run(decode_sequences)
                return first + second * decode_kv_tokens
            if decode_sequences <= 0:
                return 0.0
        ramp = prefill_tokens * self.efficiency.attention_ramp_keys
        prompts = max((prefill_pairs + ramp) * self._pair_seconds, prefill_kv_tokens * self._kv_token_seconds)
        decodes = decode_kv_tokens * max(self._kv_token_seconds, self._pair_seconds)
        return self._without_attention(prefill_tokens + decode_sequences, samples) + prompts + decodes

    def decode_run(self, sequences: int) -> tuple[float, float]:
        """Seconds of a decode step as (first, per KV token), see `StepCost`."""
        run = self._runs.get(sequences)
        if run is None:
            first = self._without_attention(sequences, sequences) if sequences > 0 else 0.0
            run = self._runs[sequences] = (first, max(self._kv_token_seconds, self._pair_seconds))
        return run

    def _without_attention(self, tokens: int, samples: int) -> float:
        shape, reached = self.shape, self.efficiency
        work = phase_work(shape, tokens, 0, 0, samples, 1.0)
        gemms = max(work.flops / self._gemm_flops_per_second, work.memory_bytes / self._weight_bytes_per_second)
        message = tokens * shape.hidden * SIXTEEN_BIT_BYTES
        layer = reached.layer_seconds + 2 * reached.all_reduce.seconds_of(self.tensor_parallel, message)
        layers = max(gemms + shape.layers * layer, shape.layers * reached.launch_seconds)
        return reached.step_seconds + samples * reached.sequence_seconds + layers
