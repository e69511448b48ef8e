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
    "mistral-7b-v0.1": 7_241_732_096,
    "phi-3-mini-4k": 3_821_079_552,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 999_885_952,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "olmoe-1b-7b": 6_919_161_856,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-coder-480b-a35b": 480_154_875_392,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_419_200,  # without the module that predicts a second token
    "deepseek-r1": 671_026_419_200,
}

# Where no exact count of what is read here is published: model cards and reports, rounded as they round.
PUBLISHED_IN_BILLIONS = {
    "minitron-4b": 4.19,
    "qwen2-57b-a14b": 57.41,
    "gpt-oss-20b": 20.91,  # arXiv:2508.10925, table 1
    "gpt-oss-120b": 116.83,
    # Of the decoder: embeddings and the others of arXiv:2503.19786, table 1, which counts vision apart.
    "gemma-3-4b": 3.88,
    "gemma-3-12b": 11.77,
}

# Published to the billion, some with parts that are not read here.
PUBLISHED_TO_THE_BILLION = {
    "gemma-3-27b": 27,
    "qwen3-next-80b-a3b": 80,
    "llama-4-scout": 108,  # 109 with the vision encoder
    "llama-4-maverick": 401,  # 400 to 402, with it
    "glm-4.5": 353,  # 355 and 358 with the module that predicts a second token
    "glm-4.5-air": 107,  # 106 to 110 with it
    "kimi-k2": 1026,  # "1 T"
}

# Activated parameters per token, as published: of those that leave the embedding table out, without it.
ACTIVE_IN_BILLIONS = {
    "mixtral-8x7b": (12.9, True),  # arXiv:2401.04088: 13B
    "mixtral-8x22b": (39.2, True),  # "39B"
    "olmoe-1b-7b": (1.3, True),
    "qwen1.5-moe-a2.7b": (2.7, True),
    "qwen2-57b-a14b": (14.2, True),
    "qwen3-30b-a3b": (3.4, True),  # "3.3B", cut off
    "qwen3-235b-a22b": (22.2, True),
    "qwen3-coder-480b-a35b": (35.5, True),
    "gpt-oss-20b": (3.6, False),
    "gpt-oss-120b": (5.1, False),
    "deepseek-v2-lite": (2.5, False),  # "2.4B", cut off
    "deepseek-v2": (21.4, True),  # "21B"
    "deepseek-v3": (36.6, False),  # "37B"
    "kimi-k2": (31.7, False),  # "32B"
    "llama-4-scout": (17.2, True),  # "17B"
    "llama-4-maverick": (17.2, True),
    "glm-4.5": (32.9, False),  # "32B", cut off
    "glm-4.5-air": (12.8, False),  # "12B", cut off
    "qwen3-next-80b-a3b": (3.6, False),  # "3B"
}

KIBIBYTES_OF_KV_PER_TOKEN = {
    "llama-3.1-70b": 320,
    "llama-3.1-8b": 128,
    "llama-2-7b": 512,
    "mistral-nemo-12b": 160,
    "qwen2.5-7b": 56,
    "yi-34b": 240,
    "llama-3.1-405b": 504,
    "gemma-3-27b": 496,
    "mixtral-8x7b": 128,
    "qwen3-235b-a22b": 188,
    "gpt-oss-120b": 72,
    "deepseek-v3": 68.625,  # 61 layers of 512 + 64 elements, once for all heads
    "qwen3-next-80b-a3b": 24,  # 12 of its 48 layers have a cache
}


def test_every_model_known_by_name_has_a_published_count_here() -> None:
    assert set(MODELS) == PUBLISHED.keys() | PUBLISHED_IN_BILLIONS.keys() | PUBLISHED_TO_THE_BILLION.keys()


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


@pytest.mark.parametrize(("name", "billions"), PUBLISHED_TO_THE_BILLION.items())
def test_parameters_round_to_the_billions_that_are_published(name: str, billions: int) -> None:
    assert round(ModelShape.from_config(MODELS[name]).parameters / 1e9) == billions


def test_every_mixture_of_experts_has_a_published_active_count_here() -> None:
    assert {name for name, config in MODELS.items() if ModelShape.from_config(config).experts} == {
        *ACTIVE_IN_BILLIONS, "deepseek-r1"
    }  # fmt: skip


@pytest.mark.parametrize(("name", "billions", "with_table"), [(k, *v) for k, v in ACTIVE_IN_BILLIONS.items()])
def test_active_parameters_round_to_what_is_published(name: str, billions: float, with_table: bool) -> None:
    shape = ModelShape.from_config(MODELS[name])
    table = 0 if with_table else shape.decoder.vocabulary * shape.decoder.hidden
    assert round((shape.active_parameters - table) / 1e9, 1) == billions


@pytest.mark.parametrize(("name", "kibibytes"), KIBIBYTES_OF_KV_PER_TOKEN.items())
def test_kv_bytes_per_token_at_16_bit(name: str, kibibytes: float) -> None:
    assert ModelShape.from_config(MODELS[name]).kv_bytes_per_token == kibibytes * 1024
    assert ModelShape.from_config(MODELS[name], kv_cache="fp8").kv_bytes_per_token == kibibytes * 512


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        pytest.param("llama-3.1-8b", "llama-3.1-8b", id="name"),
        pytest.param("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b", id="Hub id of the instruct model"),
        pytest.param("meta-llama/Meta-Llama-3.1-70B", "llama-3.1-70b", id="older Hub id"),
        pytest.param("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b", id="Qwen"),
        pytest.param("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b", id="Qwen with a date"),
        pytest.param("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b", id="Mixtral"),
        pytest.param("mistralai/Mistral-7B-v0.1", "mistral-7b-v0.1", id="the Mistral with a window"),
        pytest.param("mistralai/Mistral-7B-Instruct-v0.2", "mistral-7b", id="the Mistral without"),
        pytest.param("google/gemma-3-27b-it", "gemma-3-27b", id="Gemma"),
        pytest.param("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama-4-scout", id="Llama 4"),
        pytest.param("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b", id="Llama 2"),
        pytest.param("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3", id="DeepSeek"),
        pytest.param("openai/gpt-oss-120b", "gpt-oss-120b", id="gpt-oss"),
    ],
)
def test_a_model_is_found_by_name_and_by_hub_id(spelling: str, name: str) -> None:
    assert find_model(spelling) is MODELS[name]


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownModel, match=r"'gpt-9' is not known by name; known are llama-2-7b, .*config\.json"):
        find_model("gpt-9")
