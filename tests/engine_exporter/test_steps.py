from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline_exporters.engine.requests import RequestState, admit
from ridgeline_exporters.engine.steps import StepKind, StepRecord, read_step
from ridgeline_exporters.roofline.windows import AttentionWindow, PhaseSums
from tests.engine_exporter.synthetic import SyntheticPrefillStats, SyntheticRequest, SyntheticSchedulerOutput, step


def read(
    output: SyntheticSchedulerOutput,
    states: dict[str, RequestState],
    given: int = 1,
    in_prompt: set[str] | None = None,
    windows: tuple[AttentionWindow, ...] = (),
) -> StepRecord:
    """Read a step and let it give `given` tokens to each request that gets any."""
    for new in output.scheduled_new_reqs:
        states.setdefault(new.req_id, RequestState(new.prompt_len))
    record = read_step(output, states, windows, in_prompt)
    starts = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    for name, start in starts.items():
        if start + output.num_scheduled_tokens[name] >= states[name].samples_from:
            states[name].note_tokens(given, 0.0)
    return record


def sums(record: StepRecord) -> tuple[tuple[int, ...], tuple[int, ...]]:
    def of(phase: PhaseSums) -> tuple[int, ...]:
        return phase.tokens, phase.attended_pairs, phase.kv_tokens, phase.sampled, phase.sequences

    return of(record.prefill), of(record.decode)


NOTHING = (0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("prompt", "start", "tokens", "prefill", "decode", "finished"),
    [
        pytest.param(10, 0, 10, (10, 55, 0, 1, 1), NOTHING, 1, id="a whole prompt"),
        pytest.param(10, 0, 4, (4, 10, 0, 0, 1), NOTHING, 0, id="a first chunk yields no token"),
        pytest.param(10, 4, 4, (4, 26, 4, 0, 1), NOTHING, 0, id="a middle chunk reads what is cached"),
        pytest.param(10, 8, 2, (2, 19, 8, 1, 1), NOTHING, 1, id="the last chunk yields a token"),
        pytest.param(10, 9, 1, (1, 10, 9, 1, 1), NOTHING, 1, id="a last chunk of one token is prefill"),
        pytest.param(10, 10, 1, NOTHING, (1, 11, 11, 1, 1), 0, id="the first output token is decode"),
        pytest.param(10, 25, 1, NOTHING, (1, 26, 26, 1, 1), 0, id="a later output token is decode"),
    ],
)
def test_positions_in_the_prompt_are_prefill_and_the_others_decode(
    prompt: int, start: int, tokens: int, prefill: tuple[int, ...], decode: tuple[int, ...], finished: int
) -> None:
    record = read(step(cached={"a": (start, tokens)}), {"a": RequestState(prompt)})
    assert sums(record) == (prefill, decode)
    assert record.prefills_finished == finished


@pytest.mark.parametrize(
    ("cached", "kind"),
    [
        pytest.param({"a": (0, 8)}, "prefill", id="prefill"),
        pytest.param({"b": (12, 1)}, "decode", id="decode"),
        pytest.param({"a": (0, 8), "b": (12, 1)}, "mixed", id="mixed"),
    ],
)
def test_a_step_is_named_after_what_it_holds(cached: dict[str, tuple[int, int]], kind: StepKind) -> None:
    assert read(step(cached=cached), {"a": RequestState(20), "b": RequestState(12)}).kind == kind


def test_a_prompt_that_is_completed_counts_as_finished_once() -> None:
    states: dict[str, RequestState] = {}
    assert read(step(new={"a": (10, 0, 10)}), states).prefills_finished == 1
    read(step(cached={"a": (10, 1)}), states)
    again = read(step(cached={"a": (0, 10)}, resumed={"a"}), states)
    assert (again.prefill.tokens, again.prefills_finished) == (10, 0)


def test_what_is_computed_again_after_preemption_is_prefill_and_going_on_is_decode() -> None:
    states: dict[str, RequestState] = {}
    read(step(new={"a": (10, 0, 10)}), states)
    for position in range(10, 14):
        read(step(cached={"a": (position, 1)}), states)
    # 14 positions were computed; the 15th token was sampled and waits.
    record = read(step(cached={"a": (0, 15)}, resumed={"a"}), states)
    assert (record.prefill.tokens, record.decode.tokens) == (14, 1)
    assert (record.prefill.sampled, record.decode.sampled) == (0, 1)
    assert sums(read(step(cached={"a": (15, 1)}), states)) == (NOTHING, (1, 16, 16, 1, 1))


def test_catching_up_in_chunks_yields_a_token_only_at_the_end() -> None:
    states: dict[str, RequestState] = {}
    read(step(new={"a": (4, 0, 4)}), states)
    read(step(cached={"a": (4, 1)}), states)
    first = read(step(cached={"a": (0, 5)}, resumed={"a"}), states)
    assert sums(first) == ((5, 15, 0, 0, 1), NOTHING)
    assert sums(read(step(cached={"a": (5, 1)}), states)) == (NOTHING, (1, 6, 6, 1, 1))


def test_a_preempted_request_that_comes_back_as_new_is_recognised() -> None:
    states: dict[str, RequestState] = {}
    read(step(new={"a": (10, 0, 10)}), states)
    read(step(cached={"a": (10, 1)}), states)
    record = read(step(new={"a": (10, 0, 12)}), states)  # the second model runner reports it like this
    assert (record.prefill.tokens, record.decode.tokens) == (11, 1)


def test_a_request_preempted_inside_its_prompt_starts_its_prompt_again() -> None:
    states: dict[str, RequestState] = {}
    read(step(new={"a": (10, 0, 4)}), states)
    record = read(step(cached={"a": (0, 10)}, resumed={"a"}), states)
    assert sums(record) == ((10, 55, 0, 1, 1), NOTHING)
    assert record.prefills_finished == 1


def test_speculated_tokens_are_decode_and_each_yields_logits() -> None:
    record = read(step(cached={"a": (20, 4)}, speculated={"a": 3}), {"a": RequestState(10)})
    assert sums(record) == (NOTHING, (4, 21 + 22 + 23 + 24, 24, 4, 1))


def test_the_last_prompt_token_of_a_received_prompt_counts_as_decode() -> None:
    request = SyntheticRequest("a", 100, prefill_stats=SyntheticPrefillStats(0, 100))
    state = admit(request, 100, 99)
    record = read(step(new={"a": (100, 99, 1)}), {"a": state})
    assert sums(record) == (NOTHING, (1, 100, 100, 1, 1))
    assert (record.prefills_finished, state.external_tokens) == (0, 100)


@pytest.mark.parametrize(
    ("window", "pairs", "kv_tokens"),
    [
        # A chunk at positions 6 to 9 of a prompt, and decodes at positions 3, 20 and 21.
        pytest.param(AttentionWindow(8), (7 + 8 + 8 + 8, 4 + 8 + 8), (6, 20), id="sliding"),
        pytest.param(AttentionWindow(8, chunked=True), (7 + 8 + 1 + 2, 4 + 5 + 6), (6, 15), id="chunked"),
        pytest.param(AttentionWindow(64), (7 + 8 + 9 + 10, 4 + 21 + 22), (6, 47), id="wider than all contexts"),
        pytest.param(AttentionWindow(2), (2 * 4, 2 * 3), (1, 6), id="narrower than all contexts"),
    ],
)
def test_sums_are_kept_for_each_window_of_the_model(
    window: AttentionWindow, pairs: tuple[int, int], kv_tokens: tuple[int, int]
) -> None:
    states = {name: RequestState(3) for name in ("b", "c", "d")} | {"a": RequestState(20)}
    record = read_step(step(cached={"a": (6, 4), "b": (3, 1), "c": (20, 1), "d": (21, 1)}), states, (window,))
    assert (record.prefill.window_pairs, record.decode.window_pairs) == ([pairs[0]], [pairs[1]])
    assert (record.prefill.window_kv_tokens, record.decode.window_kv_tokens) == ([kv_tokens[0]], [kv_tokens[1]])
    assert (record.prefill.attended_pairs, record.decode.attended_pairs) == (7 + 8 + 9 + 10, 4 + 21 + 22)


@given(
    prompt=st.integers(1, 200),
    cached=st.integers(0, 199),
    outputs=st.integers(1, 50),
    chunk=st.integers(1, 64),
)
def test_however_a_request_is_cut_the_phases_add_up_to_its_tokens(
    prompt: int, cached: int, outputs: int, chunk: int
) -> None:
    cached = min(cached, prompt - 1)
    states = {"a": RequestState(prompt)}
    prefill = decode = pairs = samples = 0
    position = cached
    while position < prompt + outputs - 1:
        n = min(chunk, prompt - position) if position < prompt else 1
        record = read(step(cached={"a": (position, n)}), states)
        prefill += record.prefill.tokens
        decode += record.decode.tokens
        pairs += record.prefill.attended_pairs + record.decode.attended_pairs
        samples += record.prefill.sampled + record.decode.sampled
        position += n
    assert prefill == prompt - cached
    assert decode == outputs - 1
    assert samples == outputs
    assert pairs == sum(range(cached + 1, prompt + outputs))


def test_of_a_cached_last_prompt_token_with_drafts_behind_it_each_phase_has_its_logits() -> None:
    record = read(step(new={"a": (129, 128, 4)}, speculated={"a": 3}), {}, given=2)
    assert sums(record) == ((1, 129, 128, 1, 1), (3, 130 + 131 + 132, 132, 3, 1))


def test_a_decode_scheduled_before_its_drafts_were_rejected_is_counted_where_it_is() -> None:
    states: dict[str, RequestState] = {}
    read(step(new={"a": (10, 0, 10)}), states)
    read(step(cached={"a": (10, 4)}, speculated={"a": 3}), states, given=2)  # one draft accepted, two rejected
    record = read(step(cached={"a": (14, 4)}, speculated={"a": 3}), states)  # as if all had been accepted
    assert sums(record) == (NOTHING, (4, 13 + 14 + 15 + 16, 16, 4, 1))


def test_after_rejected_drafts_only_what_was_accepted_is_computed_again() -> None:
    states: dict[str, RequestState] = {}
    read(step(new={"a": (10, 0, 10)}), states)
    read(step(cached={"a": (10, 4)}, speculated={"a": 3}), states)  # 14 positions computed, 11 of them worth keeping
    record = read(step(cached={"a": (0, 12)}, resumed={"a"}), states)
    assert (record.prefill.tokens, record.decode.tokens) == (11, 1)
    assert (record.prefill.sampled, record.decode.sampled) == (0, 1)


def test_a_session_that_goes_on_prefills_its_new_turn_only() -> None:
    states: dict[str, RequestState] = {}
    read(step(new={"a": (10, 0, 10)}), states)
    read(step(cached={"a": (10, 1)}), states)
    record = read(step(new={"a": (31, 11, 20)}), states)
    assert (record.prefill.tokens, record.prefill.sampled, record.prefills_finished) == (20, 1, 1)
    assert sums(read(step(cached={"a": (31, 1)}), states)) == (NOTHING, (1, 32, 32, 1, 1))


@st.composite
def schedules(draw: st.DrawFn) -> list[SyntheticSchedulerOutput]:
    """Steps of some requests with chunked prompts, decodes, drafts and preemptions, as a scheduler might make them."""
    prompts = draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
    drafts = draw(st.sampled_from([0, 0, 2]))
    at = dict.fromkeys((f"r{i}" for i in range(len(prompts))), 0)
    known = {f"r{i}": prompt for i, prompt in enumerate(prompts)}
    lengths, seen, outputs = dict(known), set[str](), list[SyntheticSchedulerOutput]()
    for _ in range(draw(st.integers(1, 25))):
        new, cached, resumed, speculated = {}, {}, set(), {}
        for name in draw(st.sets(st.sampled_from(sorted(at)), min_size=1)):
            if name in seen and draw(st.integers(0, 9)) == 0:
                at[name] = draw(st.integers(0, known[name] - 1))
                resumed.add(name)
            left = known[name] - at[name]
            tokens = draw(st.integers(1, left)) if left > 1 else 1
            if tokens == left == 1 and drafts and at[name] >= lengths[name]:
                tokens, speculated[name] = 1 + drafts, drafts
            if name in seen:
                cached[name] = (at[name], tokens)
            else:
                new[name] = (lengths[name], at[name], tokens)
            seen.add(name)
            at[name] = min(at[name] + tokens, known[name])
            known[name] += at[name] == known[name]
        outputs.append(step(new, cached, resumed, None, speculated))
    return outputs


@given(schedules())
def test_summing_up_decodes_together_is_the_same_as_one_by_one(outputs: list[SyntheticSchedulerOutput]) -> None:
    together: dict[str, RequestState] = {}
    one_by_one: dict[str, RequestState] = {}
    in_prompt: set[str] = set()
    windows = (AttentionWindow(8), AttentionWindow(16, chunked=True))
    for output in outputs:
        expected = read(output, one_by_one, windows=windows)
        record = read(output, together, in_prompt=in_prompt, windows=windows)
        assert sums(record) == sums(expected)
        for phase in ("prefill", "decode"):
            assert getattr(record, phase).window_pairs == getattr(expected, phase).window_pairs
            assert getattr(record, phase).window_kv_tokens == getattr(expected, phase).window_kv_tokens
        assert record.prefills_finished == expected.prefills_finished
