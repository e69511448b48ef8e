"""The decode stall that the exporter computes against the gaps that clients see."""

from __future__ import annotations

import itertools
import statistics
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.engines.engines import BUDGET, Engine, delta, stream
from tests.engines.test_counts import prompt, steps

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500)]

CLIENTS, PROMPTS = 2, 12


def test_the_stall_is_the_excess_of_the_gaps_that_clients_see(engine: Engine) -> None:
    """Both sides time the same steps, so a slow machine changes both; each mixed step holds a whole budget of prompt."""
    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(lambda tokens: engine.complete(tokens, 150), [prompt(40) for _ in range(CLIENTS)]))
        before = engine.settle()
        assert ("decode_baseline_seconds", ()) in before
        decoding = [clients.submit(lambda: list(stream(engine.url, prompt(40), 1900))) for _ in range(CLIENTS)]
        while delta(engine.metrics(), before, "tokens_total", phase="decode") < 200:
            assert not any(each.done() for each in decoding)
        for _ in range(PROMPTS):
            engine.complete(prompt(4 * BUDGET), 1)
            rested = delta(engine.metrics(), before, "tokens_total", phase="decode") + 60
            while delta(engine.metrics(), before, "tokens_total", phase="decode") < rested:
                assert not any(each.done() for each in decoding), "the decodes ended too soon to show anything"
        arrivals = [each.result() for each in decoding]
    after = engine.settle()
    mixed = steps(after, before, "mixed")
    assert delta(after, before, "decode_stall_seconds_count") == mixed >= 4 * PROMPTS
    excess = 0.0
    for times in arrivals:
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        usual = statistics.median(gaps)
        excess += sum(gap - usual for gap in gaps if gap > 2.0 * usual)
    stalled = delta(after, before, "decode_stall_sequence_seconds_total")
    print(f"stall {stalled:.3f} s, excess {excess:.3f} s, ratio {stalled / excess:.3f}, {mixed} mixed steps")
    assert stalled == pytest.approx(excess, rel=0.1)
