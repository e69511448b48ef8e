"""Models known by name: the fields of their config.json that the roofline needs, from their repositories on the Hub.

A name stands for the base model and for its instruct variants, which have the same sizes, in the format in which it is
published: DeepSeek-V3 and Kimi K2 in FP8, gpt-oss with experts in MXFP4, the others in 16 bit. Of models that see images
the decoder of text is counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

Config = Mapping[str, object]


def _dense(
    architecture: str,
    layers: int,
    hidden: int,
    heads: tuple[int, int, int],
    feed_forward: int,
    vocabulary: int,
    tied: bool = False,
) -> Config:
    query_heads, kv_heads, head_size = heads
    return {
        "architectures": [f"{architecture}ForCausalLM"],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": query_heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_size,
        "intermediate_size": feed_forward,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
        "sliding_window": None,
    }


def _gemma(generation: int, layers: int, hidden: int, heads: tuple[int, int, int], feed_forward: int,
           vocabulary: int, window: int) -> Config:  # fmt: skip
    config = _dense(f"Gemma{generation}", layers, hidden, heads, feed_forward, vocabulary, tied=True)
    return {**config, "sliding_window": window}


def _sparse(
    base: Config,
    experts: tuple[int, int, int],
    names: tuple[str, str] = ("num_experts", "moe_intermediate_size"),
    **more: object,
) -> Config:
    """A model with (number of experts, experts of a token, their width), under the names of its architecture."""
    count, taken, width = experts
    return {**base, names[0]: count, "num_experts_per_tok": taken, names[1]: width, **more}


def _deepseek(
    version: str,
    layers: int,
    hidden: int,
    heads: int,
    query_rank: int | None,
    feed_forward: int,
    vocabulary: int,
    experts: tuple[int, int, int],
    shared: int,
    dense_layers: int = 1,
    **more: object,
) -> Config:
    latent = {"q_lora_rank": query_rank, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    dense = _dense(f"Deepseek{version}", layers, hidden, (heads, heads, 128), feed_forward, vocabulary)
    return _sparse(
        {**dense, **latent, "v_head_dim": 128}, experts, ("n_routed_experts", "moe_intermediate_size"),
        n_shared_experts=shared, first_k_dense_replace=dense_layers, **more,
    )  # fmt: skip


def _gpt_oss(layers: int, experts: int) -> Config:
    dense = _dense("GptOss", layers, 2880, (64, 8, 64), 2880, 201088)
    return _sparse(
        dense, (experts, 4, 2880), ("num_local_experts", "intermediate_size"), sliding_window=128, attention_bias=True,
        quantization_config={
            "quant_method": "mxfp4",
            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
                                       "lm_head"],
        },
    )  # fmt: skip


def _llama4(experts: int, sparse_step: int) -> Config:
    dense = _dense("Llama4", 48, 5120, (40, 8, 128), 8192, 202048)
    return _sparse(
        dense, (experts, 1, 8192), ("num_local_experts", "intermediate_size"), intermediate_size_mlp=16384,
        interleave_moe_layer_step=sparse_step, attention_chunk_size=8192,
    )  # fmt: skip


_FP8_IN_BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
_MIXTRAL = ("num_local_experts", "intermediate_size")
_GLM = ("n_routed_experts", "moe_intermediate_size")

# architecture, layers, hidden, (query heads, KV heads, head size), feed-forward, vocabulary, embeddings tied
MODELS: Mapping[str, Config] = {
    "llama-2-7b": _dense("Llama", 32, 4096, (32, 32, 128), 11008, 32000),
    "llama-2-13b": _dense("Llama", 40, 5120, (40, 40, 128), 13824, 32000),
    "llama-2-70b": _dense("Llama", 80, 8192, (64, 8, 128), 28672, 32000),
    "llama-3.1-8b": _dense("Llama", 32, 4096, (32, 8, 128), 14336, 128256),
    "llama-3.1-70b": _dense("Llama", 80, 8192, (64, 8, 128), 28672, 128256),
    "llama-3.1-405b": _dense("Llama", 126, 16384, (128, 8, 128), 53248, 128256),
    "llama-3.2-1b": _dense("Llama", 16, 2048, (32, 8, 64), 8192, 128256, tied=True),
    "llama-3.2-3b": _dense("Llama", 28, 3072, (24, 8, 128), 8192, 128256, tied=True),
    "llama-3.3-70b": _dense("Llama", 80, 8192, (64, 8, 128), 28672, 128256),
    "yi-34b": _dense("Llama", 60, 7168, (56, 8, 128), 20480, 64000),
    "mistral-7b": _dense("Mistral", 32, 4096, (32, 8, 128), 14336, 32000),  # v0.2
    "mistral-7b-v0.1": {**_dense("Mistral", 32, 4096, (32, 8, 128), 14336, 32000), "sliding_window": 4096},
    "mistral-nemo-12b": _dense("Mistral", 40, 5120, (32, 8, 128), 14336, 131072),
    "mistral-small-24b": _dense("Mistral", 40, 5120, (32, 8, 128), 32768, 131072),
    "mistral-large-123b": _dense("Mistral", 88, 12288, (96, 8, 128), 28672, 32768),
    "qwen2.5-0.5b": _dense("Qwen2", 24, 896, (14, 2, 64), 4864, 151936, tied=True),
    "qwen2.5-1.5b": _dense("Qwen2", 28, 1536, (12, 2, 128), 8960, 151936, tied=True),
    "qwen2.5-3b": _dense("Qwen2", 36, 2048, (16, 2, 128), 11008, 151936, tied=True),
    "qwen2.5-7b": _dense("Qwen2", 28, 3584, (28, 4, 128), 18944, 152064),
    "qwen2.5-14b": _dense("Qwen2", 48, 5120, (40, 8, 128), 13824, 152064),
    "qwen2.5-32b": _dense("Qwen2", 64, 5120, (40, 8, 128), 27648, 152064),
    "qwen2.5-72b": _dense("Qwen2", 80, 8192, (64, 8, 128), 29568, 152064),
    "qwen3-0.6b": _dense("Qwen3", 28, 1024, (16, 8, 128), 3072, 151936, tied=True),
    "qwen3-4b": _dense("Qwen3", 36, 2560, (32, 8, 128), 9728, 151936, tied=True),
    "qwen3-8b": _dense("Qwen3", 36, 4096, (32, 8, 128), 12288, 151936),
    "qwen3-14b": _dense("Qwen3", 40, 5120, (40, 8, 128), 17408, 151936),
    "qwen3-32b": _dense("Qwen3", 64, 5120, (64, 8, 128), 25600, 151936),
    "phi-3-mini-4k": {
        **_dense("Phi3", 32, 3072, (32, 32, 96), 8192, 32064),
        "sliding_window": 2047,
        "max_position_embeddings": 4096,
    },
    "phi-4": _dense("Phi3", 40, 5120, (40, 10, 128), 17920, 100352),
    "granite-3.1-8b": _dense("Granite", 40, 4096, (32, 8, 128), 12800, 49155, tied=True),
    "minitron-4b": _dense("Nemotron", 32, 3072, (24, 8, 128), 9216, 256000),
    "gemma-2-2b": _gemma(2, 26, 2304, (8, 4, 256), 9216, 256000, 4096),
    "gemma-2-9b": _gemma(2, 42, 3584, (16, 8, 256), 14336, 256000, 4096),
    "gemma-2-27b": _gemma(2, 46, 4608, (32, 16, 128), 36864, 256000, 4096),
    "gemma-3-1b": _gemma(3, 26, 1152, (4, 1, 256), 6912, 262144, 512),
    "gemma-3-4b": _gemma(3, 34, 2560, (8, 4, 256), 10240, 262208, 1024),
    "gemma-3-12b": _gemma(3, 48, 3840, (16, 8, 256), 15360, 262208, 1024),
    "gemma-3-27b": _gemma(3, 62, 5376, (32, 16, 128), 21504, 262208, 1024),
    # experts: (number, of a token, width)
    "mixtral-8x7b": _sparse(
        _dense("Mixtral", 32, 4096, (32, 8, 128), 14336, 32000), (8, 2, 14336), _MIXTRAL),
    "mixtral-8x22b": _sparse(
        _dense("Mixtral", 56, 6144, (48, 8, 128), 16384, 32000), (8, 2, 16384), _MIXTRAL),
    "olmoe-1b-7b": _sparse(
        _dense("Olmoe", 16, 2048, (16, 16, 128), 1024, 50304), (64, 8, 1024), ("num_experts", "intermediate_size")),
    "qwen1.5-moe-a2.7b": _sparse(
        _dense("Qwen2Moe", 24, 2048, (16, 16, 128), 5632, 151936), (60, 4, 1408), shared_expert_intermediate_size=5632),
    "qwen2-57b-a14b": _sparse(
        _dense("Qwen2Moe", 28, 3584, (28, 4, 128), 18944, 151936), (64, 8, 2560),
        shared_expert_intermediate_size=20480),
    "qwen3-30b-a3b": _sparse(_dense("Qwen3Moe", 48, 2048, (32, 4, 128), 6144, 151936), (128, 8, 768)),
    "qwen3-235b-a22b": _sparse(_dense("Qwen3Moe", 94, 4096, (64, 4, 128), 12288, 151936), (128, 8, 1536)),
    "qwen3-coder-480b-a35b": _sparse(_dense("Qwen3Moe", 62, 6144, (96, 8, 128), 8192, 151936), (160, 8, 2560)),
    "qwen3-next-80b-a3b": _sparse(
        _dense("Qwen3Next", 48, 2048, (16, 2, 256), 5120, 151936), (512, 10, 512), shared_expert_intermediate_size=512,
        linear_num_key_heads=16, linear_num_value_heads=32, linear_key_head_dim=128, linear_value_head_dim=128,
        linear_conv_kernel_dim=4, full_attention_interval=4),
    "gpt-oss-20b": _gpt_oss(24, 32),
    "gpt-oss-120b": _gpt_oss(36, 128),
    "llama-4-scout": _llama4(16, 1),
    "llama-4-maverick": _llama4(128, 2),
    "glm-4.5": _sparse(
        _dense("Glm4Moe", 92, 5120, (96, 8, 128), 12288, 151552), (160, 8, 1536), _GLM, n_shared_experts=1,
        first_k_dense_replace=3, use_qk_norm=True, attention_bias=True),
    "glm-4.5-air": _sparse(
        _dense("Glm4Moe", 46, 4096, (96, 8, 128), 10944, 151552), (128, 8, 1408), _GLM, n_shared_experts=1,
        first_k_dense_replace=1, use_qk_norm=False, attention_bias=True),
    # layers, hidden, heads, query rank, feed-forward, vocabulary, experts, shared experts, dense layers
    "deepseek-v2-lite": _deepseek("V2", 27, 2048, 16, None, 10944, 102400, (64, 6, 1408), 2),
    "deepseek-v2": _deepseek("V2", 60, 5120, 128, 1536, 12288, 102400, (160, 6, 1536), 2),
    "deepseek-v3": _deepseek("V3", 61, 7168, 128, 1536, 18432, 129280, (256, 8, 2048), 1, 3,
                             quantization_config=_FP8_IN_BLOCKS),
    "deepseek-r1": _deepseek("V3", 61, 7168, 128, 1536, 18432, 129280, (256, 8, 2048), 1, 3,
                             quantization_config=_FP8_IN_BLOCKS),
    "kimi-k2": _deepseek("V3", 61, 7168, 64, 1536, 18432, 163840, (384, 8, 2048), 1,
                         quantization_config=_FP8_IN_BLOCKS),
}  # fmt: skip

# What Hub ids add to a name without changing sizes.
_ADDITIONS = re.compile(r"^meta-|-(instruct|it|chat|hf|base|pt|thinking|17b-16e|17b-128e|fp8|v0\.[123]|\d{4})(?=-|$)")


class UnknownModel(KeyError):  # noqa: N818 - names what is wrong, as the conditions of a fleet do
    """No model has this name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.message = (
            f"model {name!r} is not known by name; known are {', '.join(MODELS)}; "
            "use one of these, or give the folder or file of the model's config.json"
        )
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message  # KeyError would print the repr


def find_model(name: str) -> Config:
    """The config of the model with this name or Hub id (meta-llama/Llama-3.1-8B-Instruct), in any case.

    Raises:
        UnknownModel: with the names that are known.
    """
    last = name.lower().rpartition("/")[2]
    for plain in (last, _ADDITIONS.sub("", last)):
        if plain in MODELS:
            return MODELS[plain]
    raise UnknownModel(name)
