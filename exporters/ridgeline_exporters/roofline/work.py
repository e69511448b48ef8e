"""Work of one engine step, per phase: FLOPs, and bytes of weights, KV cache and activations.

A request with P tokens in its cache that gets n new ones attends sum over i = 1..n of (P + i) = n P + n (n + 1) / 2
pairs: causal attention counted exactly, so a prompt costs the same FLOPs however it is cut into chunks. It reads the
cached tokens again in every chunk (P for a prompt chunk, whose own keys the kernel has just made; P + n for a decode,
which reads its own from the cache) and writes n.

Every step streams all weights once, the LM head too: vLLM takes the logits of every request's last position, an
unfinished prompt's as well. In a mixed step both phases share these bytes by their tokens, so that phases add up to
the step. LM head FLOPs count for positions whose token is used.

Activations: inputs and outputs of the GEMMs at 16 bit, once each (see `ModelShape`). Fused kernels move less, norms
and the residual sum a little more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ridgeline_exporters.roofline.model import ModelShape


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

    @property
    def attended_pairs(self) -> int:
        """Pairs of a new token and a token that it attends to, itself included."""
        return attended_pairs(self.scheduled, self.cached)


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


def attended_pairs(scheduled: int, cached: int) -> int:
    """Causal pairs of `scheduled` new tokens on `cached` earlier ones."""
    return scheduled * cached + scheduled * (scheduled + 1) // 2


def phase_work(
    shape: ModelShape, tokens: int, attended_pairs: int, kv_tokens_read: int, sampled: int, weight_share: float
) -> PhaseWork:
    """Work of one phase from its sums over requests: the cheap path for every step of an engine.

    Args:
        shape: The model.
        tokens: New tokens of the phase.
        attended_pairs: Sum of `attended_pairs` over its requests.
        kv_tokens_read: Sum of cached tokens (prompt chunks) or contexts (decodes) over its requests.
        sampled: Positions that go through the LM head.
        weight_share: Part of the step's weight bytes, 0 to 1: its tokens by the tokens of the step.
    """
    return PhaseWork(
        tokens * shape.linear_flops_per_token
        + attended_pairs * shape.attention_flops_per_pair
        + sampled * shape.lm_head_flops,
        weight_share * shape.weight_bytes,
        kv_tokens_read * shape.kv_bytes_per_token,
        tokens * shape.kv_bytes_per_token,
        tokens * shape.activation_bytes_per_token + sampled * shape.activation_bytes_per_sample,
        tokens,
    )


def step_work(
    shape: ModelShape, prefills: Iterable[Sequence], decodes: Iterable[Sequence]
) -> tuple[PhaseWork, PhaseWork]:
    """Work of a step as (prefill, decode).

    A prompt chunk that samples puts one position through the LM head, a decode all that it computes (more than one
    with speculative decoding).
    """
    prompt_tokens = prompt_pairs = prompt_read = prompt_samples = 0
    for prompt in prefills:
        prompt_tokens += prompt.scheduled
        prompt_pairs += prompt.attended_pairs
        prompt_read += prompt.cached
        prompt_samples += prompt.samples
    decode_tokens = decode_pairs = decode_read = decode_samples = 0
    for sequence in decodes:
        decode_tokens += sequence.scheduled
        decode_pairs += sequence.attended_pairs
        decode_read += sequence.context
        decode_samples += sequence.scheduled if sequence.samples else 0
    total = prompt_tokens + decode_tokens
    if not total:
        return NO_WORK, NO_WORK
    return (
        phase_work(shape, prompt_tokens, prompt_pairs, prompt_read, prompt_samples, prompt_tokens / total),
        phase_work(shape, decode_tokens, decode_pairs, decode_read, decode_samples, decode_tokens / total),
    )
