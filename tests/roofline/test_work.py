"""FLOPs and bytes of a step: sums written out by hand, and what must hold for every step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline_exporters.roofline.catalogue import MODELS
from ridgeline_exporters.roofline.feed_forward import FeedForward, MixtureOfExperts
from ridgeline_exporters.roofline.layers import Decoder, Layer
from ridgeline_exporters.roofline.mixers import Attention, GatedDeltaNet, LatentAttention
from ridgeline_exporters.roofline.model import ModelShape
from ridgeline_exporters.roofline.windows import AttentionWindow, PhaseSums, attended_pairs
from ridgeline_exporters.roofline.work import NO_WORK, PhaseWork, Sequence, phase_work, step_work

# Two layers, hidden 8, four query heads and two KV heads of size 2, gated feed-forward of 16, vocabulary of 32.
ATTENTION = Attention(hidden=8, query_heads=4, kv_heads=2, head_size=2)
DENSE = FeedForward(hidden=8, width=16)


def of(*layers: Layer) -> ModelShape:
    return ModelShape(Decoder("SmallForCausalLM", layers, hidden=8, vocabulary=32, final_norm_parameters=8))


SMALL = of(*[Layer(ATTENTION, DENSE, norm_parameters=16)] * 2)
QKV, OUTPUT, GATE_UP, DOWN, HEAD = 8 * (8 + 4 + 4), 8 * 8, 8 * 32, 16 * 8, 8 * 32
LAYER = QKV + OUTPUT + GATE_UP + DOWN

sequences = st.builds(
    lambda scheduled, cached, samples: Sequence(scheduled, cached + scheduled, samples),
    scheduled=st.integers(1, 4096),
    cached=st.integers(0, 100_000),
    samples=st.booleans(),
)
decodes = st.builds(lambda context: Sequence(1, context), st.integers(1, 100_000))
PLAIN = ("llama-3.1-8b", "qwen2.5-7b", "qwen3-4b", "mixtral-8x7b")
OTHERS = ("gemma-3-4b", "gpt-oss-20b", "llama-4-scout", "deepseek-v3", "qwen3-next-80b-a3b")
SHAPES = {name: ModelShape.from_config(MODELS[name]) for name in (*PLAIN, *OTHERS)}
plain_shapes = st.sampled_from([SHAPES[name] for name in PLAIN])
shapes = st.sampled_from(list(SHAPES.values()))


def test_coefficients_of_a_small_model_by_hand() -> None:
    assert SMALL.parameters == 2 * (LAYER + 16) + 8 + 2 * HEAD
    assert SMALL.linear_flops_per_token == 2 * 2 * LAYER
    assert SMALL.lm_head_flops == 2 * HEAD
    assert SMALL.prefill.flops_per_pair == SMALL.decode.flops_per_pair == 4 * 4 * 2 * 2
    assert SMALL.kv_bytes_per_token == 2 * 2 * 2 * 2 * 2
    assert SMALL.weight_bytes == 2 * (2 * (LAYER + 16) + 8 + HEAD)
    assert SMALL.resident_bytes == SMALL.weight_bytes + 2 * HEAD
    assert SMALL.prefill.activation_bytes_per_token == 2 * 2 * ((8 + 16) + (8 + 8) + (8 + 32) + (16 + 8))
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
    total, done, cut, cached = sum(chunks), 0, NO_WORK, 0
    for chunk in chunks:
        cached += done
        done += chunk
        cut += step_work(shape, [Sequence(chunk, done, samples=done == total)], [])[0]
    whole, _ = step_work(shape, [Sequence(total, total)], [])
    states = len(chunks) - 1
    again = cached * shape.prefill.flops_per_kv_token  # MLA up-projects what is cached in each chunk
    assert cut.flops == pytest.approx(whole.flops + again, rel=1e-12)
    assert cut.kv_write_bytes == whole.kv_write_bytes + states * shape.state_bytes_per_sequence
    assert cut.activation_bytes == pytest.approx(
        whole.activation_bytes + cached * shape.prefill.activation_bytes_per_kv_token, rel=1e-12
    )
    assert cut.kv_read_bytes >= whole.kv_read_bytes == shape.state_bytes_per_sequence
    assert cut.weight_bytes >= whole.weight_bytes
    if not shape.experts:
        assert cut.weight_bytes == pytest.approx(len(chunks) * whole.weight_bytes)


@given(shape=shapes, prompts=st.lists(sequences, max_size=8), running=st.lists(decodes, max_size=64))
def test_phases_add_up_to_the_step(shape: ModelShape, prompts: list[Sequence], running: list[Sequence]) -> None:
    prefill, decode = step_work(shape, prompts, running)
    step = prefill + decode
    assert step.tokens == sum(sequence.scheduled for sequence in [*prompts, *running])
    if prompts or running:
        assert step.weight_bytes == pytest.approx(shape.step_weight_bytes(prefill.tokens, decode.tokens))
    states = len(prompts) + len(running)
    assert step.kv_write_bytes == pytest.approx(
        step.tokens * shape.kv_bytes_per_token + states * shape.state_bytes_per_sequence
    )
    alone, none = step_work(shape, prompts, [])
    assert none == NO_WORK
    assert alone.flops == prefill.flops  # what runs beside a phase changes only its share of the weights
    assert alone.kv_read_bytes == prefill.kv_read_bytes


@given(shape=plain_shapes, prompts=st.lists(sequences, max_size=8), running=st.lists(decodes, max_size=64))
def test_with_plain_attention_both_phases_cost_the_same(
    shape: ModelShape, prompts: list[Sequence], running: list[Sequence]
) -> None:
    prefill, decode = step_work(shape, prompts, running)
    everything = [*prompts, *running]
    assert (prefill + decode).flops == pytest.approx(
        sum(sequence.scheduled for sequence in everything) * shape.linear_flops_per_token
        + sum(attended_pairs(sequence.scheduled, sequence.cached) for sequence in everything)
        * shape.prefill.flops_per_pair
        + sum(sequence.samples for sequence in everything) * shape.lm_head_flops,
        rel=1e-12,
    )


@given(shape=shapes, contexts=st.lists(st.integers(1, 100_000), min_size=1, max_size=64))
def test_the_cheap_path_of_decodes_equals_the_sum_over_requests(shape: ModelShape, contexts: list[int]) -> None:
    sums = PhaseSums(shape.windows)
    sums.add_decodes([context - 1 for context in contexts])
    _, decode = step_work(shape, [], [Sequence(1, context) for context in contexts])
    assert phase_work(shape, "decode", sums, len(contexts)) == decode


@given(shape=plain_shapes, context=st.integers(1, 100_000), batch=st.integers(1, 512))
def test_a_larger_decode_batch_never_lowers_the_intensity_of_plain_attention(
    shape: ModelShape, context: int, batch: int
) -> None:
    def intensity(count: int) -> float:
        return step_work(shape, [], [Sequence(1, context)] * count)[1].intensity

    # Experts: a few tokens more may hit new ones, each of which is read whole.
    assert intensity(batch + 1) >= intensity(batch) * (0.9 if shape.experts else 1.0)


# ---------------------------------------------------------------- layers that are not plain


@pytest.mark.parametrize("window", [AttentionWindow(3), AttentionWindow(3, chunked=True)], ids=["sliding", "chunked"])
def test_a_window_counts_what_lies_inside_one_by_one(window: AttentionWindow) -> None:
    shape = of(Layer(ATTENTION, DENSE, 16), Layer(Attention(8, 4, 2, 2, window=window), DENSE, 16))
    prefill, decode = step_work(shape, [Sequence(4, 6, samples=False)], [Sequence(1, 8)])
    # Positions 2 to 5 of the prompt (counted from 0) and position 7 of the decode.
    seen = {False: [3, 3, 3, 3, 3], True: [3, 1, 2, 3, 2]}[window.chunked]
    read = {False: (2, 3), True: (2, 2)}[window.chunked]
    assert prefill.flops == 4 * 2 * 2 * LAYER + (3 + 4 + 5 + 6) * 32 + sum(seen[:4]) * 32
    assert decode.flops == 2 * 2 * LAYER + 8 * 32 + seen[4] * 32 + 2 * HEAD
    assert prefill.kv_read_bytes == (2 + read[0]) * 16
    assert decode.kv_read_bytes == (8 + read[1]) * 16
    assert prefill.kv_write_bytes == 4 * 2 * 16


@given(length=st.integers(1, 50), chunked=st.booleans(), cached=st.integers(0, 200), scheduled=st.integers(0, 200))
def test_pairs_in_a_window_in_closed_form_equal_the_sum_over_positions(
    length: int, chunked: bool, cached: int, scheduled: int
) -> None:
    window = AttentionWindow(length, chunked)
    positions = range(cached, cached + scheduled)
    first_seen = [p - p % length if chunked else max(0, p - length + 1) for p in positions]
    assert window.attended_pairs(scheduled, cached) == sum(
        p - first + 1 for p, first in zip(positions, first_seen, strict=True)
    )


def test_latent_attention_is_absorbed_in_decodes_and_up_projected_in_prefills() -> None:
    latent = LatentAttention(8, query_heads=4, query_rank=None, kv_rank=6, nope_size=3, rope_size=2, value_size=5)
    shape = of(Layer(latent, DENSE, 16))
    up = 6 * 4 * (3 + 5)
    linear = 8 * 4 * 5 + 8 * (6 + 2) + up + 4 * 5 * 8 + GATE_UP + DOWN
    prefill, decode = step_work(shape, [Sequence(3, 5, samples=False)], [Sequence(1, 10)])
    assert prefill.flops == 3 * 2 * linear + (3 + 4 + 5) * 2 * 4 * (3 + 2 + 5) + 2 * 2 * up
    assert decode.flops == 2 * linear + 10 * 2 * 4 * (6 + 2 + 6) + 2 * HEAD
    assert (prefill.kv_read_bytes, decode.kv_read_bytes) == (2 * 8 * 2, 10 * 8 * 2)
    # Each phase has its own copy of the up-projection, and a mixed step reads both.
    rest = 2 * (linear - up + HEAD + 16 + 8 + 6)
    assert prefill.weight_bytes == 3 / 4 * rest + 2 * up
    assert decode.weight_bytes == 1 / 4 * rest + 2 * up
    assert shape.weight_bytes == rest + 2 * up
    assert shape.resident_bytes == rest + 4 * up + 2 * HEAD


def test_experts_are_computed_by_choice_and_read_by_chance() -> None:
    experts = MixtureOfExperts(8, experts=4, experts_per_token=2, width=16, shared_width=16)
    shape = of(Layer(ATTENTION, experts, 16))
    expert = 3 * 8 * 16
    _, decode = step_work(shape, [], [Sequence(1, 10)] * 3)
    per_token = QKV + OUTPUT + 8 * 4 + 3 * expert
    assert decode.flops == 3 * (2 * per_token + 10 * 32 + 2 * HEAD)
    always = 2 * (QKV + OUTPUT + 8 * 4 + expert + HEAD + 16 + 8)
    # An expert is missed by each of three tokens with probability 1/2.
    assert decode.weight_bytes == always + 2 * 4 * (1 - 1 / 8) * expert
    assert shape.weight_bytes == always + 2 * 4 * expert
    assert shape.active_parameters == shape.parameters - 2 * expert
    prefill, beside = step_work(shape, [Sequence(1, 5)], [Sequence(1, 10)] * 2)
    assert prefill.weight_bytes + beside.weight_bytes == pytest.approx(decode.weight_bytes)
    assert prefill.weight_bytes == pytest.approx(decode.weight_bytes / 3)


@pytest.mark.parametrize(
    ("tokens", "distinct"),
    [pytest.param(1, 8, id="a token reads its own"), pytest.param(100_000, 256, id="many tokens read all")],
)
def test_distinct_experts_at_the_ends(tokens: int, distinct: float) -> None:
    block = MixtureOfExperts(7168, experts=256, experts_per_token=8, width=2048)
    assert block.distinct_experts(tokens) == pytest.approx(distinct)


def test_linear_attention_keeps_a_state_and_reads_no_cache() -> None:
    linear = GatedDeltaNet(8, key_heads=1, value_heads=2, key_size=4, value_size=8, convolution=4)
    shape = of(Layer(linear, DENSE, 16))
    convolved = 2 * 4 + 2 * 8
    projections = 8 * (2 * 4 + 2 * 16) + 8 * 4 + 4 * convolved + 16 * 8 + GATE_UP + DOWN
    state = 2 * (3 * convolved + 2 * 4 * 8)
    prefill, decode = step_work(shape, [Sequence(7, 20, samples=False)], [Sequence(1, 5000)])
    assert decode.flops == 2 * projections + 2 * 6 * 4 * 8 + 2 * HEAD
    assert prefill.flops == 7 * (2 * projections + 2 * (6 * 4 * 8 + 64 * (5 * 4 + 3 * 8)))
    assert prefill.kv_read_bytes == prefill.kv_write_bytes == decode.kv_read_bytes == state
    assert shape.sequence_bytes(5000) == state
    assert shape.kv_bytes_per_token == 0


def test_a_sequence_takes_no_more_memory_than_its_windows() -> None:
    shape = ModelShape.from_config(MODELS["gpt-oss-20b"])
    per_layer = 2 * 8 * 64 * 2
    assert shape.kv_bytes_per_token == 24 * per_layer
    assert shape.sequence_bytes(100) == 100 * 24 * per_layer
    assert shape.sequence_bytes(10_000) == (10_000 * 12 + 128 * 12) * per_layer
