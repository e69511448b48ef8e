"""A prompt computed on one engine and decoded on another, over NIXL."""

from __future__ import annotations

import time

import pytest

from tests.engines.by_hand import Work
from tests.engines.engines import BLOCK, Engine, delta, eventually, hand_off
from tests.engines.test_counts import check, prompt, steps

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500)]


def through(prefill: Engine, decode: Engine, tokens: list[int], outputs: int, pause: float = 0.0) -> float:
    """Send one request as a router would; returns the seconds that the client saw in all."""
    started = time.monotonic()
    first = prefill.complete(tokens, 1, kv_transfer_params=hand_off())
    time.sleep(pause)
    answer = decode.complete(tokens, outputs, kv_transfer_params=first["kv_transfer_params"])
    assert answer["usage"]["completion_tokens"] == outputs
    return time.monotonic() - started


@pytest.mark.parametrize("turned", [False, True], ids=["first to second", "second to first"])
def test_each_engine_counts_only_what_it_computed(pair: tuple[Engine, Engine], turned: bool) -> None:
    prefill, decode = reversed(pair) if turned else pair
    script = [(prompt(300), 20), (prompt(601), 5), (prompt(33), 3), (prompt(BLOCK), 8)]
    before = prefill.settle(), decode.settle()
    for tokens, outputs in script:
        through(prefill, decode, tokens, outputs)
    after = prefill.settle(), decode.settle()
    prompts = sum(len(tokens) for tokens, _ in script)

    computed, continued = Work(), Work()
    for tokens, outputs in script:
        computed.prompt(0, len(tokens), 256)
        for i in range(outputs):  # from the last prompt token on, which is computed again to sample from it
            continued.decode(len(tokens) - 1 + i)
    check(after[0], before[0], "prefill", computed)
    check(after[0], before[0], "decode", Work())
    check(after[1], before[1], "prefill", Work())
    check(after[1], before[1], "decode", continued)
    assert steps(after[1], before[1], "prefill", "mixed") == 0

    assert delta(after[1], before[1], "external_prompt_tokens_total") == prompts
    assert delta(after[0], before[0], "external_prompt_tokens_total") == 0
    assert delta(after[0], before[0], "prefills_finished_total") == len(script)
    assert delta(after[1], before[1], "prefills_finished_total") == 0
    assert delta(after[1], before[1], "requests_total", outcome="met") == len(script)
    assert delta(after[0], before[0], "request_prompt_tokens_sum") == prompts, "they arrived at the prefill engine"
    assert delta(after[0], before[0], "request_prompt_tokens_count") == len(script)
    assert delta(after[1], before[1], "request_prompt_tokens_count") == 0
    assert delta(after[1], before[1], "request_output_tokens_sum") == sum(outputs for _, outputs in script)
    for bound in (1, 2, 4, 8, 12, 16, 24):
        longer = [delta(a, b, "outputs_longer_total", tokens=str(bound)) for a, b in zip(after, before, strict=True)]
        assert longer == [0, sum(outputs > bound for _, outputs in script)], "outputs are those of the decode engine"
    for name in ("request_output_tokens_count", "time_to_first_token_seconds_count", "decode_gap_seconds_count"):
        assert delta(after[0], before[0], name) == 0
    assert sum(delta(after[0], before[0], "requests_total", outcome=o) for o in ("met", "gaps_late")) == 0


def test_only_what_was_not_in_the_decode_engines_own_cache_is_external(pair: tuple[Engine, Engine]) -> None:
    tokens = prompt(600)
    through(*pair, tokens, 4)
    before = pair[0].settle(), pair[1].settle()
    through(*pair, tokens, 4)
    after = pair[0].settle(), pair[1].settle()
    rest = 600 - 599 // BLOCK * BLOCK
    assert delta(after[0], before[0], "tokens_total", phase="prefill") == rest
    assert delta(after[1], before[1], "external_prompt_tokens_total") == rest
    assert delta(after[1], before[1], "tokens_total", phase="prefill") == 0


def test_the_first_token_is_timed_from_the_arrival_at_the_prefill_engine(pair: tuple[Engine, Engine]) -> None:
    before = pair[0].settle(), pair[1].settle()
    seconds = through(*pair, prompt(600), 1, pause=1.5)
    after = pair[0].settle(), pair[1].settle()
    computing = delta(after[0], before[0], "busy_seconds_total", phase="prefill")
    measured = delta(after[1], before[1], "time_to_first_token_seconds_sum")
    assert 1.5 + computing < measured < seconds


def test_kv_kept_for_a_reader_is_told_until_it_was_read(pair: tuple[Engine, Engine]) -> None:
    prefill, decode = pair
    tokens = prompt(200)
    first = prefill.complete(tokens, 1, kv_transfer_params=hand_off())
    assert prefill.state()["pinned_remote_reads"] == 1
    assert prefill.state()["running"] == 0
    decode.complete(tokens, 2, kv_transfer_params=first["kv_transfer_params"])
    eventually(lambda: prefill.state()["pinned_remote_reads"] == 0, "the prefill engine lets go of the KV", 60)


def test_a_decode_engine_that_was_given_no_kv_counts_the_prompt_it_computes(pair: tuple[Engine, Engine]) -> None:
    decode = pair[1]
    before = decode.settle()
    decode.complete(prompt(100), 3)  # as through a router that lost what the prefill engine answered
    after = decode.settle()
    assert delta(after, before, "tokens_total", phase="prefill") == 100
    assert delta(after, before, "external_prompt_tokens_total") == 0
