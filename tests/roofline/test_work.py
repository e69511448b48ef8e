"""FLOPs and bytes of a step: sums written out by hand, and what must hold for every step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline_exporters.roofline.catalogue import MODELS
from ridgeline_exporters.roofline.formats import SIXTEEN_BIT_WEIGHTS
from ridgeline_exporters.roofline.model import ModelShape
from ridgeline_exporters.roofline.work import NO_WORK, PhaseWork, Sequence, attended_pairs, phase_work, step_work

# Two layers, hidden 8, four query heads and two KV heads of size 2, gated feed-forward of 16, vocabulary of 32.
SMALL = ModelShape(
    architecture="LlamaForCausalLM",
    layers=2,
    hidden=8,
    query_heads=4,
    kv_heads=2,
    head_size=2,
    feed_forward=16,
    vocabulary=32,
    norm_parameters_per_layer=16,
    final_norm_parameters=8,
    weights=SIXTEEN_BIT_WEIGHTS,
)
QKV, OUTPUT, GATE_UP, DOWN, HEAD = 8 * (8 + 4 + 4), 8 * 8, 8 * 32, 16 * 8, 8 * 32
LAYER = QKV + OUTPUT + GATE_UP + DOWN

sequences = st.builds(
    lambda scheduled, cached, samples: Sequence(scheduled, cached + scheduled, samples),
    scheduled=st.integers(1, 4096),
    cached=st.integers(0, 100_000),
    samples=st.booleans(),
)
decodes = st.builds(lambda context: Sequence(1, context), st.integers(1, 100_000))
shapes = st.sampled_from([ModelShape.from_config(MODELS[name]) for name in ("llama-3.1-8b", "qwen2.5-7b", "qwen3-4b")])


def test_coefficients_of_a_small_model_by_hand() -> None:
    assert SMALL.parameters == 2 * (LAYER + 16) + 8 + 2 * HEAD
    assert SMALL.linear_flops_per_token == 2 * 2 * LAYER
    assert SMALL.lm_head_flops == 2 * HEAD
    assert SMALL.attention_flops_per_pair == 4 * 4 * 2 * 2
    assert SMALL.kv_bytes_per_token == 2 * 2 * 2 * 2 * 2
    assert SMALL.weight_bytes == 2 * (2 * (LAYER + 16) + 8 + HEAD)
    assert SMALL.resident_bytes == SMALL.weight_bytes + 2 * HEAD
    assert SMALL.activation_bytes_per_token == 2 * 2 * ((8 + 16) + (8 + 8) + (8 + 32) + (16 + 8))
    assert SMALL.activation_bytes_per_sample == 2 * (8 + 32)


def test_a_mixed_step_by_hand() -> None:
    chunk = Sequence(scheduled=3, context=5, samples=False)
    prefill, decode = step_work(SMALL, [chunk], [Sequence(1, 10)])
    # Tokens 3, 4 and 5 attend to 3, 4 and 5 tokens; the decode attends to 10.
    assert prefill == PhaseWork(
        flops=3 * 2 * 2 * LAYER + 12 * 64,
        weight_bytes=SMALL.weight_bytes * 3 / 4,
        kv_read_bytes=2 * 32,
        kv_write_bytes=3 * 32,
        activation_bytes=3 * 416,
        tokens=3,
    )
    assert decode == PhaseWork(
        flops=2 * 2 * LAYER + 10 * 64 + 2 * HEAD,
        weight_bytes=SMALL.weight_bytes / 4,
        kv_read_bytes=10 * 32,
        kv_write_bytes=32,
        activation_bytes=416 + 80,
        tokens=1,
    )


@pytest.mark.parametrize(
    ("scheduled", "cached", "pairs"),
    [
        pytest.param(0, 7, 0, id="nothing new"),
        pytest.param(1, 0, 1, id="first token"),
        pytest.param(4, 0, 1 + 2 + 3 + 4, id="fresh prompt"),
        pytest.param(3, 2, 3 + 4 + 5, id="chunk on a cache"),
        pytest.param(1, 99, 100, id="decode"),
    ],
)
def test_attended_pairs_are_counted_one_by_one(scheduled: int, cached: int, pairs: int) -> None:
    assert attended_pairs(scheduled, cached) == pairs


def test_a_decode_with_drafts_puts_each_position_through_the_lm_head() -> None:
    _, plain = step_work(SMALL, [], [Sequence(1, 10)])
    _, drafted = step_work(SMALL, [], [Sequence(3, 12)])
    assert drafted.flops == 3 * 2 * 2 * LAYER + (10 + 11 + 12) * 64 + 3 * 2 * HEAD
    assert drafted.weight_bytes == plain.weight_bytes


def test_a_step_without_requests_is_no_work() -> None:
    assert step_work(SMALL, [], []) == (NO_WORK, NO_WORK)
    assert NO_WORK.intensity == 0


def test_prefill_lies_right_of_the_ridge_and_decode_left_of_it() -> None:
    shape = ModelShape.from_config(MODELS["llama-3.1-70b"])
    prefill, _ = step_work(shape, [Sequence(2048, 2048)], [])
    _, decode = step_work(shape, [], [Sequence(1, 2048)] * 32)
    assert prefill.intensity > 1000
    assert 25 < decode.intensity < 32  # below one FLOP/byte and sequence: caches and activations come on top of weights


def test_a_small_prompt_chunk_is_as_far_left_as_its_tokens_are_few() -> None:
    shape = ModelShape.from_config(MODELS["llama-3.1-8b"])
    assert step_work(shape, [Sequence(64, 64)], [])[0].intensity == pytest.approx(64, rel=0.1)


@given(shape=shapes, chunks=st.lists(st.integers(1, 3000), min_size=1, max_size=20))
def test_cutting_a_prompt_into_chunks_conserves_its_flops_and_its_kv_writes(
    shape: ModelShape, chunks: list[int]
) -> None:
    total, done, cut = sum(chunks), 0, NO_WORK
    for chunk in chunks:
        done += chunk
        cut += step_work(shape, [Sequence(chunk, done, samples=done == total)], [])[0]
    whole, _ = step_work(shape, [Sequence(total, total)], [])
    assert cut.flops == whole.flops
    assert cut.kv_write_bytes == whole.kv_write_bytes
    assert cut.activation_bytes == whole.activation_bytes
    assert cut.weight_bytes == pytest.approx(len(chunks) * whole.weight_bytes)
    assert cut.kv_read_bytes >= whole.kv_read_bytes == 0


@given(shape=shapes, prompts=st.lists(sequences, max_size=8), running=st.lists(decodes, max_size=64))
def test_phases_add_up_to_the_step(shape: ModelShape, prompts: list[Sequence], running: list[Sequence]) -> None:
    prefill, decode = step_work(shape, prompts, running)
    step = prefill + decode
    if prompts or running:
        assert step.weight_bytes == pytest.approx(shape.weight_bytes)
    assert step.tokens == sum(sequence.scheduled for sequence in [*prompts, *running])
    assert step.flops == (
        step.tokens * shape.linear_flops_per_token
        + sum(sequence.attended_pairs for sequence in [*prompts, *running]) * shape.attention_flops_per_pair
        + sum(sequence.samples for sequence in [*prompts, *running]) * shape.lm_head_flops
    )
    assert step.kv_write_bytes == step.tokens * shape.kv_bytes_per_token
    alone, none = step_work(shape, prompts, [])
    assert none == NO_WORK
    assert alone.flops == prefill.flops  # what runs beside a phase changes only its share of the weights
    assert alone.kv_read_bytes == prefill.kv_read_bytes


@given(prompts=st.lists(sequences, max_size=8), running=st.lists(decodes, max_size=64))
def test_the_cheap_path_from_sums_equals_the_sum_over_requests(
    prompts: list[Sequence], running: list[Sequence]
) -> None:
    prefill, decode = step_work(SMALL, prompts, running)
    new, decoding = sum(prompt.scheduled for prompt in prompts), len(running)
    if not new + decoding:
        return
    assert prefill == phase_work(
        SMALL,
        tokens=new,
        attended_pairs=sum(prompt.attended_pairs for prompt in prompts),
        kv_tokens_read=sum(prompt.context - prompt.scheduled for prompt in prompts),
        sampled=sum(prompt.samples for prompt in prompts),
        weight_share=new / (new + decoding),
    )
    context = sum(sequence.context for sequence in running)
    assert decode == phase_work(SMALL, decoding, context, context, decoding, decoding / (new + decoding))


@given(shape=shapes, context=st.integers(1, 100_000), batch=st.integers(1, 512))
def test_a_larger_decode_batch_never_lowers_the_intensity(shape: ModelShape, context: int, batch: int) -> None:
    one = phase_work(shape, batch, batch * context, batch * context, batch, 1.0)
    two = phase_work(shape, batch + 1, (batch + 1) * context, (batch + 1) * context, batch + 1, 1.0)
    assert two.intensity >= one.intensity
