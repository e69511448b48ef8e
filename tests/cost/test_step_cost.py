"""Seconds of a step: never below the roofline, never shorter for more work, and as counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost.efficiency import MICRO
from ridgeline.cost.hardware import H100, VLLM_2023
from ridgeline.cost.step_cost import EngineCost
from ridgeline_exporters.roofline import catalogue, hardware
from ridgeline_exporters.roofline.bounds import Roof
from ridgeline_exporters.roofline.model import ModelShape
from ridgeline_exporters.roofline.parallelism import Parallelism
from ridgeline_exporters.roofline.windows import attended_pairs
from ridgeline_exporters.roofline.work import Sequence, step_work
from tests.cost.engines import engine

ENGINES = [
    engine(),
    engine(weights="fp8"),
    engine(weights="int4"),
    engine("llama-2-7b", "a100"),
    engine("llama-3.1-70b", "h100", 4),
    engine("llama-3.1-70b", "h200", 2, "fp8"),
    engine("qwen2.5-7b", "h100", 8),
    engine("qwen2.5-0.5b", "l40s"),
    engine("llama-3.1-405b", "b200", 8),
    engine("mixtral-8x7b", "h100", 2),
    engine("deepseek-v3", "h200", 8, "fp8"),
    engine("gpt-oss-120b", "h100", 2),
    engine("gemma-3-27b", "a100", 2),
    engine("qwen3-next-80b-a3b", "h200", 2),
    engine("llama-4-scout", "h100", 4, "fp8"),
]
engines = st.sampled_from(ENGINES)
tokens = st.integers(0, 16384)
pairs = st.integers(0, 10**9)
kv_tokens = st.integers(0, 10**6)
sequences = st.integers(0, 1024)


@given(engines, tokens, pairs, kv_tokens, sequences, kv_tokens, sequences, st.integers(0, 5), st.integers(1, 5000))
def test_no_step_gets_shorter_by_holding_more(
    cost: EngineCost,
    prefill_tokens: int,
    prefill_pairs: int,
    prefill_kv: int,
    decodes: int,
    decode_kv: int,
    samples: int,
    argument: int,
    more: int,
) -> None:
    less = [prefill_tokens, prefill_pairs, prefill_kv, decodes, decode_kv, samples]
    larger = list(less)
    larger[argument] += more
    assert cost.seconds(*larger) >= cost.seconds(*less)


@given(engines, st.integers(1, 2048), kv_tokens)
def test_a_decode_run_is_the_decode_only_step(cost: EngineCost, decodes: int, kv: int) -> None:
    first, second = cost.decode_run(decodes)
    assert first + second * kv == cost.seconds(0, 0, 0, decodes, kv, decodes)
    assert first > 0.0
    assert second > 0.0


@given(
    st.sampled_from(["llama-3.1-8b", "llama-2-7b", "mixtral-8x7b", "deepseek-v2", "gpt-oss-20b", "gemma-3-27b"]),
    st.sampled_from(sorted(hardware.ACCELERATORS)),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["bf16", "fp8", "int4"]),
    st.lists(st.tuples(st.integers(1, 4096), st.integers(0, 30000)), max_size=4),
    st.lists(st.integers(1, 30000), max_size=64),
)
def test_no_step_is_faster_than_the_roofline(
    model: str, gpu: str, gpus: int, weights: str, prompts: list[tuple[int, int]], contexts: list[int]
) -> None:
    accelerator, config = hardware.find(gpu), catalogue.find_model(model)
    shape = ModelShape.from_config(config, weights, parallelism=Parallelism(gpus))
    prefills = [Sequence(new, cached + new) for new, cached in prompts]
    decodes = [Sequence(1, context) for context in contexts]
    prefill, decode = step_work(shape, prefills, decodes)
    bound = Roof.of(accelerator, gpus, shape.weights.activations).bound(prefill + decode)
    seconds = EngineCost(shape, accelerator).seconds(
        sum(each.scheduled for each in prefills),
        sum(attended_pairs(each.scheduled, each.cached) for each in prefills),
        sum(each.cached for each in prefills),
        len(decodes),
        sum(contexts),
        len(prefills) + len(decodes),
    )
    assert seconds >= bound.seconds * (1.0 - 1e-9)


def test_a_step_without_tokens_takes_no_time() -> None:
    assert engine().seconds(0, 0, 0, 0, 0, 0) == 0.0
    assert engine().decode_run(0)[0] == 0.0


def test_a_decode_step_is_what_a_hand_count_says() -> None:
    """Llama-3.1-8B on one H100, 8 sequences of 1,024 tokens, in bytes ÷ (share · 3.35 TB/s) and overheads."""
    matrices = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336) + 4096 * 128256
    weights = 2 * matrices + 2 * (32 * 2 + 1) * 4096
    rows = 32 * ((4096 + 6144) + (4096 + 4096) + (4096 + 2 * 14336) + (14336 + 4096))
    activations = 8 * 2 * (rows + 4096 + 128256)
    kv = 128 * 1024
    gemm = (weights + activations + 8 * kv) / (0.88 * 3.35e12)
    attention = 8 * 1024 * kv / (0.90 * 3.35e12)
    overhead = 126 * MICRO + 8 * 4.4 * MICRO + 32 * 36 * MICRO
    assert engine().seconds(0, 0, 0, 8, 8192, 8) == pytest.approx(gemm + attention + overhead, rel=1e-9)


def test_a_long_prompt_is_bound_by_compute_and_its_attention_grows_with_the_square() -> None:
    cost = engine("llama-3.1-70b", "h100", 4)
    prompt = cost.seconds(8192, 8192 * 8193 // 2, 0, 0, 0, 1)
    linear = 8192 * 2 * 80 * (8192 * 10240 + 8192 * 8192 + 3 * 8192 * 28672) / (0.82 * 4 * 989e12)
    assert linear < prompt < 2 * linear, "all-reduces and attention come on top"
    apart = [cost.seconds(8192, (8192 * (2 * k + 1) * 8192 + 8192) // 2, 8192 * k, 0, 0, 1) for k in range(3)]
    assert apart[2] - apart[1] == pytest.approx(apart[1] - apart[0], rel=1e-6)


def test_a_chunk_beside_decodes_hides_the_weights_that_both_need() -> None:
    cost = engine()
    decode, chunk = cost.seconds(0, 0, 0, 16, 16384, 16), cost.seconds(512, 512 * 513 // 2, 0, 0, 0, 1)
    together = cost.seconds(512, 512 * 513 // 2, 0, 16, 16384, 17)
    assert max(decode, chunk) < together < decode + chunk


def test_gpus_share_work_but_not_overheads() -> None:
    one, four = engine("llama-3.1-8b", "h100", 1), engine("llama-3.1-8b", "h100", 4)
    assert one.seconds(0, 0, 0, 1, 1000, 1) / 4 < four.seconds(0, 0, 0, 1, 1000, 1) < one.seconds(0, 0, 0, 1, 1000, 1)


def test_kv_heads_that_are_kept_twice_are_read_twice() -> None:
    two, eight = engine("qwen2.5-7b", "h100", 4), engine("qwen2.5-7b", "h100", 8)  # 4 KV heads
    assert eight.decode_run(1)[1] == pytest.approx(two.decode_run(1)[1])


def test_without_graphs_a_step_waits_for_its_launches() -> None:
    shape = ModelShape.from_config(catalogue.find_model("llama-2-70b"), parallelism=Parallelism(8))
    cost = EngineCost(shape, hardware.find("h100"), VLLM_2023)
    assert cost.seconds(0, 0, 0, 1, 600, 1) > 80 * VLLM_2023.launch_seconds
    faster = EngineCost(shape, hardware.find("h100"), replace(VLLM_2023, launch_seconds=0.0))
    assert faster.seconds(0, 0, 0, 1, 600, 1) < 0.6 * cost.seconds(0, 0, 0, 1, 600, 1)


def test_fp8_weights_use_the_faster_tensor_cores_where_there_are_any() -> None:
    prompt = (4096, 4096 * 4097 // 2, 0, 0, 0, 1)
    assert engine(weights="fp8").seconds(*prompt) < 0.8 * engine().seconds(*prompt)
    assert engine("llama-3.1-8b", "a100", 1, "fp8").seconds(*prompt) == pytest.approx(
        engine("llama-3.1-8b", "a100", 1, "bf16").seconds(*prompt), rel=0.02
    )


def test_the_efficiency_can_be_given() -> None:
    shape, gpu = ModelShape.from_config(catalogue.find_model("llama-3.1-8b")), hardware.find("h100")
    slow = EngineCost(shape, gpu, replace(H100, layer_seconds=1e-3))
    assert slow.seconds(0, 0, 0, 1, 1, 1) == pytest.approx(
        EngineCost(shape, gpu).seconds(0, 0, 0, 1, 1, 1) + 32 * (1e-3 - H100.layer_seconds)
    )


def test_experts_are_read_as_far_as_the_batch_hits_them() -> None:
    cost = engine("mixtral-8x7b", "h100", 2)
    one, few, many, more = (cost.decode_run(batch)[0] for batch in (1, 4, 64, 68))
    assert few - one > 3 * (more - many), "two of eight experts at first, all of them soon"


def test_a_short_window_counts_once_per_sequence_and_not_per_token() -> None:
    gemma = engine("gemma-3-27b", "h100", 2)  # 10 of 62 layers see the whole context, 52 see 1,024 tokens
    shape = ModelShape.from_config(catalogue.find_model("gemma-3-27b"), parallelism=Parallelism(2))
    assert gemma.decode_run(1)[1] == pytest.approx(shape.full_kv_bytes_per_token / (0.90 * 2 * 3.35e12))
    windowed = sum(shape.window_kv_bytes_per_token) * 1024 / (0.90 * 2 * 3.35e12)
    assert gemma.decode_run(9)[0] - gemma.decode_run(1)[0] > 8 * windowed


def test_latent_attention_decodes_near_the_ridge() -> None:
    """512 + 64 elements a layer are read once for 128 heads: scores take as long as reading, or longer."""
    cost = engine("deepseek-v3", "h100", 8, "fp8")
    bytes_seconds = 61 * 8 * 576 * 2 / (0.90 * 8 * 3.35e12)  # every GPU keeps the whole latent
    assert cost.decode_run(1)[1] >= bytes_seconds
