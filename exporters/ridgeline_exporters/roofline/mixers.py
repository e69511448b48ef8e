"""What brings tokens together in a layer: attention in its forms, or a recurrence, with what a token costs in it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from ridgeline_exporters.roofline.matrices import Activations, Matrix
from ridgeline_exporters.roofline.windows import AttentionWindow


@dataclass(frozen=True)
class Attention:
    """Attention with q query heads that share kv KV heads of size d (GQA, arXiv:2305.13245; kv = q: MHA, 1: MQA).

    Per token: Q, K, V and output projections, 2 D (q + 2 kv) d + 2 q d D FLOPs. Per attended pair: scores and weighted
    values, 2 q d + 2 q d FLOPs. Cache: 2 kv d elements per token.
    """

    hidden: int
    query_heads: int
    kv_heads: int
    head_size: int
    window: AttentionWindow | None = None
    gated: bool = False
    """Whether the query projection makes an output gate as well (Qwen3-Next, arXiv:2505.06708)."""
    qkv_bias: bool = False
    output_bias: bool = False
    norm_parameters: int = 0
    """Of norms on queries and keys."""
    sinks: bool = False
    """Whether each head has a learned sink (gpt-oss)."""

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        """Weight matrices."""
        query, keys = self.query_heads * self.head_size, self.kv_heads * self.head_size
        return (
            Matrix("self_attn.q_proj", self.hidden, (2 if self.gated else 1) * query),
            Matrix("self_attn.k_proj", self.hidden, keys, self.kv_heads),
            Matrix("self_attn.v_proj", self.hidden, keys, self.kv_heads),
            Matrix("self_attn.o_proj", query, self.hidden),
        )

    @property
    def small_parameters(self) -> int:
        """Parameters of biases and norms."""
        query, key, value, output = self.matrices
        biases = (query.outputs + key.outputs + value.outputs) * self.qkv_bias + output.outputs * self.output_bias
        return biases + self.norm_parameters + self.query_heads * self.sinks

    @property
    def activations(self) -> Activations:
        """What the GEMMs read and write per token."""
        query, key, value, output = self.matrices
        return Activations(2 * self.hidden, query.outputs + key.outputs + value.outputs + output.inputs)

    @property
    def prefill_flops_per_pair(self) -> float:
        """Scores and weighted values."""
        return 4.0 * self.query_heads * self.head_size

    @property
    def decode_flops_per_pair(self) -> float:
        """The same as in prefill."""
        return self.prefill_flops_per_pair

    @property
    def kv_elements(self) -> int:
        """Per token."""
        return 2 * self.kv_heads * self.head_size

    @property
    def kv_shards(self) -> int:
        """Parts into which tensor parallelism can cut the cache at most."""
        return self.kv_heads


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (MLA, arXiv:2405.04434, section 2.1), in the two forms that vLLM computes it in.

    The cache holds c + r elements per token, once for all heads. A *decode* absorbs the up-projections into query and
    output, and each of q heads attends to the latent itself: 2 q (c + r) + 2 q c FLOPs a pair. *Prefill* up-projects
    the latent to keys of n + r and values of v elements: 2 q (n + r) + 2 q v a pair; cached tokens of earlier chunks
    are up-projected again in each chunk, 2 c q (n + v) FLOPs each. Up-projection and absorption cost a new token the
    same, 2 c q (n + v). (vLLM 0.32, `model_executor/layers/attention/mla_attention.py`, module docstring. Which form a
    request takes depends on its tokens in the step: a prompt chunk of one token goes with the decodes, which is counted
    as prefill here.)

    The absorbed form keeps its own 16-bit copy of the up-projection (`W_UK_T` and `W_UV` of the same file), so a mixed
    step reads both.
    """

    hidden: int
    query_heads: int
    query_rank: int | None
    """Of the low-rank query projection; None: queries are projected in one go."""
    kv_rank: int
    nope_size: int
    rope_size: int
    value_size: int
    bias: bool = False

    window: ClassVar[AttentionWindow | None] = None
    UP_PROJECTION: ClassVar[str] = "self_attn.kv_b_proj"

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        """Weight matrices."""
        query = self.query_heads * (self.nope_size + self.rope_size)
        if self.query_rank is None:
            into_query: tuple[Matrix, ...] = (Matrix("self_attn.q_proj", self.hidden, query),)
        else:
            into_query = (
                Matrix("self_attn.q_a_proj", self.hidden, self.query_rank, 1),
                Matrix("self_attn.q_b_proj", self.query_rank, query),
            )
        return (
            *into_query,
            Matrix("self_attn.kv_a_proj_with_mqa", self.hidden, self.kv_rank + self.rope_size, 1),
            self.up_projection,
            Matrix("self_attn.o_proj", self.query_heads * self.value_size, self.hidden),
        )

    @property
    def up_projection(self) -> Matrix:
        """From the latent to keys and values of all heads."""
        return Matrix(self.UP_PROJECTION, self.kv_rank, self.query_heads * (self.nope_size + self.value_size))

    @property
    def small_parameters(self) -> int:
        """Parameters of biases and norms."""
        norms = self.kv_rank + (self.query_rank or 0)
        biases = (self.query_rank or 0) + self.kv_rank + self.rope_size + self.hidden
        return norms + biases * self.bias

    @property
    def activations(self) -> Activations:
        """What the GEMMs read and write per token."""
        query = self.query_heads * (self.nope_size + self.rope_size)
        low_rank = 0 if self.query_rank is None else 2 * self.query_rank
        return Activations(
            2 * self.hidden + low_rank + 2 * self.kv_rank + self.rope_size,
            query + self.up_projection.outputs + self.query_heads * self.value_size,
        )

    @property
    def prefill_flops_per_pair(self) -> float:
        """With keys and values up-projected."""
        return 2.0 * self.query_heads * (self.nope_size + self.rope_size + self.value_size)

    @property
    def decode_flops_per_pair(self) -> float:
        """With the up-projections absorbed."""
        return 2.0 * self.query_heads * (2 * self.kv_rank + self.rope_size)

    @property
    def kv_elements(self) -> int:
        """Per token, for all heads together."""
        return self.kv_rank + self.rope_size

    @property
    def kv_shards(self) -> int:
        """Parts into which tensor parallelism can cut the cache at most."""
        return 1


@dataclass(frozen=True)
class GatedDeltaNet:
    """Linear attention with a gated delta rule (arXiv:2412.06464), as in Qwen3-Next and Qwen3.5.

    Instead of a cache that grows, each value head keeps a state of k x v elements, which a step reads and writes once
    per sequence, with the last inputs of a short convolution. A *decode* updates it token by token: read by the key,
    outer product, read by the query, 3 · 2 k v FLOPs per value head. *Prefill* goes in chunks of C = 64 tokens (section
    3.3; `chunk_gated_delta_rule` of flash-linear-attention): per token 2 C k for the keys' products and 2 C k for the
    scores, C (k + v) for the triangular solve, 2 C v for the weighted values, and 3 · 2 k v with the state.
    """

    hidden: int
    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    convolution: int
    split_projections: bool = False
    """Whether checkpoints keep the input projections apart (Qwen3.5) or in two (Qwen3-Next)."""

    window: ClassVar[AttentionWindow | None] = None
    kv_elements: ClassVar[int] = 0
    kv_shards: ClassVar[int] = 1
    CHUNK: ClassVar[int] = 64

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        """Weight matrices."""
        keys, values = self.key_heads * self.key_size, self.value_heads * self.value_size
        if self.split_projections:
            into = {
                "in_proj_qkv": 2 * keys + values,
                "in_proj_z": values,
                "in_proj_b": self.value_heads,
                "in_proj_a": self.value_heads,
            }
        else:
            into = {"in_proj_qkvz": 2 * keys + 2 * values, "in_proj_ba": 2 * self.value_heads}
        return (
            *(Matrix(f"linear_attn.{name}", self.hidden, outputs) for name, outputs in into.items()),
            Matrix("linear_attn.conv1d", self.convolution, self.convolved, quantized=False),
            Matrix("linear_attn.out_proj", values, self.hidden),
        )

    @property
    def convolved(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_size + self.value_heads * self.value_size

    @property
    def small_parameters(self) -> int:
        """Parameters of biases and norms."""
        return 2 * self.value_heads + self.value_size  # time steps, decays and the norm of the output

    @property
    def activations(self) -> Activations:
        """What the GEMMs read and write per token."""
        values = self.value_heads * self.value_size
        return Activations(2 * self.hidden, 2 * self.convolved + values + 2 * self.value_heads + values)

    @property
    def prefill_flops(self) -> float:
        """Of the recurrence, per token."""
        k, v, chunk = self.key_size, self.value_size, self.CHUNK
        return self.value_heads * (6.0 * k * v + chunk * (5.0 * k + 3.0 * v))

    @property
    def decode_flops(self) -> float:
        """Of the recurrence, per token."""
        return self.value_heads * 6.0 * self.key_size * self.value_size

    def state_bytes(self, element_bytes: float, state_element_bytes: float) -> float:
        """Bytes that a sequence's state takes: the convolution's last inputs and the recurrent state."""
        recurrent = self.value_heads * self.key_size * self.value_size
        return (self.convolution - 1) * self.convolved * element_bytes + recurrent * state_element_bytes


Mixer = Attention | LatentAttention | GatedDeltaNet
