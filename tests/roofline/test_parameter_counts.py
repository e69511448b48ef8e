"""Known models have the parameters that their publishers count (safetensors metadata on the Hub)."""

from __future__ import annotations

import pytest

from ridgeline_exporters.roofline.catalogue import MODELS, UnknownModel, find_model
from ridgeline_exporters.roofline.model import ModelShape

PUBLISHED = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.3-70b": 70_553_706_496,
    "yi-34b": 34_388_917_248,
    "mistral-7b": 7_241_732_096,
    "mistral-nemo-12b": 12_247_782_400,
    "mistral-small-24b": 23_572_403_200,
    "mistral-large-123b": 122_610_069_504,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "phi-4": 14_659_507_200,
    "granite-3.1-8b": 8_170_848_256,
}

PUBLISHED_IN_BILLIONS = {"minitron-4b": 4.19}  # its card gives no exact count

KIBIBYTES_OF_KV_PER_TOKEN = {
    "llama-3.1-70b": 320,
    "llama-3.1-8b": 128,
    "llama-2-7b": 512,
    "mistral-nemo-12b": 160,
    "qwen2.5-7b": 56,
    "yi-34b": 240,
    "llama-3.1-405b": 504,
}


def test_every_model_known_by_name_has_a_published_count_here() -> None:
    assert set(MODELS) == PUBLISHED.keys() | PUBLISHED_IN_BILLIONS.keys()


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_parameters_equal_the_published_count(name: str, parameters: int) -> None:
    assert ModelShape.from_config(MODELS[name]).parameters == parameters


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        *PUBLISHED_IN_BILLIONS.items(),
        ("llama-3.1-8b", 8.03),
        ("llama-3.1-70b", 70.55),
        ("mistral-7b", 7.24),
        ("qwen2.5-7b", 7.62),
    ],
)
def test_parameters_round_to_what_people_quote(name: str, billions: float) -> None:
    assert round(ModelShape.from_config(MODELS[name]).parameters / 1e9, 2) == billions


@pytest.mark.parametrize(("name", "kibibytes"), KIBIBYTES_OF_KV_PER_TOKEN.items())
def test_kv_bytes_per_token_at_16_bit(name: str, kibibytes: int) -> None:
    assert ModelShape.from_config(MODELS[name]).kv_bytes_per_token == kibibytes * 1024
    assert ModelShape.from_config(MODELS[name], kv_cache="fp8").kv_bytes_per_token == kibibytes * 512


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        pytest.param("llama-3.1-8b", "llama-3.1-8b", id="name"),
        pytest.param("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b", id="Hub id of the instruct model"),
        pytest.param("meta-llama/Meta-Llama-3.1-70B", "llama-3.1-70b", id="older Hub id"),
        pytest.param("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b", id="Qwen"),
    ],
)
def test_a_model_is_found_by_name_and_by_hub_id(spelling: str, name: str) -> None:
    assert find_model(spelling) is MODELS[name]


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownModel, match=r"'gpt-9' is not known by name; known are llama-2-7b, .*config\.json"):
        find_model("gpt-9")
