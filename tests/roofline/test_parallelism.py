"""What the GPUs of an engine hold, read and compute more than once, counted GPU by GPU."""

from __future__ import annotations

import pytest

from ridgeline_exporters.roofline.catalogue import MODELS
from ridgeline_exporters.roofline.feed_forward import MixtureOfExperts
from ridgeline_exporters.roofline.mixers import Attention
from ridgeline_exporters.roofline.model import ModelShape
from ridgeline_exporters.roofline.parallelism import ONE_GPU, Parallelism
from ridgeline_exporters.roofline.work import Sequence, step_work


def of(name: str, shared: Parallelism = ONE_GPU) -> ModelShape:
    return ModelShape.from_config(MODELS[name], parallelism=shared)


def small_parameters(shape: ModelShape) -> int:
    """Norms and biases."""
    layers = shape.decoder.layers
    return shape.decoder.final_norm_parameters + sum(
        layer.norm_parameters + layer.mixer.small_parameters + layer.feed_forward.small_parameters for layer in layers
    )


@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
def test_up_to_as_many_gpus_as_kv_heads_only_norms_are_kept_more_than_once(tensor: int) -> None:
    alone, shared = of("llama-3.1-70b"), of("llama-3.1-70b", Parallelism(tensor))
    assert shared.kv_bytes_per_token == alone.kv_bytes_per_token
    assert shared.weight_bytes == alone.weight_bytes + (tensor - 1) * 2 * small_parameters(alone)
    assert shared.linear_flops_per_token == alone.linear_flops_per_token
    assert shared.parameters == alone.parameters


def test_more_gpus_than_kv_heads_keep_copies_of_them() -> None:
    alone, shared = of("qwen2.5-7b"), of("qwen2.5-7b", Parallelism(tensor=28))
    copies = 28 / 4
    assert shared.kv_bytes_per_token == copies * alone.kv_bytes_per_token
    keys_and_values = 28 * 2 * 3584 * 4 * 128
    assert shared.linear_flops_per_token - alone.linear_flops_per_token == 2 * (copies - 1) * keys_and_values
    _, one = step_work(alone, [], [Sequence(1, 1000)])
    _, all_gpus = step_work(shared, [], [Sequence(1, 1000)])
    assert all_gpus.kv_read_bytes == copies * one.kv_read_bytes


def test_the_latent_cache_and_what_makes_it_are_on_every_gpu() -> None:
    alone, shared = of("deepseek-v3"), of("deepseek-v3", Parallelism(tensor=8))
    assert alone.kv_bytes_per_token == 61 * (512 + 64) * 2
    assert shared.kv_bytes_per_token == 8 * alone.kv_bytes_per_token
    latent = 61 * (7168 * 1536 + 7168 * (512 + 64))
    routers = 58 * 7168 * 256
    assert shared.linear_flops_per_token - alone.linear_flops_per_token == 7 * 2 * (latent + routers)
    assert shared.decode.flops_per_pair == alone.decode.flops_per_pair  # heads are shared


def test_engines_of_a_data_parallel_group_share_the_experts() -> None:
    alone, shared = of("qwen3-235b-a22b"), of("qwen3-235b-a22b", Parallelism(data=8))
    block = alone.experts[0].block
    assert isinstance(block, MixtureOfExperts)
    expert = 2 * 3 * 4096 * 1536
    assert alone.resident_bytes - shared.resident_bytes == pytest.approx(7 / 8 * 94 * 128 * expert)
    # Eight engines with ten tokens each hit what one engine with eighty hits, and each reads an eighth of that.
    assert shared.expert_bytes(10) == pytest.approx(alone.expert_bytes(80) / 8)
    assert shared.fixed_weight_bytes == alone.fixed_weight_bytes
    assert shared.kv_bytes_per_token == alone.kv_bytes_per_token


def test_pipeline_stages_change_no_sum() -> None:
    alone, shared = of("mixtral-8x7b"), of("mixtral-8x7b", Parallelism(pipeline=4))
    assert Parallelism(tensor=2, pipeline=4).gpus == 8
    assert (shared.weight_bytes, shared.kv_bytes_per_token) == (alone.weight_bytes, alone.kv_bytes_per_token)
    assert shared.prefill == alone.prefill


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-27b", "gpt-oss-120b", "qwen3-next-80b-a3b", "llama-4-scout"])
@pytest.mark.parametrize("tensor", [2, 8, 16])
def test_the_sum_over_gpus_is_what_each_has_in_its_memory(name: str, tensor: int) -> None:
    """KV cache, counted per GPU: whole KV heads, at least one."""
    shape = of(name, Parallelism(tensor))
    heads = [
        (max(1, layer.mixer.kv_heads // tensor), layer.mixer.head_size)
        for layer in shape.decoder.layers
        if isinstance(layer.mixer, Attention)
    ]
    assert shape.kv_bytes_per_token == tensor * sum(2 * each * head_size * 2 for each, head_size in heads)
