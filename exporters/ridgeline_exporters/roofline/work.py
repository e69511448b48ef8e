"""Work of one engine step, per phase: FLOPs, and bytes of weights, KV cache and activations.

A request with P tokens in its cache that gets n new ones attends sum over i = 1..n of (P + i) = n P + n (n + 1) / 2
pairs: causal attention counted exactly, so a prompt costs the same FLOPs however it is cut into chunks (but for MLA,
which up-projects the cached latent again in each). It reads the cached tokens again in every chunk (P for a prompt
chunk, whose own keys the kernel has just made; P + n for a decode, which reads its own from the cache) and writes n.
In layers with a window only what lies inside counts, see `windows`.

Every step streams its weights once, the LM head too: vLLM takes the logits of every request's last position, an
unfinished prompt's as well. In a mixed step both phases share the weight bytes of all its tokens by their tokens, so
that phases add up to the step; of experts the step reads those that its tokens hit (`feed_forward.MixtureOfExperts`). LM head
FLOPs count for positions whose token is used.

The state of linear attention is read and written once a step and sequence, and counts as KV.

Activations: inputs and outputs of the GEMMs at 16 bit, once each. Fused kernels move less, norms and the residual sum a
little more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ridgeline_exporters.roofline.model import ModelShape
from ridgeline_exporters.roofline.windows import PhaseSums

Phase = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Sequence:
    """One request's part of a step."""

    scheduled: int
    """New tokens that this step computes."""
    context: int
    """Tokens in its KV cache after this step."""
    samples: bool = True
    """Whether the step yields a token of it: false for a prompt chunk that is not the last."""

    @property
    def cached(self) -> int:
        """Tokens in its KV cache before this step."""
        return self.context - self.scheduled


@dataclass(frozen=True, slots=True)
class PhaseWork:
    """What one phase computes and moves, over all GPUs of an engine."""

    flops: float
    weight_bytes: float
    kv_read_bytes: float
    kv_write_bytes: float
    activation_bytes: float
    tokens: int

    @property
    def memory_bytes(self) -> float:
        """All bytes to and from memory."""
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes + self.activation_bytes

    @property
    def intensity(self) -> float:
        """FLOP/byte; 0 for a phase without work."""
        moved = self.memory_bytes
        return self.flops / moved if moved else 0.0

    def __add__(self, other: PhaseWork) -> PhaseWork:
        return PhaseWork(
            self.flops + other.flops,
            self.weight_bytes + other.weight_bytes,
            self.kv_read_bytes + other.kv_read_bytes,
            self.kv_write_bytes + other.kv_write_bytes,
            self.activation_bytes + other.activation_bytes,
            self.tokens + other.tokens,
        )


NO_WORK = PhaseWork(0.0, 0.0, 0.0, 0.0, 0.0, 0)


def phase_work(
    shape: ModelShape, phase: Phase, sums: PhaseSums, step_tokens: int, weight_scale: float = 1.0
) -> PhaseWork:
    """Work of one phase from its sums over requests: the cheap path for every step of an engine.

    Args:
        shape: The model.
        phase: Which of the two.
        sums: Of its requests, made with `shape.windows`.
        step_tokens: New tokens of the whole step, of both phases.
        weight_scale: Bytes of the weights as they were loaded, by those of the shape.
    """
    tokens = sums.tokens
    if not tokens:
        return NO_WORK
    cost = shape.prefill if phase == "prefill" else shape.decode
    flops = (
        tokens * cost.flops_per_token
        + sums.attended_pairs * cost.flops_per_pair
        + sums.kv_tokens * cost.flops_per_kv_token
        + sums.sampled * shape.lm_head_flops
    )
    state = sums.sequences * shape.state_bytes_per_sequence
    kv_read = sums.kv_tokens * shape.full_kv_bytes_per_token + state
    for i, kv_bytes in enumerate(shape.window_kv_bytes_per_token):
        flops += sums.window_pairs[i] * cost.flops_per_window_pair[i]
        kv_read += sums.window_kv_tokens[i] * kv_bytes
    shared = shape.fixed_weight_bytes + shape.expert_bytes(step_tokens)
    return PhaseWork(
        flops,
        weight_scale * (tokens / step_tokens * shared + cost.weight_bytes),
        kv_read,
        tokens * shape.kv_bytes_per_token + state,
        tokens * cost.activation_bytes_per_token
        + sums.kv_tokens * cost.activation_bytes_per_kv_token
        + sums.sampled * shape.activation_bytes_per_sample,
        tokens,
    )


def step_work(
    shape: ModelShape, prefills: Iterable[Sequence], decodes: Iterable[Sequence]
) -> tuple[PhaseWork, PhaseWork]:
    """Work of a step as (prefill, decode).

    A prompt chunk that samples puts one position through the LM head, a decode all that it computes (more than one
    with speculative decoding).
    """
    prefill, decode = PhaseSums(shape.windows), PhaseSums(shape.windows)
    for prompt in prefills:
        prefill.add_prefill(prompt.cached, prompt.scheduled, int(prompt.samples))
    for sequence in decodes:
        decode.add_decode(sequence.cached, sequence.scheduled, sequence.scheduled if sequence.samples else 0)
    total = prefill.tokens + decode.tokens
    return phase_work(shape, "prefill", prefill, total), phase_work(shape, "decode", decode, total)
