from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline_exporters.engine import baseline as baseline_module
from ridgeline_exporters.engine import regression as regression_module
from ridgeline_exporters.engine.baseline import DecodeBaseline, StepModel
from ridgeline_exporters.engine.regression import WARM_UP_STEPS, RobustRegression

FIXED, SEQUENCE, KV, PREFILL, PAIR = 8e-3, 3e-5, 1e-8, 4e-6, 5e-10
PREFILL_STEP = -1e-3
"""Chunks hide behind the weights a little."""


def decode_seconds(sequences: int, kv_tokens: int) -> float:
    return FIXED + SEQUENCE * sequences + KV * kv_tokens


def step_seconds(dice: random.Random, sequences: int, kv_tokens: int, prefill: int, pairs: int) -> float:
    """As measured: within some 2 % of what the step takes."""
    chunk = PREFILL_STEP + PREFILL * prefill + PAIR * pairs if prefill else 0.0
    return (decode_seconds(sequences, kv_tokens) + chunk) * dice.gauss(1.0, 0.02)


def pairs_of(tokens: int, depth: int) -> int:
    """Pairs of a chunk of prefill tokens, so deep in its prompt: a token attends to all before it and to itself."""
    return tokens * depth + tokens * (tokens + 1) // 2


def loads(dice: random.Random, steps: int) -> Iterator[tuple[int, int]]:
    """Sequences and KV tokens as a day might bring them."""
    for _ in range(steps):
        sequences = dice.randint(1, 128)
        yield sequences, sequences * dice.randint(100, 4000)


def learned(steps: int = 600, noise: float = 0.02, seed: int = 1) -> DecodeBaseline:
    dice = random.Random(seed)
    baseline = DecodeBaseline()
    for sequences, kv_tokens in loads(dice, steps):
        baseline.add(sequences, kv_tokens, decode_seconds(sequences, kv_tokens) * dice.gauss(1.0, noise))
    return baseline


def test_nothing_is_predicted_before_enough_steps_were_seen() -> None:
    baseline = DecodeBaseline()
    for _ in range(WARM_UP_STEPS):
        assert baseline.seconds(8, 8000) is None
        baseline.add(8, 8000, 0.01)
    assert baseline.seconds(8, 8000) == pytest.approx(0.01, rel=0.01)
    assert baseline.samples == WARM_UP_STEPS


def test_far_beyond_what_was_seen_nothing_is_predicted() -> None:
    baseline = learned()
    assert baseline.seconds(200, 100_000) is not None
    assert baseline.seconds(1000, 100_000) is None
    assert baseline.seconds(100, 10_000_000) is None


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    spike_share=st.floats(0.0, 0.15),
    spike=st.floats(2.0, 100.0),
    noise=st.floats(0.0, 0.05),
)
def test_spikes_among_the_samples_hardly_move_the_prediction(
    seed: int, spike_share: float, spike: float, noise: float
) -> None:
    dice = random.Random(seed)
    baseline = DecodeBaseline()
    for sequences, kv_tokens in loads(dice, 600):
        seconds = decode_seconds(sequences, kv_tokens) * max(0.5, dice.gauss(1.0, noise))
        baseline.add(sequences, kv_tokens, seconds * (spike if dice.random() < spike_share else 1.0))
    for sequences, kv_tokens in ((4, 4000), (64, 60_000), (100, 300_000)):
        predicted = baseline.seconds(sequences, kv_tokens)
        assert predicted is not None
        assert predicted == pytest.approx(decode_seconds(sequences, kv_tokens), rel=0.15)


@settings(max_examples=50, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 1000), st.integers(0, 10**7), st.floats(0.0, 100.0)), min_size=1, max_size=300
    )
)
def test_a_prediction_is_never_negative_whatever_was_measured(steps: list[tuple[int, int, float]]) -> None:
    baseline = DecodeBaseline()
    for sequences, kv_tokens, seconds in steps:
        baseline.add(sequences, kv_tokens, seconds)
    for sequences, kv_tokens, _ in steps:
        predicted = baseline.seconds(sequences, kv_tokens)
        assert predicted is None or predicted >= 0.0


@pytest.mark.parametrize("change", [pytest.param(3.0, id="slower"), pytest.param(0.4, id="faster")])
def test_a_lasting_change_is_followed(change: float) -> None:
    dice = random.Random(5)
    baseline = learned()
    for sequences, kv_tokens in loads(dice, 12_000):
        baseline.add(sequences, kv_tokens, change * decode_seconds(sequences, kv_tokens) * dice.gauss(1.0, 0.02))
    assert baseline.seconds(64, 60_000) == pytest.approx(change * decode_seconds(64, 60_000), rel=0.1)


def test_a_load_that_never_varies_is_still_predicted_where_it_is() -> None:
    baseline = DecodeBaseline()
    for _ in range(500):
        baseline.add(16, 16_000, 0.012)
    assert baseline.seconds(16, 16_000) == pytest.approx(0.012, rel=1e-3)


def test_the_terms_of_the_step_model_are_learned_from_a_varied_load() -> None:
    dice = random.Random(2)
    model = StepModel()
    assert model.terms() == {}
    for sequences, kv_tokens in loads(dice, 3000):
        prefill = dice.choice((0, 0, 0, 512, 2048))
        pairs = pairs_of(prefill, dice.choice((0, 2048, 8192, 30_000)))
        model.add(sequences, kv_tokens, prefill, pairs, step_seconds(dice, sequences, kv_tokens, prefill, pairs))
    assert model.terms() == {
        "fixed": pytest.approx(FIXED, rel=0.1),
        "decode_sequence": pytest.approx(SEQUENCE, rel=0.15),
        "kv_token": pytest.approx(KV, rel=0.15),
        "prefill_token": pytest.approx(PREFILL, rel=0.1),
        "prefill_pair": pytest.approx(PAIR, rel=0.1),
        "prefill_step": pytest.approx(PREFILL_STEP, rel=0.2),
    }


def test_where_all_chunks_are_equally_deep_the_tokens_stand_for_pairs_too() -> None:
    dice = random.Random(7)
    model = StepModel()
    for sequences, kv_tokens in loads(dice, 3000):
        prefill = dice.choice((0, 0, 0, 512, 2048))
        pairs = prefill * 4096
        model.add(sequences, kv_tokens, prefill, pairs, step_seconds(dice, sequences, kv_tokens, prefill, pairs))
    terms = model.terms()
    assert terms["prefill_pair"] == 0.0
    assert terms["prefill_token"] == pytest.approx(PREFILL + 4096 * PAIR, rel=0.1)
    assert terms["prefill_step"] == pytest.approx(PREFILL_STEP, rel=0.2)


def test_where_all_chunks_are_of_one_size_their_tokens_stand_for_the_step_too() -> None:
    dice = random.Random(12)
    model = StepModel()
    for sequences, kv_tokens in loads(dice, 3000):
        prefill = dice.choice((0, 2048))
        pairs = pairs_of(prefill, 0)
        model.add(sequences, kv_tokens, prefill, pairs, step_seconds(dice, sequences, kv_tokens, prefill, pairs))
    terms = model.terms()
    assert (terms["prefill_pair"], terms["prefill_step"]) == (0.0, 0.0)
    whole = PREFILL_STEP + PREFILL * 2048 + PAIR * pairs_of(2048, 0)
    assert 2048 * terms["prefill_token"] == pytest.approx(whole, rel=0.05)


def test_of_two_terms_that_the_tokens_may_stand_for_only_one_is_left_out_where_that_will_do() -> None:
    """Whole prompts of two sizes: pairs and steps cannot both be told apart from tokens, either one can."""
    dice = random.Random(13)
    model = StepModel()
    for sequences, kv_tokens in loads(dice, 6000):
        prefill = dice.choice((0, 500, 4000))
        pairs = pairs_of(prefill, 0)
        model.add(sequences, kv_tokens, prefill, pairs, step_seconds(dice, sequences, kv_tokens, prefill, pairs))
    terms = model.terms()
    for tokens in (500, 4000):
        said = terms["prefill_step"] + terms["prefill_token"] * tokens + terms["prefill_pair"] * pairs_of(tokens, 0)
        assert said == pytest.approx(PREFILL_STEP + PREFILL * tokens + PAIR * pairs_of(tokens, 0), rel=0.05)


def test_pairs_become_known_when_depths_begin_to_differ() -> None:
    dice = random.Random(8)
    model = StepModel()
    for step, (sequences, kv_tokens) in enumerate(loads(dice, 8000)):
        prefill = dice.choice((0, 0, 0, 512, 2048))
        pairs = pairs_of(prefill, 4096 if step < 4000 else dice.choice((0, 2048, 8192, 30_000)))
        model.add(sequences, kv_tokens, prefill, pairs, step_seconds(dice, sequences, kv_tokens, prefill, pairs))
    terms = model.terms()
    assert terms["prefill_token"] == pytest.approx(PREFILL, rel=0.1)
    assert terms["prefill_pair"] == pytest.approx(PAIR, rel=0.1)


def crowded(dice: random.Random, budget: int, steps: int) -> Iterator[tuple[int, int, int, int]]:
    """Steps of a budget that is always full, and now and then one of decodes alone."""
    for sequences, kv_tokens in loads(dice, steps):
        prefill = 0 if dice.random() < 0.05 else budget - sequences
        yield sequences, kv_tokens, prefill, pairs_of(prefill, dice.choice((0, 2048, 8192)))


def test_in_full_steps_decodes_are_not_taken_for_prefill() -> None:
    dice = random.Random(10)
    model = StepModel()
    for step in crowded(dice, 256, 4000):
        model.add(*step, step_seconds(dice, *step))
    terms = model.terms()
    assert terms["fixed"] == pytest.approx(FIXED, rel=0.1)
    assert terms["decode_sequence"] == pytest.approx(SEQUENCE, rel=0.15)
    assert terms["kv_token"] == pytest.approx(KV, rel=0.15)


def test_what_a_large_budget_taught_outlives_the_steps_of_a_small_one() -> None:
    dice = random.Random(11)
    model = StepModel()
    for step in crowded(dice, 8192, 60):  # too few to know what decodes take, and the only ones of this size
        model.add(*step, step_seconds(dice, *step))
    for step in crowded(dice, 256, 30_000):
        model.add(*step, step_seconds(dice, *step))
    terms = model.terms()
    chunk = terms["prefill_step"] + 8000 * terms["prefill_token"]
    assert chunk == pytest.approx(PREFILL_STEP + 8000 * PREFILL, rel=0.05)


def test_chunks_are_learned_beside_far_larger_batches_than_ever_decoded_alone() -> None:
    dice = random.Random(14)
    model = StepModel()
    for _ in range(400):  # a night
        sequences = dice.randint(1, 12)
        kv_tokens = sequences * dice.randint(100, 4000)
        model.add(sequences, kv_tokens, 0, 0, step_seconds(dice, sequences, kv_tokens, 0, 0))
    for _ in range(20_000):  # and a day on which no decode is ever alone
        sequences, prefill = dice.randint(60, 200), dice.choice((128, 512, 2048))
        kv_tokens, pairs = sequences * dice.randint(100, 4000), pairs_of(prefill, dice.choice((0, 2048, 8192)))
        model.add(sequences, kv_tokens, prefill, pairs, step_seconds(dice, sequences, kv_tokens, prefill, pairs))
    terms = model.terms()
    assert terms["prefill_token"] == pytest.approx(PREFILL, rel=0.1)
    assert terms["prefill_pair"] == pytest.approx(PAIR, rel=0.1)


def test_decodes_that_were_long_not_alone_are_learned_anew_with_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline_module, "STALE_STEPS", 5000)
    dice = random.Random(15)
    model = StepModel()
    for sequences, kv_tokens in loads(dice, 500):
        model.add(sequences, kv_tokens, 0, 0, step_seconds(dice, sequences, kv_tokens, 0, 0))
    for sequences, kv_tokens in loads(dice, 12_000):  # clocks throttle, and no decode is alone
        prefill = dice.choice((64, 512, 2048))
        pairs = pairs_of(prefill, dice.choice((0, 2048, 8192)))
        slow = 1.4 * step_seconds(dice, sequences, kv_tokens, prefill, pairs)
        model.add(sequences, kv_tokens, prefill, pairs, slow)
    terms = model.terms()
    decodes = terms["fixed"] + 64 * terms["decode_sequence"] + 60_000 * terms["kv_token"]
    assert decodes == pytest.approx(1.4 * decode_seconds(64, 60_000), rel=0.1)


def test_a_size_of_chunk_that_never_comes_again_is_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regression_module, "KIND_STEPS", 20_000)
    dice = random.Random(16)
    regression = RobustRegression(2)
    for _ in range(5000):
        regression.add((1.0, 8.0), 1.0, 8)
        regression.add((1.0, 1.0), 0.3, 1)
    assert regression.predict((1.0, 8.0)) == pytest.approx(1.0, rel=0.01)
    for step in range(30_000):  # all gets slower, and the large kind no longer comes
        x = dice.uniform(1.0, 3.0)
        regression.add((1.0, x), 1.5 * (0.2 + 0.1 * x), 1)
        if step == 15_000:
            assert regression.predict((1.0, 8.0)) != pytest.approx(1.5, rel=0.05), "not yet"
    assert regression.predict((1.0, 5.0)) == pytest.approx(1.5 * 0.7, rel=0.02)


def test_chunk_terms_that_were_known_stay_while_noise_hides_them() -> None:
    dice = random.Random(17)
    model = StepModel()
    seen = set()
    for step, (sequences, kv_tokens) in enumerate(loads(dice, 20_000)):
        prefill = dice.choice((0, dice.randint(20, 300)))
        pairs = pairs_of(prefill, 0)
        seconds = step_seconds(dice, sequences, kv_tokens, prefill, pairs) * max(0.5, dice.gauss(1.0, 0.03))
        model.add(sequences, kv_tokens, prefill, pairs, seconds)
        if step > 2000:
            seen.add(round(model.terms()["prefill_token"] / PREFILL))
    assert max(seen) - min(seen) <= 1, "no jumps between two models"


def test_an_engine_without_prefill_knows_what_decodes_take() -> None:
    dice = random.Random(9)
    model = StepModel()
    for sequences, kv_tokens in loads(dice, 3000):
        model.add(sequences, kv_tokens, 0, 0, decode_seconds(sequences, kv_tokens) * dice.gauss(1.0, 0.02))
    assert model.terms().keys() == {"fixed", "decode_sequence", "kv_token"}


def test_terms_that_the_load_does_not_tell_apart_stay_unknown() -> None:
    dice = random.Random(3)
    model = StepModel()
    for _ in range(1000):
        model.add(16, 16_000, 0, 0, 0.012 * dice.gauss(1.0, 0.02))
    assert model.terms() == {}


def test_an_engine_that_only_prefills_knows_its_fixed_and_prefill_terms() -> None:
    dice = random.Random(4)
    model = StepModel()
    for _ in range(2000):
        tokens = dice.randint(64, 4096)
        pairs = pairs_of(tokens, dice.randrange(30_000))
        model.add(0, 0, tokens, pairs, (FIXED + PREFILL * tokens + PAIR * pairs) * dice.gauss(1.0, 0.02))
    assert model.terms() == {
        "fixed": pytest.approx(FIXED, rel=0.1),
        "prefill_token": pytest.approx(PREFILL, rel=0.05),
        "prefill_pair": pytest.approx(PAIR, rel=0.05),
        "prefill_step": 0.0,
    }


def test_the_warm_up_is_not_spoilt_by_a_slow_first_step() -> None:
    dice = random.Random(6)
    regression = RobustRegression(2)
    regression.add((1.0, 5.0), 60.0)  # the first step compiles and captures
    for _ in range(WARM_UP_STEPS):
        x = dice.uniform(1.0, 10.0)
        regression.add((1.0, x), 0.01 + 0.001 * x)
    assert regression.predict((1.0, 5.0)) == pytest.approx(0.015, rel=0.02)


# Days as they come: each scenario is a stream of decode steps; what is said at its end is right, or nothing is said.


def _cold_start(dice: random.Random) -> Iterator[tuple[int, int, float]]:
    """The first steps compile, allocate and fill caches: slow, and less so from step to step."""
    for i, (sequences, kv_tokens) in enumerate(loads(dice, 1000)):
        yield sequences, kv_tokens, decode_seconds(sequences, kv_tokens) * (1.0 + 20.0 * 0.9**i)


def _drift(dice: random.Random) -> Iterator[tuple[int, int, float]]:
    """Clocks throttle by a third within some minutes."""
    for i, (sequences, kv_tokens) in enumerate(loads(dice, 20_000)):
        yield sequences, kv_tokens, decode_seconds(sequences, kv_tokens) * min(1.0, 0.7 + i / 40_000)


def _captures(dice: random.Random) -> Iterator[tuple[int, int, float]]:
    """Bursts of steps each of which captures a CUDA graph first."""
    for i, (sequences, kv_tokens) in enumerate(loads(dice, 3000)):
        yield sequences, kv_tokens, decode_seconds(sequences, kv_tokens) + (0.4 if i % 600 < 40 else 0.0)


def _collinear(dice: random.Random) -> Iterator[tuple[int, int, float]]:
    """All contexts are equally long, so that sequences and their KV tell the same."""
    for _ in range(2000):
        sequences = dice.randint(1, 128)
        yield sequences, 1000 * sequences, decode_seconds(sequences, 1000 * sequences)


def _growing(dice: random.Random) -> Iterator[tuple[int, int, float]]:
    """One batch whose contexts only grow."""
    for i in range(2000):
        yield 64, 64 * (500 + i), decode_seconds(64, 64 * (500 + i))


SCENARIOS = [
    pytest.param(_cold_start, (64, 60_000), id="cold start"),
    pytest.param(_drift, (64, 60_000), id="drift"),
    pytest.param(_captures, (64, 60_000), id="bursts of graph captures"),
    pytest.param(_collinear, (64, 64_000), id="sequences and KV collinear"),
    pytest.param(_growing, (64, 150_000), id="a batch that only grows"),
]


@pytest.mark.parametrize(("scenario", "asked"), SCENARIOS)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_the_baseline_says_after_such_a_day_is_right(
    scenario: Callable[[random.Random], Iterator[tuple[int, int, float]]],
    asked: tuple[int, int],
    seed: int,
) -> None:
    dice = random.Random(seed)
    baseline = DecodeBaseline()
    for sequences, kv_tokens, seconds in scenario(dice):
        baseline.add(sequences, kv_tokens, seconds * max(0.5, dice.gauss(1.0, 0.02)))
    predicted = baseline.seconds(*asked)
    assert predicted is not None
    assert predicted == pytest.approx(decode_seconds(*asked), rel=0.05)


@settings(max_examples=25, deadline=None)
@given(steps=st.integers(0, WARM_UP_STEPS - 1), seed=st.integers(0, 2**32))
def test_with_few_decode_only_steps_nothing_is_said(steps: int, seed: int) -> None:
    dice = random.Random(seed)
    baseline = DecodeBaseline()
    for sequences, kv_tokens in loads(dice, steps):
        baseline.add(sequences, kv_tokens, decode_seconds(sequences, kv_tokens))
        assert baseline.seconds(sequences, kv_tokens) is None
    assert baseline.samples == steps
