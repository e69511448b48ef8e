"""What each phase computes and moves on simulated engines, counted as the engine exporter counts it.

FLOPs and bytes are those of `ridgeline_exporters.roofline.work`, with the cost model's upper estimate for layers with a
window (`cost.model_work`): the sums of a step do not tell its contexts apart. A step with both phases shares its weight
bytes by tokens, and its time by the least time of each phase on the roof, as `ridgeline_exporters.engine.accounting`
does.

Both are done for every step, so they are written to be fast. Work is kept as least seconds on the roof, FLOPs / peak and
bytes / bandwidth, which the shares need; FLOPs and bytes follow from them. Runs of decodes alone need no shares and are
kept as the sums that their work is linear in.
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.cost.model_work import ModelWork
from ridgeline_exporters.roofline.bounds import Roof
from ridgeline_exporters.roofline.model import ModelShape


class PhaseCounters:
    """Time and work of both phases, over all engines."""

    __slots__ = (
        "decode_compute_seconds",
        "decode_memory_seconds",
        "prefill_alone_seconds",
        "prefill_compute_seconds",
        "prefill_memory_seconds",
        "prefill_shared_seconds",
        "run_expert_seconds",
        "run_kv_tokens",
        "run_steps",
        "run_tokens",
    )

    def __init__(self) -> None:
        self.prefill_alone_seconds = 0.0
        """Steps without decodes."""
        self.prefill_shared_seconds = 0.0
        """The part of prompts in steps that hold both phases."""
        self.prefill_compute_seconds = self.prefill_memory_seconds = 0.0
        """FLOPs / peak, and bytes / bandwidth."""
        self.decode_compute_seconds = self.decode_memory_seconds = 0.0
        """The same, without runs."""
        self.run_steps = self.run_tokens = self.run_kv_tokens = 0
        self.run_expert_seconds = 0.0
        """Least seconds to read the routed experts that runs hit."""

    def copy(self) -> PhaseCounters:
        """The counters as they are now."""
        twin = PhaseCounters.__new__(PhaseCounters)
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        return twin


@dataclass(frozen=True, slots=True)
class PhaseUse:
    """What one phase took in some time, over all engines."""

    busy_seconds: float
    flops: float
    memory_bytes: float


class PhaseWork:
    """Counts the work of steps, by phase.

    Args:
        shape: the model on the GPUs of one engine.
        roof: of one engine.
    """

    __slots__ = (
        "_cached",
        "_chunk",
        "_decode",
        "_expert_bytes",
        "_expert_seconds",
        "_plain",
        "_prefill",
        "_prompts",
        "_weights",
        "_windows",
        "roof",
    )

    def __init__(self, shape: ModelShape, roof: Roof) -> None:
        work = ModelWork.of(shape)
        peak, bandwidth = roof.flops_per_second, roof.memory_bytes_per_second
        prompt_flops, decode_flops = work.gemm_flops_per_token
        weights, more_for_prompts, more_for_decodes = work.fixed_weight_bytes
        states = 2.0 * shape.state_bytes_per_sequence  # of linear attention: read and written once a chunk
        self.roof = roof
        self._weights = weights / bandwidth
        self._prefill = (
            prompt_flops / peak,
            work.pair_flops / peak,
            work.gemm_flops_per_sample / peak,
            work.gemm_bytes_per_token / bandwidth,
            (work.kv_bytes_per_token + shape.prefill.activation_bytes_per_kv_token) / bandwidth,
            work.gemm_bytes_per_sample / bandwidth,
        )
        self._cached = work.gemm_flops_per_cached_token / peak
        self._chunk = states / bandwidth
        self._prompts = more_for_prompts / bandwidth
        self._decode = (
            (decode_flops + work.gemm_flops_per_sample + work.decode_window_flops) / peak,
            work.decode_pair_flops / peak,
            (work.gemm_bytes_per_token + work.gemm_bytes_per_sample + work.decode_window_bytes) / bandwidth,
            work.kv_bytes_per_token / bandwidth,
            more_for_decodes / bandwidth,
        )
        self._windows = tuple((window, flops / peak, size / bandwidth) for window, flops, size in work.windows)
        self._plain = not (self._cached or self._chunk or self._prompts or self._windows)
        """Most models are: nothing but full or long attention with plain caches."""
        self._expert_bytes = shape.expert_bytes if shape.experts else None
        self._expert_seconds: dict[int, float] = {}

    def add_step(
        self,
        counters: PhaseCounters,
        seconds: float,
        tokens: int,
        pairs: int,
        cached: int,
        samples: int,
        chunks: int,
        sequences: int,
        kv_tokens: int,
    ) -> None:
        """Count a step.

        Args:
            counters: what is counted in.
            seconds: that it takes.
            tokens: of prompts that it computes.
            pairs: that these attend to.
            cached: earlier tokens that the chunks of prompts read.
            samples: prompts that end in it.
            chunks: of prompts.
            sequences: that decode, a token each.
            kv_tokens: in their contexts.
        """
        weights = self._weights
        if self._expert_bytes is not None:
            weights += self._experts(tokens + sequences)
        least = 0.0
        if tokens:
            a, b, c, d, e, f = self._prefill
            own = weights * tokens / (tokens + sequences)
            compute = a * tokens + b * pairs + c * samples
            memory = own + d * tokens + e * cached + f * samples
            if not self._plain:
                compute += self._cached * cached
                memory += self._chunk * chunks + self._prompts
                for window, flops, size in self._windows:
                    seen = window * tokens
                    compute += flops * min(pairs, seen)
                    memory += size * min(cached, seen)
            counters.prefill_compute_seconds += compute
            counters.prefill_memory_seconds += memory
            if not sequences:
                counters.prefill_alone_seconds += seconds
                return
            weights -= own
            least = compute if compute > memory else memory
        a, b, c, d, e = self._decode
        compute = a * sequences + b * kv_tokens
        memory = weights + c * sequences + d * kv_tokens + e
        counters.decode_compute_seconds += compute
        counters.decode_memory_seconds += memory
        if least:
            counters.prefill_shared_seconds += seconds * least / (least + (compute if compute > memory else memory))

    def add_run(self, counters: PhaseCounters, steps: int, sequences: int, kv_tokens: int) -> None:
        """Count steps of decodes alone that follow one another: each brings one more KV token to each sequence.

        Args:
            counters: what is counted in.
            steps: how many.
            sequences: that decode.
            kv_tokens: in their contexts in the first step.
        """
        counters.run_steps += steps
        counters.run_tokens += steps * sequences
        counters.run_kv_tokens += steps * kv_tokens + sequences * (steps * (steps - 1) // 2)
        if self._expert_bytes is not None:
            counters.run_expert_seconds += steps * self._experts(sequences)

    def use(self, before: PhaseCounters, after: PhaseCounters, decode_seconds: float) -> tuple[PhaseUse, PhaseUse]:
        """What prefill and decode took between two looks at the counters.

        Args:
            before: the first look.
            after: the second.
            decode_seconds: time of steps that held decodes, between them.
        """

        def grown(name: str) -> float:
            return float(getattr(after, name) - getattr(before, name))

        a, b, c, d, e = self._decode
        steps, tokens, kv_tokens = grown("run_steps"), grown("run_tokens"), grown("run_kv_tokens")
        compute = grown("decode_compute_seconds") + a * tokens + b * kv_tokens
        memory = grown("decode_memory_seconds") + steps * (self._weights + e) + c * tokens + d * kv_tokens
        memory += grown("run_expert_seconds")
        shared = grown("prefill_shared_seconds")
        busy = grown("prefill_alone_seconds") + shared
        return (
            self._use(busy, grown("prefill_compute_seconds"), grown("prefill_memory_seconds")),
            self._use(decode_seconds - shared, compute, memory),
        )

    def _use(self, busy: float, compute: float, memory: float) -> PhaseUse:
        return PhaseUse(busy, compute * self.roof.flops_per_second, memory * self.roof.memory_bytes_per_second)

    def _experts(self, tokens: int) -> float:
        """Least seconds to read the routed experts that so many tokens hit."""
        found = self._expert_seconds.get(tokens)
        if found is None:
            assert self._expert_bytes is not None
            found = self._expert_seconds[tokens] = self._expert_bytes(tokens) / self.roof.memory_bytes_per_second
        return found
