"""What a config.json says, in which formats, and which models are refused rather than guessed."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ridgeline_exporters.roofline.catalogue import MODELS
from ridgeline_exporters.roofline.model import ModelShape, UnsupportedModel

LLAMA = MODELS["llama-3.1-8b"]
MATRICES, HEAD, NORMS = 6_979_321_856, 525_336_576, 266_240  # the last: 65 norms of 4,096
COMPRESSED_FP8 = {
    "quant_method": "compressed-tensors",
    "ignore": ["lm_head"],
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}},
}
COMPRESSED_INT4 = {
    "quant_method": "compressed-tensors",
    "ignore": ["lm_head"],
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 64}}},
}


@pytest.mark.parametrize(
    ("weights", "layer_bytes", "head_bytes"),
    [
        pytest.param(None, 2, 2, id="nothing said means 16 bit"),
        pytest.param("bf16", 2, 2, id="bf16"),
        pytest.param("float16", 2, 2, id="fp16 is as wide"),
        pytest.param("torch.bfloat16", 2, 2, id="as torch prints it"),
        pytest.param("float32", 4, 4, id="fp32"),
        pytest.param("fp8", 1, 1, id="fp8"),
        pytest.param("int4", 0.5 + 2 / 128, 0.5 + 2 / 128, id="int4 with a scale per 128 weights"),
    ],
)
def test_weight_bytes_in_a_given_format(weights: str | None, layer_bytes: float, head_bytes: float) -> None:
    shape = ModelShape.from_config(LLAMA, weights=weights)
    assert shape.weight_bytes == layer_bytes * MATRICES + 2 * NORMS + head_bytes * HEAD
    assert shape.resident_bytes == shape.weight_bytes + 2 * HEAD


@pytest.mark.parametrize(
    ("quantization", "name", "layer_bytes", "head_bytes"),
    [
        pytest.param({"quant_method": "fp8"}, "fp8", 1, 2, id="fp8 keeps the LM head"),
        pytest.param(COMPRESSED_FP8, "fp8", 1, 2, id="compressed-tensors fp8"),
        pytest.param(COMPRESSED_FP8 | {"ignore": []}, "fp8", 1, 1, id="compressed-tensors that ignores nothing"),
        pytest.param(COMPRESSED_INT4, "int4", 0.5 + 2 / 64, 2, id="compressed-tensors int4 in groups of 64"),
        pytest.param({"quant_method": "gptq", "bits": 4, "group_size": 128}, "int4", 0.515625, 2, id="GPTQ"),
        pytest.param({"quant_method": "gptq", "bits": 4, "group_size": -1}, "int4", 0.5, 2, id="GPTQ without groups"),
        pytest.param({"quant_method": "awq", "bits": 4, "group_size": 32}, "int4", 0.5625, 2, id="AWQ"),
        pytest.param({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", 1, 2, id="ModelOpt"),
    ],
)
def test_a_quantized_checkpoint_says_its_format(
    quantization: Mapping[str, object], name: str, layer_bytes: float, head_bytes: float
) -> None:
    shape = ModelShape.from_config({**LLAMA, "quantization_config": quantization})
    assert shape.weights.name == name
    assert shape.weight_bytes == layer_bytes * MATRICES + 2 * NORMS + head_bytes * HEAD


def test_what_the_caller_says_wins_over_the_checkpoint() -> None:
    config = {**LLAMA, "quantization_config": COMPRESSED_INT4}
    assert ModelShape.from_config(config, weights="bf16").weight_bytes == 2 * (MATRICES + NORMS + HEAD)
    online = ModelShape.from_config(LLAMA, weights="fp8", lm_head="bf16")
    assert online.weight_bytes == MATRICES + 2 * NORMS + 2 * HEAD


@pytest.mark.parametrize(
    ("quantization", "kv_cache", "bytes_per_element"),
    [
        pytest.param(None, None, 2, id="16 bit by default"),
        pytest.param(None, "auto", 2, id="auto"),
        pytest.param(None, "fp8_e4m3", 1, id="vLLM's name of fp8"),
        pytest.param(
            {**COMPRESSED_FP8, "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "auto", 1, id="checkpoint"
        ),
        pytest.param(
            {**COMPRESSED_FP8, "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "bf16", 2, id="caller wins"
        ),
        pytest.param(
            {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, None, 1, id="ModelOpt"
        ),
    ],
)
def test_bytes_of_the_kv_cache(
    quantization: Mapping[str, object] | None, kv_cache: str | None, bytes_per_element: float
) -> None:
    config = LLAMA if quantization is None else {**LLAMA, "quantization_config": quantization}
    assert ModelShape.from_config(config, kv_cache=kv_cache).kv_bytes_per_element == bytes_per_element


def test_a_tied_embedding_is_stored_once_and_read_as_the_lm_head() -> None:
    shape = ModelShape.from_config(MODELS["llama-3.2-1b"])
    assert shape.weight_bytes == shape.resident_bytes == 2 * shape.parameters
    quantized = ModelShape.from_config(
        {**MODELS["llama-3.2-1b"], "quantization_config": COMPRESSED_FP8 | {"ignore": []}}
    )
    table = 128_256 * 2048
    assert quantized.weight_bytes == pytest.approx(shape.parameters - table + 2 * table, rel=1e-4)


def test_biases_count_as_parameters() -> None:
    plain = ModelShape.from_config(LLAMA)
    biased = ModelShape.from_config({**LLAMA, "attention_bias": True, "mlp_bias": True})
    each_layer = (4096 + 2 * 1024) + 4096 + 2 * 14336 + 4096
    assert biased.parameters - plain.parameters == 32 * each_layer
    assert biased.linear_flops_per_token == plain.linear_flops_per_token


def test_absent_fields_mean_what_the_architecture_means_by_them() -> None:
    config = {
        name: value for name, value in MODELS["llama-2-7b"].items() if name not in {"num_key_value_heads", "head_dim"}
    }
    config["tie_word_embeddings"] = None
    assert ModelShape.from_config(config) == ModelShape.from_config(MODELS["llama-2-7b"])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        pytest.param(
            {"architectures": ["MixtralForCausalLM"], "num_local_experts": 8}, "Mixtral.*mixture", id="Mixtral"
        ),
        pytest.param(
            {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 128}, "Qwen3Moe.*mixture", id="Qwen3 MoE"
        ),
        pytest.param({"architectures": ["DeepseekV2ForCausalLM"], "kv_lora_rank": 512}, "DeepseekV2.*latent", id="MLA"),
        pytest.param(
            {"architectures": ["Gemma2ForCausalLM"], "layer_types": ["sliding_attention", "full_attention"]},
            "Gemma2.*sliding attention",
            id="Gemma 2",
        ),
        pytest.param(
            {"architectures": ["Qwen3NextForCausalLM"], "layer_types": ["linear_attention"]},
            "Qwen3Next.*linear attention",
            id="linear attention",
        ),
        pytest.param(
            {"architectures": ["MistralForCausalLM"], "sliding_window": 4096, "max_position_embeddings": 32768},
            "sliding window attention",
            id="Mistral 7B v0.1",
        ),
        pytest.param(
            {"architectures": ["Phi3ForCausalLM"], "sliding_window": 2047, "max_position_embeddings": 4096},
            "sliding window attention",
            id="Phi-3 mini 4k",
        ),
        pytest.param(
            {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 4096, "use_sliding_window": True},
            "sliding window attention",
            id="Qwen2 with its window on",
        ),
        pytest.param({"num_local_experts": 4}, "mixture of experts", id="experts in a known architecture"),
        pytest.param({"architectures": ["OPTForCausalLM"]}, "OPTForCausalLM: the roofline", id="unknown architecture"),
        pytest.param({"architectures": None}, "without an architecture", id="no architecture"),
        pytest.param({"hidden_size": None}, "hidden_size = None", id="size missing"),
        pytest.param({"num_hidden_layers": "32"}, "num_hidden_layers = '32'", id="size of the wrong type"),
        pytest.param({"quantization_config": {"quant_method": "bitsandbytes"}}, "bitsandbytes", id="bitsandbytes"),
        pytest.param({"quantization_config": {"quant_method": "gptq", "bits": 8}}, "gptq", id="GPTQ with 8 bits"),
        pytest.param({"quantization_config": {"bits": 4}}, "without quant_method", id="nameless quantization"),
        pytest.param(
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int"}}},
                }
            },
            "8-bit int weights",
            id="int8",
        ),
    ],
)
def test_a_model_whose_roofline_is_not_known_is_refused_by_name_with_a_cure(
    changes: Mapping[str, object], named: str
) -> None:
    with pytest.raises(UnsupportedModel, match=named) as caught:
        ModelShape.from_config({**LLAMA, **changes})
    assert caught.value.cure in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"architectures": ["MistralForCausalLM"], "sliding_window": None}, id="no window"),
        pytest.param(
            {
                "architectures": ["Qwen2ForCausalLM"],
                "sliding_window": 131072,
                "use_sliding_window": False,
                "layer_types": ["full_attention"] * 32,
            },
            id="window switched off",
        ),
        pytest.param(
            {"architectures": ["Phi3ForCausalLM"], "sliding_window": 262144, "max_position_embeddings": 131072},
            id="window beyond the longest context",
        ),
    ],
)
def test_full_attention_is_recognised(changes: Mapping[str, object]) -> None:
    assert ModelShape.from_config({**LLAMA, **changes}).layers == 32


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"number format 'fp6'.*use bf16, fp8 or int4"):
        ModelShape.from_config(LLAMA, weights="fp6")
    with pytest.raises(UnsupportedModel, match="KV cache format 'int4'"):
        ModelShape.from_config(LLAMA, kv_cache="int4")
