"""From a config.json to layers, one row per architecture.

A row says what the architecture's name means and its config.json does not; it was read off the implementations in
transformers 5.19 (`models/*/modeling_*.py`), and `tests/roofline` compares parameters and FLOPs with these. Two models
with the same fields can compute different things, so an architecture without a row is refused by name, and so is a
known one whose config has a feature that its row does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ridgeline_exporters.roofline.config_fields import (
    EXPERT_COUNTS,
    Config,
    expert_count,
    flag,
    layer_kinds,
    refuse_foreign_features,
    size,
    size_or_none,
    text_config,
)
from ridgeline_exporters.roofline.feed_forward import Block, FeedForward, MixtureOfExperts
from ridgeline_exporters.roofline.formats import UnsupportedModel
from ridgeline_exporters.roofline.layers import Decoder, Layer
from ridgeline_exporters.roofline.mixers import Attention, GatedDeltaNet, LatentAttention, Mixer
from ridgeline_exporters.roofline.windows import AttentionWindow

# ---------------------------------------------------------------- feed-forward blocks: config, layer → block


def _dense(config: Config, layer: int) -> Block:
    return FeedForward(size(config, "hidden_size"), size(config, "intermediate_size"), bias=flag(config, "mlp_bias"))


def _plain(config: Config, layer: int) -> Block:
    hidden, width = size(config, "hidden_size"), size(config, "intermediate_size")
    return FeedForward(hidden, width, gated=False, bias=flag(config, "mlp_bias"))


def _all_experts(config: Config, layer: int) -> Block:
    return _experts(config, "intermediate_size")


def _gpt_oss(config: Config, layer: int) -> Block:
    block = _experts(config, "intermediate_size")
    return replace(block, expert_bias=True, router_bias=True)


def _qwen(config: Config, layer: int) -> Block:
    """Layers without experts are listed, or all but each n-th."""
    listed = config.get("mlp_only_layers") or ()
    step = size_or_none(config, "decoder_sparse_step") or 1
    if (isinstance(listed, list | tuple) and layer in listed) or (layer + 1) % step:
        return _dense(config, layer)
    block = _experts(config, "moe_intermediate_size")
    shared = size_or_none(config, "shared_expert_intermediate_size") or 0
    return replace(block, shared_width=shared, shared_gate=bool(shared))


def _deepseek(config: Config, layer: int) -> Block:
    """The first layers are dense; shared experts have the width of routed ones, times their number."""
    step = size_or_none(config, "moe_layer_freq") or 1
    if layer < (size_or_none(config, "first_k_dense_replace") or 0) or layer % step:
        return _dense(config, layer)
    block = _experts(config, "moe_intermediate_size")
    return replace(block, shared_width=(size_or_none(config, "n_shared_experts") or 0) * block.width)


def _deepseek_balanced(config: Config, layer: int) -> Block:
    """With a bias per expert that balances their load (arXiv:2412.19437, section 2.1.2)."""
    block = _deepseek(config, layer)
    return replace(block, router_bias=True) if isinstance(block, MixtureOfExperts) else block


def _llama4(config: Config, layer: int) -> Block:
    listed = config.get("moe_layers")
    step = size_or_none(config, "interleave_moe_layer_step") or 1
    sparse = layer in listed if isinstance(listed, list | tuple) else layer % step == step - 1
    if not sparse:
        return FeedForward(size(config, "hidden_size"), size(config, "intermediate_size_mlp"))
    block = _experts(config, "intermediate_size")
    return replace(block, shared_width=block.width)


def _experts(config: Config, width: str) -> MixtureOfExperts:
    experts, taken = size(config, expert_count(config)), size(config, "num_experts_per_tok")
    if taken > experts:
        raise UnsupportedModel(
            f"config.json with num_experts_per_tok = {taken} of {experts} experts",
            "a token cannot take more experts than there are",
            "check the model's config.json",
        )
    return MixtureOfExperts(size(config, "hidden_size"), experts, taken, size(config, width))


# ---------------------------------------------------------------- attention: config, row, kind of the layer → mixer


def _attention(config: Config, family: Family, kind: str) -> Mixer:
    hidden, query_heads = size(config, "hidden_size"), size(config, "num_attention_heads")
    kv_heads = size(config, "num_key_value_heads", query_heads)
    head_size = size(config, "head_dim", hidden // query_heads)
    everywhere = flag(config, "attention_bias")
    norms = {"head": 2 * head_size, "all": (query_heads + kv_heads) * head_size, "none": 0}
    normed = "none" if family.norms_by_flag and not flag(config, family.norms_by_flag) else family.query_key_norm
    return Attention(
        hidden,
        query_heads,
        kv_heads,
        head_size,
        window=_window(config, kind),
        gated=family.gated_attention,
        qkv_bias={"config": everywhere, "always": True}[family.qkv_bias],
        output_bias=everywhere and family.output_bias,
        norm_parameters=norms[normed],
        sinks=family.sinks,
    )


def _window(config: Config, kind: str) -> AttentionWindow | None:
    if kind == "sliding_attention":
        return AttentionWindow(size(config, "sliding_window"))
    if kind == "chunked_attention":
        return AttentionWindow(size(config, "attention_chunk_size"), chunked=True)
    return None


def _latent(config: Config, family: Family, kind: str) -> Mixer:
    return LatentAttention(
        hidden=size(config, "hidden_size"),
        query_heads=size(config, "num_attention_heads"),
        query_rank=size_or_none(config, "q_lora_rank"),
        kv_rank=size(config, "kv_lora_rank"),
        nope_size=size(config, "qk_nope_head_dim"),
        rope_size=size(config, "qk_rope_head_dim"),
        value_size=size(config, "v_head_dim"),
        bias=flag(config, "attention_bias"),
    )


def _hybrid(config: Config, family: Family, kind: str) -> Mixer:
    if kind != "linear_attention":
        return _attention(config, family, kind)
    return GatedDeltaNet(
        hidden=size(config, "hidden_size"),
        key_heads=size(config, "linear_num_key_heads"),
        value_heads=size(config, "linear_num_value_heads"),
        key_size=size(config, "linear_key_head_dim"),
        value_size=size(config, "linear_value_head_dim"),
        convolution=size(config, "linear_conv_kernel_dim"),
        split_projections=family.split_projections,
    )


# ---------------------------------------------------------------- the table


@dataclass(frozen=True, slots=True)
class Family:
    """What an architecture's name says and its config.json does not."""

    block: Callable[[Config, int], Block] = _dense
    mixer: Callable[[Config, Family, str], Mixer] = _attention
    features: tuple[str, ...] = ()
    """Fields of `config_fields.FOREIGN_FIELDS` that it knows."""
    layer_kinds: Literal["uniform", "listed", "gemma2", "gemma3", "gpt_oss", "llama4", "qwen", "hybrid"] = "uniform"
    """Which layers have which attention, where the config has no `layer_types`."""
    window: int | None = None
    """Length of the window where the config has no field `sliding_window`."""
    norms: int = 2
    """Norms of a layer, of `hidden_size` each."""
    norm_parameters: int = 1
    """Parameters of a norm per element: 2 where it has a bias."""
    query_key_norm: Literal["none", "head", "all"] = "none"
    """Norms on queries and keys: one per head size, or one over all heads."""
    norms_by_flag: str | None = None
    """Field that switches norms on queries and keys on."""
    qkv_bias: Literal["config", "always"] = "config"
    output_bias: bool = True
    """Whether `attention_bias` holds for the output projection too."""
    tied_by_default: bool = False
    sinks: bool = False
    gated_attention: bool = False
    split_projections: bool = False
    uncounted: tuple[str, ...] = ()


_EXPERTS = (*EXPERT_COUNTS, "num_experts_per_tok")
_LATENT = ("kv_lora_rank", *_EXPERTS)
_LINEAR = ("linear_num_value_heads", *_EXPERTS)
_VISION = ("vision encoder",)

_LLAMA = Family()
_MISTRAL = Family(window=4096)
_QWEN2 = Family(qkv_bias="always", output_bias=False, layer_kinds="qwen", window=4096)
_GEMMA3 = Family(layer_kinds="gemma3", window=4096, norms=4, query_key_norm="head", tied_by_default=True)
_LLAMA4 = Family(_llama4, features=(*_EXPERTS, "attention_chunk_size"), layer_kinds="llama4")
_QWEN3_5 = Family(
    mixer=_hybrid, features=_LINEAR, layer_kinds="hybrid", query_key_norm="head", gated_attention=True,
    split_projections=True,
)  # fmt: skip

FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _MISTRAL,
    "Mistral3ForConditionalGeneration": replace(_MISTRAL, uncounted=_VISION),
    "GraniteForCausalLM": _LLAMA,
    "Phi3ForCausalLM": _LLAMA,
    "SmolLM3ForCausalLM": Family(tied_by_default=True),
    "NemotronForCausalLM": Family(_plain, norm_parameters=2),
    "Qwen2ForCausalLM": _QWEN2,
    "Qwen3ForCausalLM": Family(query_key_norm="head", layer_kinds="qwen", window=4096),
    "Gemma2ForCausalLM": Family(layer_kinds="gemma2", window=4096, norms=4, tied_by_default=True),
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": replace(_GEMMA3, uncounted=_VISION),
    "MixtralForCausalLM": Family(_all_experts, features=_EXPERTS),
    "OlmoeForCausalLM": Family(_all_experts, features=_EXPERTS, query_key_norm="all"),
    "Qwen2MoeForCausalLM": replace(_QWEN2, block=_qwen, features=_EXPERTS),
    "Qwen3MoeForCausalLM": Family(_qwen, features=_EXPERTS, query_key_norm="head"),
    "GptOssForCausalLM": Family(
        _gpt_oss, features=_EXPERTS, layer_kinds="gpt_oss", window=128, qkv_bias="always", sinks=True
    ),
    "Glm4MoeForCausalLM": Family(
        _deepseek_balanced, features=_EXPERTS, query_key_norm="head", norms_by_flag="use_qk_norm", output_bias=False
    ),
    "DeepseekV2ForCausalLM": Family(_deepseek, mixer=_latent, features=_LATENT),
    "DeepseekV3ForCausalLM": Family(_deepseek_balanced, mixer=_latent, features=_LATENT),
    "Llama4ForCausalLM": _LLAMA4,
    "Llama4ForConditionalGeneration": replace(_LLAMA4, uncounted=_VISION),
    "Qwen3NextForCausalLM": replace(_QWEN3_5, block=_qwen, split_projections=False),
    "Qwen3_5ForCausalLM": _QWEN3_5,
    "Qwen3_5ForConditionalGeneration": replace(_QWEN3_5, uncounted=_VISION),
    "Qwen3_5MoeForCausalLM": replace(_QWEN3_5, block=_qwen),
    "Qwen3_5MoeForConditionalGeneration": replace(_QWEN3_5, block=_qwen, uncounted=_VISION),
}

_KNOWN = "use a model of a known architecture: " + ", ".join(
    name.removesuffix("ForCausalLM") for name in FAMILIES if name.endswith("ForCausalLM")
)


def read_decoder(config: Config) -> Decoder:
    """The layers that a config.json describes, of the text part where there are others.

    Raises:
        UnsupportedModel: naming the architecture, feature or field that is not known, and the cure.
    """
    architecture = _architecture(config)
    family = FAMILIES[architecture]
    text = {"sliding_window": family.window, **text_config(config)}
    refuse_foreign_features(text, architecture, family.features, _KNOWN)
    hidden = size(text, "hidden_size")
    norms = family.norms * family.norm_parameters * hidden
    kinds = layer_kinds(text, architecture, family.layer_kinds, _KNOWN)
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    return Decoder(
        architecture,
        tuple(
            Layer(family.mixer(text, family, kind), family.block(text, index), norms)
            for index, kind in enumerate(kinds)
        ),
        hidden,
        size(text, "vocab_size"),
        tied_embeddings=family.tied_by_default if tied is None else bool(tied),
        final_norm_parameters=family.norm_parameters * hidden,
        uncounted=family.uncounted,
    )


def _architecture(config: Config) -> str:
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list | tuple) and names else ""
    if name in FAMILIES:
        return name
    if not name:
        raise UnsupportedModel("model without an architecture", "config.json has no `architectures`", _KNOWN)
    refuse_foreign_features(text_config(config), name, (), _KNOWN)
    raise UnsupportedModel(name, "the roofline of it is not known", _KNOWN)
