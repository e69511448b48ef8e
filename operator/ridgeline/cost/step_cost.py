"""Seconds of one engine step, from its work on the roofline and the efficiencies that engines reach.

    step      = step overhead + sequence overhead · samples + max(layers, launches) + attention
    layers    = max(bytes / bandwidth, GEMM FLOPs / peak) + L · (layer overhead + 2 all-reduces)
    attention = max((pairs + ramp · tokens) · FLOPs / peak, cached bytes / bandwidth)   of the prompt chunks
              + max(FLOPs / peak, bytes / bandwidth) · KV tokens                        of the decodes

over L layers, with each peak times its efficiency (`efficiency.py`) and all work over the engine's GPUs together.
Weights stream while the tensor cores work, hence the maxima; kernels, collectives and the engine's own work follow one
another, hence the sums. An all-reduce holds the step's tokens at 16 bit. The KV tokens of decodes enter in one linear
term, so that a run of steps has a closed form.

Not modelled: tiles (a chunk of 257 tokens can take longer than the line through 256 and 512 says), sequences of very
different length in one batch, layers that see a window of the context (their tokens count in full), graph capture.
"""

from __future__ import annotations

from typing import Protocol

from ridgeline.cost.efficiency import Efficiency
from ridgeline.cost.hardware import efficiency_of
from ridgeline.cost.model_work import ModelWork
from ridgeline_exporters.roofline.bounds import Roof
from ridgeline_exporters.roofline.formats import SIXTEEN_BIT_BYTES
from ridgeline_exporters.roofline.hardware import Accelerator
from ridgeline_exporters.roofline.model import ModelShape

ALL_REDUCES_PER_LAYER = 2
"""After the attention's output projection and after the feed-forward block (arXiv:1909.08053, section 3)."""


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
            samples: Positions sampled: the decodes, and the prompts that end in this step.
        """
        ...

    def decode_run(self, sequences: int) -> tuple[float, float]:
        """A step that decodes so many sequences takes `first + second x (KV tokens in all their contexts)` seconds."""
        ...


class EngineCost:
    """Steps of one engine.

    Args:
        shape: The model; the formats of weights and KV cache are the shape's.
        accelerator: One of the engine's GPUs.
        tensor_parallel: How many of them there are.
        efficiency: What they reach; by default what is known of the accelerator (`hardware.efficiency_of`).
    """

    __slots__ = (
        "_all_reduce",
        "_decode_kv_seconds",
        "_gemm_bytes_per_second",
        "_gemm_flops_per_second",
        "_kv_seconds",
        "_pair_seconds",
        "_runs",
        "_work",
        "efficiency",
    )

    def __init__(
        self,
        shape: ModelShape,
        accelerator: Accelerator,
        tensor_parallel: int = 1,
        efficiency: Efficiency | None = None,
    ) -> None:
        reached = efficiency_of(accelerator) if efficiency is None else efficiency
        work = ModelWork.of(shape, tensor_parallel)
        roof = Roof.of(accelerator, tensor_parallel, shape.weights.name)
        bandwidth = roof.memory_bytes_per_second
        sixteen_bit = tensor_parallel * accelerator.bf16_flops
        fp8 = roof.flops_per_second > sixteen_bit
        narrow = shape.weights.bytes_per_weight <= 1.0
        self.efficiency = reached
        self._work = work
        self._gemm_flops_per_second = roof.flops_per_second * (
            reached.gemm_compute_fp8 if fp8 else reached.gemm_compute
        )
        self._gemm_bytes_per_second = bandwidth * (
            reached.weight_bandwidth_narrow if narrow else reached.weight_bandwidth
        )
        self._pair_seconds = work.attention_flops_per_pair / (sixteen_bit * reached.attention_compute)
        self._kv_seconds = work.kv_bytes_per_token / (bandwidth * reached.kv_bandwidth)
        self._decode_kv_seconds = max(self._kv_seconds, self._pair_seconds)
        self._all_reduce = reached.all_reduce.among(tensor_parallel) if tensor_parallel > 1 else None
        self._runs: dict[int, tuple[float, float]] = {}

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
        tokens = prefill_tokens + decode_sequences
        if tokens <= 0:
            return 0.0
        if tokens == samples == decode_sequences:
            first, second = self.decode_run(decode_sequences)
            return first + second * decode_kv_tokens
        pairs = prefill_pairs + self.efficiency.attention_ramp_keys * prefill_tokens
        prompts = max(pairs * self._pair_seconds, prefill_kv_tokens * self._kv_seconds)
        return self._without_attention(tokens, samples) + prompts + self._decode_kv_seconds * decode_kv_tokens

    def decode_run(self, sequences: int) -> tuple[float, float]:
        """Seconds of a step that decodes so many sequences, as (first, per KV token), see `StepCost`."""
        run = self._runs.get(sequences)
        if run is None:
            first = self._without_attention(sequences, sequences) if sequences > 0 else 0.0
            run = self._runs[sequences] = (first, self._decode_kv_seconds)
        return run

    def _without_attention(self, tokens: int, samples: int) -> float:
        work, reached = self._work, self.efficiency
        flops = tokens * work.gemm_flops_per_token + samples * work.gemm_flops_per_sample
        moved = work.weight_bytes + tokens * work.gemm_bytes_per_token + samples * work.gemm_bytes_per_sample
        layer = reached.layer_seconds
        if self._all_reduce is not None:
            layer += ALL_REDUCES_PER_LAYER * self._all_reduce.at(tokens * work.hidden * SIXTEEN_BIT_BYTES)
        gemms = max(flops / self._gemm_flops_per_second, moved / self._gemm_bytes_per_second)
        layers = max(gemms + work.layers * layer, work.layers * reached.launch_seconds)
        return reached.step_seconds + samples * reached.sequence_seconds + layers
