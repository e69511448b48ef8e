"""Seconds of one engine step, from its work on the roofline and the efficiencies that engines reach.

    step      = step overhead + sequence overhead · samples + max(layers, launches) + attention
    layers    = max(bytes / bandwidth, GEMM FLOPs / peak) + L · (layer overhead + 2 all-reduces)
    attention = max((pairs + ramp · tokens) · FLOPs / peak, cached bytes / bandwidth)   of the prompt chunks
              + max(FLOPs / peak, bytes / bandwidth) · KV tokens                        of the decodes

over L layers, with each peak times its efficiency (`efficiency.py`) and all work over the engine's GPUs together.
Weights stream while the tensor cores work, hence the maxima; kernels, collectives and the engine's own work follow one
another, hence the sums. An all-reduce holds the step's tokens at 16 bit. The KV tokens of decodes enter in one linear
term, so that a run of steps has a closed form.

Routed experts stream at a share of the bandwidth of their own, those that the step's tokens hit. With pipeline
parallelism the stages of a step follow one another: its seconds are the step's latency, while several are in flight.

Not modelled: tiles (a chunk of 257 tokens can take longer than the line through 256 and 512 says), sequences of very
different length in one batch, graph capture, all-to-all of whole experts between GPUs.
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
        shape: The model on the engine's GPUs; parallelism and formats of weights and KV cache are the shape's.
        accelerator: One of the GPUs.
        efficiency: What they reach; by default what is known of the accelerator (`hardware.efficiency_of`).
    """

    __slots__ = (
        "_all_reduce",
        "_attention_ramp_keys",
        "_decode_kv_seconds",
        "_decode_window_seconds",
        "_expert_bytes_per_second",
        "_expert_seconds",
        "_experts",
        "_gemm_bytes",
        "_gemm_flops",
        "_kv_seconds",
        "_overheads",
        "_pair_seconds",
        "_runs",
        "_windows",
        "_work",
        "efficiency",
    )

    def __init__(self, shape: ModelShape, accelerator: Accelerator, efficiency: Efficiency | None = None) -> None:
        reached = efficiency_of(accelerator) if efficiency is None else efficiency
        work = ModelWork.of(shape)
        gpus, activations = shape.parallelism.tensor, shape.weights.activations
        roof = Roof.of(accelerator, gpus, activations)
        sixteen_bit = gpus * accelerator.bf16_flops
        narrow = shape.weights.bits <= 8
        self.efficiency = reached
        self._work = work
        bandwidth = roof.memory_bytes_per_second
        compute = reached.gemm_compute_fp8 if roof.flops_per_second > sixteen_bit else reached.gemm_compute
        streaming = reached.weight_bandwidth_narrow if narrow else reached.weight_bandwidth
        # What every step takes, in the order in which `_without_contexts` takes it apart.
        self._gemm_flops = (
            *work.gemm_flops_per_token,
            work.gemm_flops_per_cached_token,
            work.gemm_flops_per_sample,
            roof.flops_per_second * compute,
        )
        self._gemm_bytes = (
            *work.fixed_weight_bytes,
            work.gemm_bytes_per_token,
            work.gemm_bytes_per_sample,
            bandwidth * streaming,
        )
        self._overheads = (
            reached.step_seconds,
            reached.sequence_seconds,
            reached.layer_seconds,
            work.layers,
            work.layers * reached.launch_seconds,
            work.hidden * SIXTEEN_BIT_BYTES,
        )
        self._experts = bool(shape.experts)
        self._expert_seconds = work.expert_layers * reached.expert_layer_seconds
        self._expert_bytes_per_second = bandwidth * reached.expert_bandwidth
        attention, kv_bandwidth = sixteen_bit * reached.attention_compute, bandwidth * reached.kv_bandwidth
        self._attention_ramp_keys = reached.attention_ramp_keys
        self._pair_seconds = work.pair_flops / attention
        self._windows = tuple((window, flops / attention, size / kv_bandwidth) for window, flops, size in work.windows)
        self._kv_seconds = work.kv_bytes_per_token / kv_bandwidth
        self._decode_kv_seconds = max(self._kv_seconds, work.decode_pair_flops / attention)
        self._decode_window_seconds = max(work.decode_window_bytes / kv_bandwidth, work.decode_window_flops / attention)
        self._all_reduce = reached.all_reduce.among(gpus) if gpus > 1 else None
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
        ramp = self._attention_ramp_keys * prefill_tokens
        scores, reads = (prefill_pairs + ramp) * self._pair_seconds, prefill_kv_tokens * self._kv_seconds
        for window, pair_seconds, kv_seconds in self._windows:
            seen = window * prefill_tokens
            scores += (min(prefill_pairs, seen) + ramp) * pair_seconds
            reads += min(prefill_kv_tokens, seen) * kv_seconds
        return (
            self._without_contexts(prefill_tokens, prefill_kv_tokens, decode_sequences, samples)
            + (scores if scores > reads else reads)
            + self._decode_kv_seconds * decode_kv_tokens
        )

    def decode_run(self, sequences: int) -> tuple[float, float]:
        """Seconds of a step that decodes so many sequences, as (first, per KV token), see `StepCost`."""
        run = self._runs.get(sequences)
        if run is None:
            first = self._without_contexts(0, 0, sequences, sequences) if sequences > 0 else 0.0
            run = self._runs[sequences] = (first, self._decode_kv_seconds)
        return run

    def _without_contexts(self, prompts: int, cached: int, decodes: int, samples: int) -> float:
        """What a step takes but for attention over contexts."""
        prompt_flops, decode_flops, cached_flops, sample_flops, gemm_flops_per_second = self._gemm_flops
        weights, more_for_prompts, more_for_decodes, per_token, per_sample, bytes_per_second = self._gemm_bytes
        step, sample, layer, layers, launches, all_reduce_bytes = self._overheads
        tokens = prompts + decodes
        flops = prompts * prompt_flops + decodes * decode_flops + cached * cached_flops + samples * sample_flops
        moved = weights + tokens * per_token + samples * per_sample
        moved += (more_for_prompts if prompts else 0.0) + (more_for_decodes if decodes else 0.0)
        memory = moved / bytes_per_second
        if self._experts:
            memory += self._work.shape.expert_bytes(tokens) / self._expert_bytes_per_second
        if self._all_reduce is not None:
            layer += ALL_REDUCES_PER_LAYER * self._all_reduce.at(tokens * all_reduce_bytes)
        compute = flops / gemm_flops_per_second
        gemms = (compute if compute > memory else memory) + self._expert_seconds + layers * layer
        longer = gemms if gemms > launches else launches
        return step + samples * sample + longer + decodes * self._decode_window_seconds
