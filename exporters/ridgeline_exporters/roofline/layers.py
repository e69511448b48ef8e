"""The parts that decoder layers are made of, each with its sizes and what one token costs in it.

A *mixer* brings tokens together (attention or a recurrence), a *feed-forward* block works on each alone. FLOPs count a
multiplication and an addition as two, as `torch.utils.flop_counter` does; softmax, norms, activations, rotary
embeddings and residual sums are left out (below 1 %). Activations are the inputs and outputs of the GEMMs at 16 bit,
once each; of these, the input of a matrix that is cut by columns and the output of one that is cut by rows are whole on
every tensor-parallel GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from ridgeline_exporters.roofline.quantization import EXPERTS
from ridgeline_exporters.roofline.windows import Window


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight matrix of a layer."""

    module: str
    """Its name within the layer, as in checkpoints: self_attn.q_proj."""
    inputs: int
    outputs: int
    shards: int | None = None
    """Parts into which tensor parallelism can cut it at most; None: any number, 1: it is kept whole on every GPU."""
    quantized: bool = True
    """Whether a checkpoint's quantisation covers it, unless it is listed as an exception."""

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return self.inputs * self.outputs


@dataclass(frozen=True, slots=True)
class Activations:
    """Elements that the GEMMs read and write per token."""

    whole: int
    """On every tensor-parallel GPU."""
    shared: int
    """In all GPUs together."""


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
    window: Window | None = None
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
        query, keys = self.query_heads * self.head_size, self.kv_heads * self.head_size
        return (
            Matrix("self_attn.q_proj", self.hidden, (2 if self.gated else 1) * query),
            Matrix("self_attn.k_proj", self.hidden, keys, self.kv_heads),
            Matrix("self_attn.v_proj", self.hidden, keys, self.kv_heads),
            Matrix("self_attn.o_proj", query, self.hidden),
        )

    @property
    def small_parameters(self) -> int:
        query, key, value, output = self.matrices
        biases = (query.outputs + key.outputs + value.outputs) * self.qkv_bias + output.outputs * self.output_bias
        return biases + self.norm_parameters + self.query_heads * self.sinks

    @property
    def activations(self) -> Activations:
        query, key, value, output = self.matrices
        return Activations(2 * self.hidden, query.outputs + key.outputs + value.outputs + output.inputs)

    @property
    def prefill_flops_per_pair(self) -> float:
        return 4.0 * self.query_heads * self.head_size

    @property
    def decode_flops_per_pair(self) -> float:
        return self.prefill_flops_per_pair

    @property
    def kv_elements(self) -> int:
        """Per token."""
        return 2 * self.kv_heads * self.head_size

    @property
    def kv_shards(self) -> int:
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

    window: ClassVar[Window | None] = None
    UP_PROJECTION: ClassVar[str] = "self_attn.kv_b_proj"

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
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
        norms = self.kv_rank + (self.query_rank or 0)
        biases = (self.query_rank or 0) + self.kv_rank + self.rope_size + self.hidden
        return norms + biases * self.bias

    @property
    def activations(self) -> Activations:
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

    window: ClassVar[Window | None] = None
    kv_elements: ClassVar[int] = 0
    kv_shards: ClassVar[int] = 1
    CHUNK: ClassVar[int] = 64

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        keys, values = self.key_heads * self.key_size, self.value_heads * self.value_size
        if self.split_projections:
            into = (("in_proj_qkv", 2 * keys + values), ("in_proj_z", values)) + tuple(
                (name, self.value_heads) for name in ("in_proj_b", "in_proj_a")
            )
        else:
            into = (("in_proj_qkvz", 2 * keys + 2 * values), ("in_proj_ba", 2 * self.value_heads))
        return (
            *(Matrix(f"linear_attn.{name}", self.hidden, outputs) for name, outputs in into),
            Matrix("linear_attn.conv1d", self.convolution, self.convolved, quantized=False),
            Matrix("linear_attn.out_proj", values, self.hidden),
        )

    @property
    def convolved(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_size + self.value_heads * self.value_size

    @property
    def small_parameters(self) -> int:
        return 2 * self.value_heads + self.value_size  # time steps, decays and the norm of the output

    @property
    def activations(self) -> Activations:
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


@dataclass(frozen=True)
class FeedForward:
    """A feed-forward block of width F: 6 D F FLOPs a token when gated (SwiGLU, arXiv:2002.05202), 4 D F when plain."""

    hidden: int
    width: int
    gated: bool = True
    bias: bool = False
    module: str = "mlp"

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        into = ("gate_proj", "up_proj") if self.gated else ("up_proj",)
        return (
            *(Matrix(f"{self.module}.{name}", self.hidden, self.width) for name in into),
            Matrix(f"{self.module}.down_proj", self.width, self.hidden),
        )

    @property
    def small_parameters(self) -> int:
        return self.bias * sum(matrix.outputs for matrix in self.matrices)

    @property
    def activations(self) -> Activations:
        return Activations(2 * self.hidden, (3 if self.gated else 2) * self.width)


@dataclass(frozen=True)
class MixtureOfExperts:
    """k of E experts of width F for each token (arXiv:2101.03961), beside shared ones that all tokens take.

    FLOPs per token: those of k experts, of the shared ones and of the router, 2 D E. A step of T tokens reads the
    experts that it hits. Under uniform and independent routing an expert is missed by all of them with probability
    (1 - k/E)^T, so E (1 - (1 - k/E)^T) experts are read on average. Real routers prefer some experts, which lowers the
    number for small batches: the assumption is an upper estimate there, and exact for one token and for many.
    """

    hidden: int
    experts: int
    experts_per_token: int
    width: int
    shared_width: int = 0
    """Width of all shared experts together."""
    shared_gate: bool = False
    """Whether a gate of one output weighs the shared expert (Qwen2-MoE, Qwen3-Next)."""
    expert_bias: bool = False
    router_bias: bool = False

    @cached_property
    def expert(self) -> FeedForward:
        """One routed expert."""
        return FeedForward(self.hidden, self.width, bias=self.expert_bias, module=EXPERTS)

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        """All but the routed experts."""
        parts = [Matrix("mlp.gate", self.hidden, self.experts, 1, quantized=False)]
        if self.shared_width:
            shared = FeedForward(self.hidden, self.shared_width, module="mlp.shared_expert")
            parts += shared.matrices
        if self.shared_gate:
            parts.append(Matrix("mlp.shared_expert_gate", self.hidden, 1, 1, quantized=False))
        return tuple(parts)

    @property
    def small_parameters(self) -> int:
        """All but those of the routed experts."""
        return self.experts * self.router_bias

    @property
    def activations(self) -> Activations:
        taken = self.experts_per_token  # their rows are sent to one GPU each where whole experts are shared: the least
        whole = self.hidden + self.experts + 2 * self.hidden * bool(self.shared_width)
        return Activations(whole, (2 * self.hidden + 3 * self.width) * taken + 3 * self.shared_width)

    def distinct_experts(self, tokens: float) -> float:
        """Experts that a step of so many tokens reads, on average over uniform routing."""
        return float(self.experts * (1.0 - (1.0 - self.experts_per_token / self.experts) ** tokens))


@dataclass(frozen=True)
class Layer:
    """One decoder layer."""

    mixer: Attention | LatentAttention | GatedDeltaNet
    feed_forward: FeedForward | MixtureOfExperts
    norm_parameters: int
    """Of the norms around both."""

    @property
    def attention(self) -> str:
        """What the mixer is, in words."""
        window = self.mixer.window
        if window is not None:
            return f"{'chunks' if window.chunked else 'sliding window'} of {window.tokens:,} tokens"
        kinds = {Attention: "full attention", LatentAttention: "latent attention", GatedDeltaNet: "linear attention"}
        return kinds[type(self.mixer)]

    @property
    def feeding(self) -> str:
        """What the feed-forward block is, in words."""
        block = self.feed_forward
        if isinstance(block, MixtureOfExperts):
            return f"{block.experts_per_token} of {block.experts} experts{' and shared' if block.shared_width else ''}"
        return "dense"


@dataclass(frozen=True, slots=True)
class Decoder:
    """What a config.json says of a model, before formats and GPUs are chosen."""

    architecture: str
    layers: tuple[Layer, ...]
    hidden: int
    vocabulary: int
    tied_embeddings: bool = False
    final_norm_parameters: int = 0
    uncounted: tuple[str, ...] = ()
    """Parts of the model that are left out, such as "vision encoder"."""
