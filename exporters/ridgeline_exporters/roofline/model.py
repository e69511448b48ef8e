"""Dense decoder models: their sizes, and from these the coefficients that every step's work is made of.

With D hidden, L layers, q query and kv KV heads of size d, F feed-forward width, V vocabulary, g = 3 for a gated MLP
and 2 for a plain one:

    matrices of a layer     D (q + 2 kv) d  +  q d D  +  g D F
    linear FLOPs per token  2 x matrices of all layers            (LM head apart)
    LM head FLOPs           2 D V                                 (per sampled position)
    attention FLOPs         4 q d L                               (per attended pair: scores and values)
    KV bytes per token      2 kv d L x bytes of the cache format
    weight bytes of a step  matrices and LM head in their formats, biases and norms at 16 bit

Biases and norms count as parameters and as bytes; their additions, as well as rotary embeddings, softmax, sampling
and residual sums, are left out of the FLOPs (below 1 %). The embedding table is a look-up of a few rows: no FLOPs and
no bytes of a step, unless it is tied to the LM head and so read as that.

Only architectures in `_FAMILIES` are known, because two models with the same config fields can compute different
things. Everything else is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ridgeline_exporters.roofline.formats import (
    SIXTEEN_BIT_BYTES,
    SIXTEEN_BIT_WEIGHTS,
    UnsupportedModel,
    WeightFormat,
    kv_bytes_per_element,
    weight_format,
)

__all__ = ["ModelShape", "UnsupportedModel"]

_KNOWN = "use a dense model with full attention (Llama, Mistral, Qwen2, Qwen3, Phi-3, Granite, SmolLM3, Nemotron)"


@dataclass(frozen=True, slots=True)
class _Family:
    """What an architecture's name says and its config.json does not."""

    gated: bool = True
    tied_by_default: bool = False
    norm_parameters: int = 1
    """Parameters of one norm per element: 2 where it has a bias."""
    qk_norm: bool = False
    qkv_bias: bool | None = None
    """None: as `attention_bias` says, and then the output projection has one too."""


_FAMILIES: Mapping[str, _Family] = {
    "LlamaForCausalLM": _Family(),
    "MistralForCausalLM": _Family(),
    "Qwen2ForCausalLM": _Family(qkv_bias=True),
    "Qwen3ForCausalLM": _Family(qk_norm=True),
    "Phi3ForCausalLM": _Family(),
    "GraniteForCausalLM": _Family(),
    "SmolLM3ForCausalLM": _Family(tied_by_default=True),
    "NemotronForCausalLM": _Family(gated=False, norm_parameters=2),
}

# Fields that no dense model with full attention sets above 1, and what they stand for.
_FOREIGN_FIELDS = {
    "num_experts": "mixture of experts",
    "num_local_experts": "mixture of experts",
    "n_routed_experts": "mixture of experts",
    "num_experts_per_tok": "mixture of experts",
    "kv_lora_rank": "multi-head latent attention (MLA)",
    "linear_num_value_heads": "linear attention",
    "ssm_state_size": "state-space layers",
    "mamba_d_state": "state-space layers",
    "attention_chunk_size": "chunked attention",
}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a dense decoder, and the coefficients of its work, computed once.

    Sums are over all shards: the work of one engine, whatever its tensor parallelism.
    """

    architecture: str
    layers: int
    hidden: int
    query_heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    vocabulary: int
    gated: bool = True
    tied_embeddings: bool = False
    bias_parameters_per_layer: int = 0
    norm_parameters_per_layer: int = 0
    final_norm_parameters: int = 0
    weights: WeightFormat = SIXTEEN_BIT_WEIGHTS
    kv_bytes_per_element: float = SIXTEEN_BIT_BYTES

    parameters: int = field(init=False)
    linear_flops_per_token: float = field(init=False)
    """FLOPs of one token in the matrices of all layers; attention scores and LM head left out."""
    lm_head_flops: float = field(init=False)
    """FLOPs of the LM head for one sampled position."""
    attention_flops_per_pair: float = field(init=False)
    """FLOPs of one (query token, key token) pair, over all layers and heads."""
    kv_bytes_per_token: float = field(init=False)
    weight_bytes: float = field(init=False)
    """Bytes that one step reads: all weights but an untied embedding table."""
    resident_bytes: float = field(init=False)
    """Bytes that the weights take in memory, the embedding table included."""
    activation_bytes_per_token: float = field(init=False)
    """Inputs and outputs of the layers' GEMMs at 16 bit."""
    activation_bytes_per_sample: float = field(init=False)
    """Input and output of the LM head at 16 bit."""

    def __post_init__(self) -> None:
        query, keys = self.query_heads * self.head_size, self.kv_heads * self.head_size
        into_mlp = (2 if self.gated else 1) * self.feed_forward
        matrices = self.layers * (
            self.hidden * (query + 2 * keys) + query * self.hidden + self.hidden * (into_mlp + self.feed_forward)
        )
        small = self.layers * (self.bias_parameters_per_layer + self.norm_parameters_per_layer)
        small += self.final_norm_parameters
        table = self.vocabulary * self.hidden
        embedding_bytes = 0.0 if self.tied_embeddings else SIXTEEN_BIT_BYTES * table
        streamed = (
            matrices * self.weights.bytes_per_weight
            + small * SIXTEEN_BIT_BYTES
            + table * self.weights.lm_head_bytes_per_weight
        )
        # Each GEMM reads its input and writes its output once: QKV, output, up (and gate), down.
        rows = (self.hidden + query + 2 * keys) + (query + self.hidden)
        rows += (self.hidden + into_mlp) + (self.feed_forward + self.hidden)
        values = {
            "parameters": matrices + small + table * (1 if self.tied_embeddings else 2),
            "linear_flops_per_token": 2.0 * matrices,
            "lm_head_flops": 2.0 * table,
            "attention_flops_per_pair": 4.0 * query * self.layers,
            "kv_bytes_per_token": 2 * keys * self.layers * self.kv_bytes_per_element,
            "weight_bytes": streamed,
            "resident_bytes": streamed + embedding_bytes,
            "activation_bytes_per_token": SIXTEEN_BIT_BYTES * self.layers * rows,
            "activation_bytes_per_sample": SIXTEEN_BIT_BYTES * (self.hidden + self.vocabulary),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)  # the way of a frozen dataclass to set its derived fields

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, object],
        weights: str | None = None,
        kv_cache: str | None = None,
        *,
        lm_head: str | None = None,
    ) -> ModelShape:
        """The shape that a Hugging Face `config.json` describes.

        Args:
            config: The parsed file, or `hf_config.to_dict()`.
            weights: Format of all matrices; None takes it from `quantization_config`, or 16 bit where there is none
                (vLLM serves float32 checkpoints in 16 bit too).
            kv_cache: Format of the KV cache; None and "auto" mean what the checkpoint asks for, else 16 bit.
            lm_head: Format of the LM head where it differs from `weights`: vLLM's own `--quantization fp8` leaves it
                at bf16.

        Raises:
            UnsupportedModel: naming the architecture or feature that has no known roofline, and the cure.
        """
        architecture = _architecture(config)
        family = _FAMILIES[architecture]
        _refuse_foreign_features(config, architecture)
        hidden = _size(config, "hidden_size")
        query_heads = _size(config, "num_attention_heads")
        kv_heads = _size(config, "num_key_value_heads", query_heads)
        head_size = _size(config, "head_dim", hidden // query_heads)
        feed_forward = _size(config, "intermediate_size")
        tied = config.get("tie_word_embeddings")
        tied = family.tied_by_default if tied is None else bool(tied)
        found = config.get("quantization_config")
        quantization = found if isinstance(found, Mapping) else None
        chosen = weight_format(weights, lm_head, quantization)
        if tied and weights is None and lm_head is None:
            # The table that is looked up in is never quantized, and here it is the LM head.
            chosen = WeightFormat(chosen.name, chosen.bytes_per_weight, SIXTEEN_BIT_BYTES)
        return cls(
            architecture=architecture,
            layers=_size(config, "num_hidden_layers"),
            hidden=hidden,
            query_heads=query_heads,
            kv_heads=kv_heads,
            head_size=head_size,
            feed_forward=feed_forward,
            vocabulary=_size(config, "vocab_size"),
            gated=family.gated,
            tied_embeddings=tied,
            bias_parameters_per_layer=_bias_parameters(
                config, family, hidden, query_heads * head_size, kv_heads * head_size, feed_forward
            ),
            norm_parameters_per_layer=2 * hidden * family.norm_parameters + (2 * head_size if family.qk_norm else 0),
            final_norm_parameters=hidden * family.norm_parameters,
            weights=chosen,
            kv_bytes_per_element=kv_bytes_per_element(kv_cache, quantization),
        )


def _architecture(config: Mapping[str, object]) -> str:
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list | tuple) and names else ""
    if name in _FAMILIES:
        return name
    foreign = _foreign_feature(config)
    cause = f"it uses {foreign}, whose roofline is not known" if foreign else "the roofline of it is not known"
    if not name:
        raise UnsupportedModel("model without an architecture", "config.json has no `architectures`", _KNOWN)
    raise UnsupportedModel(name, cause, _KNOWN)


def _refuse_foreign_features(config: Mapping[str, object], architecture: str) -> None:
    foreign = _foreign_feature(config)
    if foreign:
        raise UnsupportedModel(foreign, f"this {architecture} uses it and its roofline is not known", _KNOWN)


def _foreign_feature(config: Mapping[str, object]) -> str | None:
    for name, feature in _FOREIGN_FIELDS.items():
        value = config.get(name)
        if isinstance(value, int) and value > 1:
            return feature
    layer_types = config.get("layer_types")
    if isinstance(layer_types, list | tuple):
        for kind in layer_types:
            if kind != "full_attention":
                return f"{str(kind).replace('_', ' ')} layers"
    window, limit = config.get("sliding_window"), config.get("max_position_embeddings")
    # Qwen carries a window that `use_sliding_window: false` switches off; a window no shorter than the longest
    # context never closes, as in Phi-3's long-context checkpoints.
    bites = not (isinstance(window, int) and isinstance(limit, int) and window >= limit)
    if window is not None and bites and config.get("use_sliding_window") is not False:
        return "sliding window attention"
    return None


def _bias_parameters(
    config: Mapping[str, object], family: _Family, hidden: int, query: int, keys: int, feed_forward: int
) -> int:
    everywhere = config.get("attention_bias") is True
    qkv = everywhere if family.qkv_bias is None else family.qkv_bias
    total = query + 2 * keys if qkv else 0
    if everywhere and family.qkv_bias is None:
        total += hidden
    if config.get("mlp_bias") is True:
        total += (2 if family.gated else 1) * feed_forward + hidden
    return total


def _size(config: Mapping[str, object], name: str, default: int | None = None) -> int:
    value = config.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UnsupportedModel(
            f"config.json with {name} = {value!r}", "a whole number above 0 is needed", "check the model's config.json"
        )
    return value
