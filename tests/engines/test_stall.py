"""The decode stall that the exporter computes against the gaps that clients see."""

from __future__ import annotations

import itertools
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.engines.engines import BUDGET, Engine, Metrics, delta, stream
from tests.engines.test_counts import prompt, steps

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500)]

CLIENTS, PROMPTS, CHUNKS, OUTPUTS, ROUNDS = 2, 8, 7, 1500, 5
LONG = 2.0
"""A mixed step takes several times as long as a decode-only one; what is shorter is noise on the way to the client."""
PAUSE_SECONDS = 1.0
"""vLLM's processes at times miss each other's notice and sleep until a time-out of five seconds, in any kind of step."""


def test_the_stall_is_the_excess_of_the_gaps_that_clients_see(engine: Engine) -> None:
    """Both sides time the same steps, so a slow machine changes both; each mixed step holds a whole budget of prompt.

    What else the machine does delays the answers on their way, which only clients see: one round without that counts.
    """
    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(lambda tokens: engine.complete(tokens, 150), [prompt(40) for _ in range(CLIENTS)]))
    found = []
    for _ in range(ROUNDS):
        before = engine.settle()
        assert ("decode_baseline_seconds", ()) in before
        excess = _decode_beside_prompts(engine, before)
        after = engine.settle()
        mixed = steps(after, before, "mixed")
        assert delta(after, before, "decode_stall_seconds_count") == mixed >= CHUNKS * PROMPTS
        found.append((delta(after, before, "decode_stall_sequence_seconds_total"), excess))
        paused = delta(after, before, "decode_stall_seconds_bucket", le=str(PAUSE_SECONDS)) < mixed
        if not paused and found[-1][0] == pytest.approx(excess, rel=0.1):
            return
    pytest.fail(f"stall by the exporter and by the clients, seconds, in {ROUNDS} rounds: {found}")


def _decode_beside_prompts(engine: Engine, before: Metrics) -> float:
    """Let some clients decode while prompts come; returns by how much gaps were longer than usual meanwhile."""
    windows: list[tuple[float, float]] = []
    with ThreadPoolExecutor(CLIENTS) as clients:
        decoding = [clients.submit(lambda: list(stream(engine.url, prompt(40), OUTPUTS))) for _ in range(CLIENTS)]
        for i in range(PROMPTS):
            while delta(engine.metrics(), before, "tokens_total", phase="decode") < 200 + 200 * i:
                assert not any(each.done() for each in decoding), "the decodes ended too soon to show anything"
            sent = time.monotonic()
            engine.complete(prompt(CHUNKS * BUDGET), 1)
            windows.append((sent, time.monotonic()))
        arrivals = [each.result() for each in decoding]
    excess = 0.0
    for times in arrivals:
        gaps = list(itertools.pairwise(times))
        usual = statistics.median(later - earlier for earlier, later in gaps)
        for earlier, later in gaps:
            beside = any(earlier < answered and later > sent for sent, answered in windows)
            if beside and LONG * usual < later - earlier < PAUSE_SECONDS:
                excess += later - earlier - usual
    return excess
