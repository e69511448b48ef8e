"""The decode stall that the exporter computes against the gaps that clients see."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.engines.engines import Engine, Metrics, delta, stream
from tests.engines.test_counts import prompt, steps

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500)]

CLIENTS, PROMPTS, CHUNKS, OUTPUTS, ROUNDS = 2, 8, 2, 1500, 5
STEP_TOKENS = 960
"""A step full of prompt takes twenty times as long as a decode-only one: the milliseconds that an answer spends on its
way to the client are little against that."""
PAUSE_SECONDS = 1.0
"""vLLM's processes at times miss each other's notice and sleep until a time-out of five seconds, in any kind of step."""


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    """An engine whose steps take long prompts whole."""
    limit = {"--max-num-batched-tokens": STEP_TOKENS + CLIENTS, "--kv-transfer-config": None}
    started = Engine("stalling", folder / "model", folder / "plugin", folder, limit)
    try:
        started.wait()
        yield started
    finally:
        started.stop()


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
        usual, beside = _decode_beside_prompts(engine, before)
        after = engine.settle()
        mixed = steps(after, before, "mixed")
        # A mixed step makes one gap of each client long; whatever else delays an answer on its way is not its doing.
        excess = sum(gap - usual for gap in sorted(beside)[-round(CLIENTS * mixed) :])
        assert delta(after, before, "decode_stall_seconds_count") == mixed >= CHUNKS * PROMPTS
        print(f"usual gap {1000 * usual:.2f} ms, mixed steps {mixed:.0f}, excess {excess:.3f} s")
        found.append((delta(after, before, "decode_stall_sequence_seconds_total"), excess))
        paused = delta(after, before, "decode_stall_seconds_bucket", le=str(PAUSE_SECONDS)) < mixed
        if not paused and found[-1][0] == pytest.approx(excess, rel=0.1):
            return
    pytest.fail(f"stall by the exporter and by the clients, seconds, in {ROUNDS} rounds: {found}")


def _decode_beside_prompts(engine: Engine, before: Metrics) -> tuple[float, list[float]]:
    """Let some clients decode while prompts come; returns the usual gap, and those while prompts were computed."""
    windows: list[tuple[float, float]] = []
    with ThreadPoolExecutor(CLIENTS) as clients:
        decoding = [clients.submit(lambda: list(stream(engine.url, prompt(40), OUTPUTS))) for _ in range(CLIENTS)]
        for i in range(PROMPTS):
            while delta(engine.metrics(), before, "tokens_total", phase="decode") < 200 + 200 * i:
                assert not any(each.done() for each in decoding), "the decodes ended too soon to show anything"
            sent = time.monotonic()
            engine.complete(prompt(CHUNKS * STEP_TOKENS), 1)
            windows.append((sent, time.monotonic()))
        arrivals = [each.result() for each in decoding]
    gaps = [gap for times in arrivals for gap in itertools.pairwise(times)]
    beside = [
        later - earlier
        for earlier, later in gaps
        if any(earlier < answered and later > sent for sent, answered in windows)
    ]
    usual = statistics.median(later - earlier for earlier, later in gaps)
    return usual, [gap for gap in beside if gap < PAUSE_SECONDS]
