"""Counters of a real engine against a count by hand."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from ridgeline_exporters.engine.metrics import OUTPUT_TOKENS
from tests.engines.by_hand import STEP_WEIGHT_BYTES, Work
from tests.engines.engines import BLOCK, BUDGET, Engine, Metrics, delta

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500)]

PHASES = ("prefill", "decode")


def prompt(length: int) -> list[int]:
    """Random tokens: no two prompts share a block."""
    return [random.randrange(2, 258) for _ in range(length)]


def steps(after: Metrics, before: Metrics, *kinds: str) -> int:
    return int(sum(delta(after, before, "step_seconds_count", kind=kind) for kind in kinds))


def check(after: Metrics, before: Metrics, phase: str, work: Work) -> None:
    """Compare what can be counted whatever the steps were made of."""
    assert delta(after, before, "tokens_total", phase=phase) == work.tokens
    assert delta(after, before, "flops_total", phase=phase) == pytest.approx(work.flops, rel=1e-9)
    for kind, count in (("kv_write", work.kv_write), ("activations", work.activations)):
        assert delta(after, before, "memory_bytes_total", phase=phase, kind=kind) == pytest.approx(count, rel=1e-9)


def test_one_request_at_a_time_every_number_is_that_of_the_hand_count(engine: Engine) -> None:
    long, short = prompt(600), prompt(100)
    before = engine.settle()
    prefill, decode = Work(), Work()
    prefill_steps = decode_steps = 0
    script = [
        (long, 40, 0),  # three chunks: 256, 256 and 88
        (short, 1, 0),  # no decode step at all
        (prompt(BUDGET), 3, 0),  # one full chunk
        (prompt(BUDGET + 1), 5, 0),  # the second chunk is a single token, and prefill all the same
        (long, 10, 599 // BLOCK * BLOCK),  # in the cache but for the last, incomplete block
        (long[: 10 * BLOCK] + prompt(50), 7, 10 * BLOCK),  # ten blocks in the cache, then something new
    ]
    for tokens, outputs, cached in script:
        assert engine.complete(tokens, outputs)["usage"]["completion_tokens"] == outputs
        prefill_steps += prefill.prompt(cached, len(tokens), BUDGET)
        for i in range(outputs - 1):  # the last token is handed out and never computed with
            decode.decode(len(tokens) + i)
            decode_steps += 1
    after = engine.settle()
    check(after, before, "prefill", prefill)
    check(after, before, "decode", decode)
    for phase, work, count in (("prefill", prefill, prefill_steps), ("decode", decode, decode_steps)):
        assert steps(after, before, phase) == count
        read = delta(after, before, "memory_bytes_total", phase=phase, kind="kv_read")
        assert read == pytest.approx(work.kv_read, rel=1e-9)
        weights = delta(after, before, "memory_bytes_total", phase=phase, kind="weights")
        assert weights == pytest.approx(count * STEP_WEIGHT_BYTES, rel=1e-9)
    assert steps(after, before, "mixed") == 0
    assert delta(after, before, "requests_total", outcome="met") == len(script)
    assert delta(after, before, "prefills_finished_total") == len(script)
    assert delta(after, before, "external_prompt_tokens_total") == 0
    assert delta(after, before, "request_prompt_tokens_sum") == sum(len(tokens) for tokens, _, _ in script)
    assert delta(after, before, "request_output_tokens_sum") == sum(outputs for _, outputs, _ in script)
    for bound in OUTPUT_TOKENS:
        longer = delta(after, before, "outputs_longer_total", tokens=str(bound))
        assert longer == sum(outputs > bound for _, outputs, _ in script)
    assert delta(after, before, "decode_gap_seconds_count") == sum(outputs - 1 for _, outputs, _ in script)
    assert delta(after, before, "time_to_first_token_seconds_count") == len(script)
    assert after[("exporter_up", ())] == 1
    assert after[("exporter_errors_total", ())] == 0


def test_many_requests_at_once_add_up_to_the_hand_count(engine: Engine) -> None:
    script = [(prompt(random.randint(40, 500)), random.randint(2, 60)) for _ in range(12)]
    before = engine.settle()
    with ThreadPoolExecutor(len(script)) as clients:
        list(clients.map(lambda job: engine.complete(*job), script))
    after = engine.settle()
    prefill, decode = Work(), Work()
    for tokens, outputs in script:
        prefill.prompt(0, len(tokens), BUDGET)
        for i in range(outputs - 1):
            decode.decode(len(tokens) + i)
    check(after, before, "prefill", prefill)
    check(after, before, "decode", decode)
    read = delta(after, before, "memory_bytes_total", phase="decode", kind="kv_read")
    assert read == pytest.approx(decode.kv_read, rel=1e-9)
    assert steps(after, before, "mixed") > 0
    weights = sum(delta(after, before, "memory_bytes_total", phase=phase, kind="weights") for phase in PHASES)
    assert weights == pytest.approx(steps(after, before, "prefill", "decode", "mixed") * STEP_WEIGHT_BYTES, rel=1e-9)
    busy = sum(delta(after, before, "busy_seconds_total", phase=phase) for phase in PHASES)
    seconds = sum(delta(after, before, "step_seconds_sum", kind=kind) for kind in (*PHASES, "mixed"))
    assert busy == pytest.approx(seconds, rel=1e-6)
    with_decodes = sum(delta(after, before, "step_seconds_sum", kind=kind) for kind in ("decode", "mixed"))
    assert delta(after, before, "decode_seconds_total") == pytest.approx(with_decodes, rel=1e-6)
    assert delta(after, before, "requests_total", outcome="met") == len(script)


def test_stall_is_seen_once_the_baseline_is_known(engine: Engine) -> None:
    engine.complete(prompt(40), 200)
    before = engine.settle()
    assert before[("decode_baseline_samples", ())] >= 100
    with ThreadPoolExecutor(1) as clients:
        decoding = clients.submit(engine.complete, prompt(40), 1200)
        while delta(engine.metrics(), before, "tokens_total", phase="decode") < 5:
            assert not decoding.done()
        for _ in range(3):
            engine.complete(prompt(900), 1)
        assert not decoding.done(), "the machine let the decode end too soon to show anything"
        decoding.result()
    after = engine.settle()
    assert delta(after, before, "decode_stall_seconds_count") == steps(after, before, "mixed") >= 12
    stalled = delta(after, before, "decode_stall_seconds_total")
    assert 0 < stalled < delta(after, before, "decode_seconds_total")
    assert delta(after, before, "decode_stall_sequence_seconds_total") == pytest.approx(stalled), "one decode waited"


def test_objectives_posted_live_judge_the_next_requests(engine: Engine) -> None:
    before = engine.settle()
    impossible = {"time_to_first_token_milliseconds": 1, "inter_token_latency_milliseconds": 600_000}
    assert engine.put("objectives", impossible)[0] == 200
    engine.complete(prompt(100), 5)
    possible = {"time_to_first_token_milliseconds": 600_000, "inter_token_latency_milliseconds": 1}
    assert engine.put("objectives", possible)[0] == 200
    engine.complete(prompt(100), 30)
    after = engine.settle()
    assert delta(after, before, "requests_total", outcome="first_token_late") == 1
    assert delta(after, before, "requests_total", outcome="gaps_late") == 1


def test_the_static_facts_are_those_of_the_engine(engine: Engine) -> None:
    metrics = engine.metrics()
    labels = next(dict(key[1]) for key in metrics if key[0] == "info")
    assert labels["model"] == "tiny"
    assert (labels["dtype"], labels["coverage"], labels["weights"]) == ("float16", "full", "loaded")
    assert metrics[("weight_bytes", ())] == STEP_WEIGHT_BYTES
    assert metrics[("kv_bytes_per_token", ())] == 1024
    assert metrics[("kv_capacity_tokens", ())] == 256 * 1024**2 // 1024
    assert metrics[("peak_flops", ())] == 0.1e12
    assert metrics[("ridge_flops_per_byte", ())] == 5.0
