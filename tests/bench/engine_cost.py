"""What the exporter costs vLLM itself: its real scheduler without a model, and a real engine with and without it."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.bench.figures import Figure
from tests.engines.engine_python import SCHEDULER_SCRIPTS, answer_of
from tests.engines.engines import Engine, install_exporter, install_test_plugin, make_model

CLIENTS, PROMPT, OUTPUTS = 16, 32, 96
PAIRS = 40


def scheduler_cost() -> list[Figure]:
    """Hooks and scheduling on the real scheduler, with 256 requests of 4,096 tokens."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model", positions=8192)
        install_exporter(folder / "plugin")
        measured = answer_of(
            SCHEDULER_SCRIPTS / "time_hooks.py", folder / "model", plugin=folder / "plugin",
            RIDGELINE_EXPORTER_HOST="127.0.0.1", RIDGELINE_EXPORTER_PORT="0", RIDGELINE_PEAK_TERAFLOPS="989",
            RIDGELINE_PEAK_GIGABYTES_PER_SECOND="3350",
        )  # fmt: skip
    note = f"median over {measured['steps']} decode steps of vLLM's scheduler, without a model"
    return [
        Figure("hooks, real scheduler", measured["hooks"] * 1e6, "µs", 50.0, note),
        Figure("vLLM's own scheduling", measured["scheduler"] * 1e6, "µs", None, "what the scheduler itself takes"),
    ]


def throughput(pairs: int = PAIRS) -> list[Figure]:
    """Throughput of one engine, the exporter taken away from every second run of requests."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model", hidden=768, layers=6, feed_forward=2048, heads=12, kv_heads=4)
        install_exporter(folder / "plugin")
        install_test_plugin(folder / "plugin")
        switch = folder / "switch"
        variables = {"RIDGELINE_TEST_SWITCH_FILE": str(switch)}
        engine = Engine("bench", folder / "model", folder / "plugin", folder, {"--kv-transfer-config": None}, variables)
        try:
            engine.wait()
            return _pairs(engine, lambda on: switch.write_text("on" if on else "off"), pairs)
        finally:
            engine.stop()


def _pairs(engine: Engine, switch: Callable[[bool], object], pairs: int) -> list[Figure]:
    with ThreadPoolExecutor(CLIENTS) as clients:

        def run(on: bool) -> float:
            switch(on)
            prompts = [[random.randrange(2, 258) for _ in range(PROMPT)] for _ in range(CLIENTS)]
            begun = time.perf_counter()
            list(clients.map(lambda tokens: engine.complete(tokens, OUTPUTS), prompts))
            return time.perf_counter() - begun

        for on in (True, False, True, False):
            run(on)  # warm
        before = engine.metrics()
        ratios, shares = [], []
        for i in range(pairs):
            order = (True, False) if i % 2 else (False, True)
            taken = {on: run(on) for on in order}
            ratios.append(taken[True] / taken[False] - 1.0)
            shares.append(taken[True])
        switch(True)
        after = engine.metrics()
    hooks = after[("exporter_seconds_total", ())] - before[("exporter_seconds_total", ())]
    spread = sorted(_medians(ratios))
    low, high = spread[len(spread) // 20] * 100, spread[-len(spread) // 20] * 100
    note = (
        f"median of {pairs} interleaved pairs on one engine, {CLIENTS} requests of {OUTPUTS} tokens each;"
        f" 90 % of resampled medians lie between {low:.2f} and {high:.2f} %"
    )
    return [
        Figure("throughput lost", statistics.median(ratios) * 100, "%", 0.5, note),
        Figure("hooks' share of the time", hooks / sum(shares) * 100, "%", 0.5, "by the exporter's own clock"),
    ]


def _medians(values: list[float], times: int = 2000) -> list[float]:
    dice = random.Random(1)
    return [statistics.median(dice.choices(values, k=len(values))) for _ in range(times)]
