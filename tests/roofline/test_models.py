"""What a config.json says, in which formats, and which models are refused rather than guessed."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ridgeline_exporters.roofline.catalogue import MODELS
from ridgeline_exporters.roofline.model import ModelShape, UnsupportedModel
from ridgeline_exporters.roofline.quantization import quantization
from ridgeline_exporters.roofline.windows import AttentionWindow

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
        pytest.param("int8", 1, 1, id="int8"),
        pytest.param("int4", 0.5 + 2 / 128, 0.5 + 2 / 128, id="int4 with a scale per 128 weights"),
        pytest.param("mxfp4", 0.5 + 1 / 32, 0.5 + 1 / 32, id="mxfp4 with a byte per 32 weights"),
        pytest.param("nvfp4", 0.5 + 1 / 16, 0.5 + 1 / 16, id="nvfp4 with a byte per 16 weights"),
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
        pytest.param({"quant_method": "gptq", "bits": 8, "group_size": 64}, "int8", 1 + 2 / 64, 2, id="GPTQ, 8 bits"),
        pytest.param(
            {"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": False}, "int4", 0.5 + 2.5 / 64, 2,
            id="GPTQ with zero points",
        ),
        pytest.param(
            {"quant_method": "awq", "bits": 4, "group_size": 32}, "int4", 0.5 + 2.5 / 32, 2, id="AWQ has zero points"
        ),
        pytest.param(
            {"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", 1 + 4 / 128**2, 2, id="fp8 in blocks"
        ),
        pytest.param({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", 0.5625, 2, id="ModelOpt NVFP4"),
        pytest.param(
            {"quant_method": "compressed-tensors", "ignore": ["lm_head"], "config_groups": {"group_0": {
                "targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}}}},
            "nvfp4", 0.5625, 2, id="compressed-tensors NVFP4",
        ),
        pytest.param({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", 1, 2, id="ModelOpt"),
    ],
)  # fmt: skip
def test_a_quantized_checkpoint_says_its_format(
    quantization: Mapping[str, object], name: str, layer_bytes: float, head_bytes: float
) -> None:
    shape = ModelShape.from_config({**LLAMA, "quantization_config": quantization})
    assert shape.weights.name == name
    assert shape.weight_bytes == layer_bytes * MATRICES + 2 * NORMS + head_bytes * HEAD


def test_scales_per_channel_are_one_per_output() -> None:
    stored = {"quant_method": "gptq", "bits": 4, "group_size": -1}
    shape = ModelShape.from_config({**LLAMA, "quantization_config": stored})
    outputs = 32 * (4096 + 2 * 1024 + 4096 + 2 * 14_336 + 4096)
    assert shape.weight_bytes == MATRICES / 2 + 2 * outputs + 2 * (NORMS + HEAD)


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
    assert ModelShape.from_config(config).decoder == ModelShape.from_config(MODELS["llama-2-7b"]).decoder


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        pytest.param(
            {"architectures": ["DeepseekV32ForCausalLM"], "kv_lora_rank": 512, "index_topk": 2048},
            "DeepseekV32.*latent", id="sparse latent attention",
        ),
        pytest.param(
            {"architectures": ["DeepseekV3ForCausalLM"], "kv_lora_rank": 512, "index_topk": 2048},
            "DeepseekV3.*indexer", id="an indexer in a known architecture",
        ),
        pytest.param(
            {"architectures": ["JambaForCausalLM"], "mamba_d_state": 16}, "Jamba.*state-space", id="state-space layers"
        ),
        pytest.param(
            {"architectures": ["Gemma3nForCausalLM"], "num_kv_shared_layers": 10}, "Gemma3n.*share their KV",
            id="layers that share a cache",
        ),
        pytest.param({"layer_types": ["linear_attention"] * 32}, "Llama.*linear attention layers", id="foreign layers"),
        pytest.param({"layer_types": ["full_attention"] * 31}, "31 layer_types for 32", id="too few layer types"),
        pytest.param({"sliding_window": "4096"}, "sliding_window = '4096'", id="window of the wrong type"),
        pytest.param(
            {"architectures": ["MixtralForCausalLM"], "num_local_experts": 2, "num_experts_per_tok": 4},
            "4 of 2 experts", id="more experts chosen than there are",
        ),
        pytest.param({"architectures": ["MixtralForCausalLM"]}, "num_experts = None", id="experts missing"),
        pytest.param({"num_local_experts": 4}, "mixture of experts", id="experts in a known architecture"),
        pytest.param({"architectures": ["OPTForCausalLM"]}, "OPTForCausalLM: the roofline", id="unknown architecture"),
        pytest.param({"architectures": None}, "without an architecture", id="no architecture"),
        pytest.param({"hidden_size": None}, "hidden_size = None", id="size missing"),
        pytest.param({"num_hidden_layers": "32"}, "num_hidden_layers = '32'", id="size of the wrong type"),
        pytest.param({"quantization_config": {"quant_method": "bitsandbytes"}}, "bitsandbytes", id="bitsandbytes"),
        pytest.param({"quantization_config": {"quant_method": "gptq", "bits": 3}}, "gptq with 3", id="GPTQ, 3 bits"),
        pytest.param(
            {"quantization_config": {"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*mlp": {"bits": 8}}}},
            "overrides per module", id="GPTQ with several formats",
        ),
        pytest.param({"quantization_config": {"bits": 4}}, "without quant_method", id="nameless quantization"),
        pytest.param(
            {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {}}},
            "without weight formats", id="compressed-tensors without formats",
        ),
        pytest.param(
            {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"group_0": {
                "weights": {"num_bits": 2, "type": "int"}}}}},
            "2-bit int weights", id="int2",
        ),
    ],
)  # fmt: skip
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
    assert ModelShape.from_config({**LLAMA, **changes}).windows == ()


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"number format 'fp6'.*use one of bf16, fp32, fp8, int8, int4"):
        ModelShape.from_config(LLAMA, weights="fp6")
    with pytest.raises(UnsupportedModel, match="KV cache format 'int4'"):
        ModelShape.from_config(LLAMA, kv_cache="int4")


# ---------------------------------------------------------------- which layers see what


@pytest.mark.parametrize(
    ("changes", "layers", "full"),
    [
        pytest.param({"architectures": ["MistralForCausalLM"], "sliding_window": 64}, 6, [], id="Mistral: all slide"),
        pytest.param(
            {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 64, "use_sliding_window": True,
             "max_window_layers": 4}, 6, [0, 1, 2, 3], id="Qwen2: the first layers see all",
        ),
        pytest.param({"architectures": ["Gemma2ForCausalLM"], "sliding_window": 64}, 6, [1, 3, 5], id="Gemma 2: every other"),
        pytest.param({"architectures": ["Gemma3ForCausalLM"], "sliding_window": 64}, 13, [5, 11], id="Gemma 3: each sixth"),
        pytest.param(
            {"architectures": ["Gemma3ForCausalLM"], "sliding_window": 64,
             "layer_types": ["full_attention", "sliding_attention"]}, 2, [0], id="as the config says, if it does",
        ),
    ],
)  # fmt: skip
def test_layers_with_a_window(changes: Mapping[str, object], layers: int, full: list[int]) -> None:
    shape = ModelShape.from_config({**LLAMA, "num_hidden_layers": layers, **changes})
    seen = [layer.mixer.window for layer in shape.decoder.layers]
    assert [i for i, window in enumerate(seen) if window is None] == full
    assert {window for window in seen if window is not None} == set(shape.windows) == {AttentionWindow(64)}


def test_llama_4_alternates_chunks_and_whole_contexts_and_experts() -> None:
    shape = ModelShape.from_config(MODELS["llama-4-maverick"])
    layers = shape.decoder.layers
    assert [layer.mixer.window for layer in layers[:4]] == [AttentionWindow(8192, chunked=True)] * 3 + [None]
    assert [type(layer.feed_forward).__name__ for layer in layers[:2]] == ["FeedForward", "MixtureOfExperts"]


def test_the_text_part_of_a_model_with_vision_is_counted_and_the_rest_is_named() -> None:
    text = {name: value for name, value in MODELS["gemma-3-4b"].items() if name != "architectures"}
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text, "vision_config": {}}
    shape = ModelShape.from_config(whole)
    assert shape.parameters == ModelShape.from_config(MODELS["gemma-3-4b"]).parameters
    assert shape.uncounted == ("vision encoder",)
    flat = {**text, "architectures": ["Gemma3ForConditionalGeneration"]}  # as an engine's text config
    assert ModelShape.from_config(flat).decoder == shape.decoder
    assert ModelShape.from_config(MODELS["gemma-3-4b"]).uncounted == ()


# ---------------------------------------------------------------- formats by module


def expert_bytes(config: Mapping[str, object]) -> float:
    return ModelShape.from_config(config).experts[0].bytes_per_expert


def test_mxfp4_covers_the_experts_only() -> None:
    shape = ModelShape.from_config(MODELS["gpt-oss-20b"])
    expert, biases = 3 * 2880 * 2880, 3 * 2880
    assert shape.experts[0].bytes_per_expert == expert * (0.5 + 1 / 32) + 2 * biases
    rest = shape.parameters - 24 * 32 * (expert + biases) - 201_088 * 2880
    assert shape.fixed_weight_bytes == 2 * rest
    assert (shape.weights.name, shape.weights.activations) == ("mxfp4", "bf16")


@pytest.mark.parametrize(
    ("ignored", "layers"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param(["lm_head"], [], id="the head only"),
        pytest.param(["model.layers.0.self_attn.q_proj"], [0], id="by name"),
        pytest.param(["self_attn.q_proj"], [0, 1, 2], id="by the end of a name"),
        pytest.param(["model.layers.1"], [1], id="a whole layer"),
        pytest.param(["re:.*layers\\.[02]\\.self_attn.*"], [0, 2], id="by pattern"),
        pytest.param(["model.layers.*.self_attn"], [0, 1, 2], id="with a wildcard"),
        pytest.param(["model.layers.10"], [], id="a number is not the beginning of another"),
        pytest.param(["q_proj_extra"], [], id="a name is not the beginning of another"),
    ],
)
def test_modules_that_a_checkpoint_leaves_in_16_bit(ignored: list[str], layers: list[int]) -> None:
    config = {
        **LLAMA,
        "num_hidden_layers": 3,
        "quantization_config": {"quant_method": "fp8", "ignored_layers": ignored},
    }
    formats = quantization(None, None, config["quantization_config"])  # type: ignore[arg-type]
    found = [i for i in range(3) if formats.of(i, "self_attn.q_proj").name == "bf16"]
    assert found == layers


def test_groups_of_compressed_tensors_give_each_module_its_own_format() -> None:
    stored = {
        "quant_method": "compressed-tensors",
        "ignore": ["lm_head", "re:.*mlp.gate$"],
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}},
            "group_1": {
                "targets": ["re:.*experts.*"],
                "weights": {"num_bits": 4, "type": "int", "group_size": 128, "symmetric": True},
            },
        },
    }
    config = {**MODELS["qwen3-30b-a3b"], "quantization_config": stored}
    assert expert_bytes(config) == 3 * 2048 * 768 * (0.5 + 2 / 128)
    shape = ModelShape.from_config(config)
    layer = 2048 * 4096 + 4 * 4096 + 2 * (2048 * 512 + 4 * 512) + 4096 * 2048 + 4 * 2048  # a scale per output
    router, norms = 2 * 2048 * 128, 2 * (2 * 2048 + 2 * 128)
    assert shape.fixed_weight_bytes == 48 * (layer + router + norms) + 2 * (151_936 * 2048 + 2048)


def test_int8_with_activations_uses_the_int8_tensor_cores_and_weight_only_does_not() -> None:
    def activations(inputs: object) -> str:
        group = {"weights": {"num_bits": 8, "type": "int", "strategy": "channel"}, "input_activations": inputs}
        stored = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
        return ModelShape.from_config({**LLAMA, "quantization_config": stored}).weights.activations

    assert activations({"num_bits": 8, "type": "int"}) == "int8"
    assert activations(None) == "bf16"


@pytest.mark.parametrize(
    ("name", "gibibytes"),
    # arXiv:2508.10925, table 1: checkpoint sizes.
    [pytest.param("gpt-oss-120b", 60.8, id="120b"), pytest.param("gpt-oss-20b", 12.8, id="20b")],
)
def test_gpt_oss_has_the_published_checkpoint_size(name: str, gibibytes: float) -> None:
    assert round(ModelShape.from_config(MODELS[name]).resident_bytes / 2**30, 1) == gibibytes
