from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ridgeline_exporters.engine import description
from ridgeline_exporters.engine.control import Limits
from ridgeline_exporters.engine.description import Description, describe, rank
from ridgeline_exporters.engine.settings import Settings
from ridgeline_exporters.roofline.bounds import Roof
from ridgeline_exporters.roofline.parallelism import Parallelism

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "tie_word_embeddings": False,
}
H100 = Settings(accelerator="H100-SXM5-80GB")


@pytest.fixture(autouse=True)
def _vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(description, "_vllm_version", lambda: "0.32.0")
    monkeypatch.setattr(description, "_device_name", lambda: "NVIDIA H100 80GB HBM3")


def synthetic_scheduler(config: dict[str, Any] | None = None, **changes: Any) -> Any:
    """The parts of a scheduler and its configuration that are read; `changes` replaces some of them by name."""
    values = {
        "dtype": "torch.bfloat16", "quantization": None, "cache_dtype": "auto", "tensor": 1, "pipeline": 1, "data": 1, "rank": 0, "whole": None,
        "classes": ["LlamaForCausalLM"],
        "chunked": True, "budget": 8192, "threshold": 0, "tokens": 4096, "served": ["chat"],
    } | changes  # fmt: skip
    found = dict(LLAMA if config is None else config)
    model = SimpleNamespace(
        dtype=values["dtype"],
        quantization=values["quantization"],
        hf_text_config=SimpleNamespace(to_dict=lambda: found),
        hf_config=SimpleNamespace(quantization_config=values["whole"]),
        architectures=values["classes"],
        served_model_name=values["served"],
        model="/models/llama",
    )
    parallel = SimpleNamespace(
        tensor_parallel_size=values["tensor"],
        pipeline_parallel_size=values["pipeline"],
        data_parallel_size=values["data"],
        data_parallel_rank=values["rank"],
        data_parallel_index=values["rank"],
    )
    return SimpleNamespace(
        vllm_config=SimpleNamespace(model_config=model, parallel_config=parallel),
        scheduler_config=SimpleNamespace(
            long_prefill_token_threshold=values["threshold"], enable_chunked_prefill=values["chunked"]
        ),
        cache_config=SimpleNamespace(
            cache_dtype=values["cache_dtype"], kv_cache_size_tokens=values["tokens"], num_gpu_blocks=100
        ),
        max_num_scheduled_tokens=values["budget"],
        block_size=16,
    )


def of(settings: Settings = H100, config: dict[str, Any] | None = None, **changes: Any) -> Description:
    return describe(synthetic_scheduler(config, **changes), settings)


def test_peaks_are_those_of_all_gpus_of_the_engine() -> None:
    assert of(tensor=4, pipeline=2).roof == Roof(8 * 989e12, 8 * 3350e9)


def test_an_accelerator_that_nobody_named_is_recognised_by_its_driver() -> None:
    described = of(Settings())
    assert described.accelerator == "H100-SXM5-80GB"
    assert described.coverage == "full"


@pytest.mark.parametrize(
    ("settings", "roof", "coverage"),
    [
        pytest.param(Settings(accelerator="H100-SXM5-80GB", peak_flops=5e14), Roof(1e15, 6.7e12), "full", id="one"),
        pytest.param(
            Settings(accelerator="X1", peak_flops=1e12, peak_memory_bytes_per_second=1e11),
            Roof(2e12, 2e11),
            "full",
            id="both, for an unknown accelerator",
        ),
        pytest.param(Settings(accelerator="X1", peak_flops=1e12), None, "work", id="too few"),
    ],
)
def test_given_peaks_replace_those_of_the_accelerator(settings: Settings, roof: Roof | None, coverage: str) -> None:
    described = of(settings, tensor=2)
    assert (described.roof, described.coverage) == (roof, coverage)


def test_fp8_weights_reach_for_the_fp8_peak() -> None:
    described = of(quantization="fp8")  # quantized while loading: the checkpoint says nothing
    assert described.shape is not None
    assert described.shape.weights.name == "fp8"
    assert described.roof == Roof(1978e12, 3350e9)


def test_a_model_without_a_roofline_is_described_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    described = of(config={**LLAMA, "architectures": ["MambaForCausalLM"]})
    assert (described.shape, described.coverage) == (None, "partial")
    assert "MambaForCausalLM" in caplog.text


def test_a_quantization_that_is_not_known_is_not_taken_for_16_bit(caplog: pytest.LogCaptureFixture) -> None:
    described = of(quantization="experts_int8")
    assert (described.shape, described.coverage) == (None, "partial")
    assert "quantization experts_int8" in caplog.text


def test_the_quantization_of_a_model_with_vision_is_said_of_the_whole(caplog: pytest.LogCaptureFixture) -> None:
    text = {**LLAMA, "architectures": None, "sliding_window": None}
    stored = {"quant_method": "compressed-tensors", "ignore": ["lm_head"], "config_groups": {"group_0": {
        "targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 128}}}}  # fmt: skip
    described = of(
        config=text, quantization="compressed-tensors", whole=stored, classes=["Mistral3ForConditionalGeneration"]
    )
    assert described.shape is not None
    assert described.shape.weights.name == "int4"
    assert described.coverage == "partial"
    assert "does not count the work of: vision encoder" in caplog.text


def test_gpus_that_share_a_model_are_counted_together() -> None:
    described = of(tensor=4, data=2)
    assert described.shape is not None
    assert described.shape.parallelism == Parallelism(4, 1, 2)
    assert described.shape.kv_bytes_per_token == 2 * 1024  # two KV heads on four GPUs


@pytest.mark.parametrize(
    ("changes", "kv_bytes", "kv_dtype"),
    [
        pytest.param({}, 1024, "bfloat16", id="16 bit"),
        pytest.param({"cache_dtype": "fp8_e4m3"}, 512, "fp8_e4m3", id="fp8 cache"),
        pytest.param({"dtype": "torch.float32"}, 2048, "float32", id="32 bit"),
    ],
)
def test_the_kv_cache_has_the_size_of_its_format(changes: dict[str, Any], kv_bytes: float, kv_dtype: str) -> None:
    described = of(**changes)
    assert described.shape is not None
    assert (described.shape.kv_bytes_per_token, described.kv_dtype) == (kv_bytes, kv_dtype)


def test_limits_capacity_and_name_are_read() -> None:
    described = of(budget=2048, threshold=512)
    assert described.maximum == Limits(2048, 512)
    assert (described.smallest_tokens, described.model) == (1, "chat")
    assert described.kv_capacity_tokens == 4096
    assert of(tokens=None).kv_capacity_tokens == 1600
    assert of(served=None).model == "/models/llama"


@pytest.mark.parametrize(
    ("scheduler", "expected"),
    [
        pytest.param(synthetic_scheduler(rank=3), 3, id="told"),
        pytest.param(synthetic_scheduler(rank=None), 0, id="not data-parallel"),
        pytest.param(object(), 0, id="another vLLM"),
    ],
)
def test_the_rank_chooses_the_port_and_is_0_where_it_is_not_told(scheduler: Any, expected: int) -> None:
    assert rank(scheduler) == expected


def test_where_prompts_are_not_cut_the_budget_cannot_shrink() -> None:
    assert of(chunked=False).smallest_tokens == 8192
