"""Small models of every kind that the roofline knows, for the implementations in transformers and vLLM to build."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_BASE: Mapping[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _model(architecture: str, **fields: Any) -> dict[str, Any]:
    return {**_BASE, "architectures": [f"{architecture}ForCausalLM"], **fields}


_LATENT = {
    "num_key_value_heads": 4, "head_dim": 16, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16,
    "v_head_dim": 48, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 2,
    "moe_intermediate_size": 48, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1,
}  # fmt: skip
_LINEAR = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
}  # fmt: skip
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}

SMALL: Mapping[str, dict[str, Any]] = {
    "llama": _model("Llama"),
    "llama with biases": _model("Llama", attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "mistral": _model("Mistral", sliding_window=None),
    "mistral with a window": _model("Mistral", sliding_window=16),
    "qwen2": _model("Qwen2", head_dim=16),
    "qwen2 with a window": _model("Qwen2", use_sliding_window=True, sliding_window=16, max_window_layers=2),
    "qwen3": _model("Qwen3"),
    "phi3": _model("Phi3", sliding_window=24),
    "granite": _model("Granite"),
    "nemotron": _model("Nemotron"),
    "smollm3": _model("SmolLM3", tie_word_embeddings=True),
    "gemma2": _model("Gemma2", sliding_window=16, tie_word_embeddings=True),
    "gemma3": _model("Gemma3", sliding_window=16, sliding_window_pattern=3, tie_word_embeddings=True),
    "mixtral": _model("Mixtral", num_local_experts=8, num_experts_per_tok=2),
    "olmoe": _model("Olmoe", num_experts=8, num_experts_per_tok=2, head_dim=16, num_key_value_heads=4),
    "qwen2 moe": _model(
        "Qwen2Moe", **_EXPERTS, head_dim=16, shared_expert_intermediate_size=80, decoder_sparse_step=2
    ),
    "qwen3 moe": _model("Qwen3Moe", **_EXPERTS, mlp_only_layers=[1]),
    "gpt-oss": _model("GptOss", num_local_experts=8, num_experts_per_tok=2, sliding_window=16, attention_bias=True),
    "glm4 moe": _model(
        "Glm4Moe", n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=48, n_shared_experts=1,
        first_k_dense_replace=1, use_qk_norm=True, attention_bias=True, num_mtp_layers=0,
    ),
    "deepseek v2": _model("DeepseekV2", **_LATENT, q_lora_rank=None),
    "deepseek v3": _model("DeepseekV3", **_LATENT, q_lora_rank=40, num_mtp_layers=0),
    "llama4": _model(
        "Llama4", num_local_experts=4, num_experts_per_tok=1, intermediate_size_mlp=80, interleave_moe_layer_step=2,
        attention_chunk_size=32,
    ),
    "qwen3 next": _model("Qwen3Next", **_EXPERTS, **_LINEAR, shared_expert_intermediate_size=80),
    "qwen3.5": _model("Qwen3_5", **_LINEAR),
    "qwen3.5 moe": _model("Qwen3_5Moe", **_EXPERTS, **_LINEAR, shared_expert_intermediate_size=80),
}  # fmt: skip
