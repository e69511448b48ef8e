"""What the exporter costs vLLM itself: its real scheduler without a model, and a real engine with and without it."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.bench.figures import Figure
from tests.engines.engine_python import SCHEDULER_SCRIPTS, answer_of
from tests.engines.engines import Engine, install_exporter, install_test_plugin, make_model

CLIENTS, PROMPT, OUTPUTS = 16, 32, 48
PAIRS = 60
"""Many and short: what else runs on the machine changes from second to second, and only neighbours can be compared."""


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
        make_model(folder / "model", hidden=768, layers=3, feed_forward=2048, heads=12, kv_heads=4)
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


@dataclass(frozen=True, slots=True)
class Run:
    """What some requests took."""

    seconds: float
    """Of the clock, from the first request to the last answer."""
    core_seconds: float
    """CPU time of the EngineCore, on whose loop the hooks run."""
    worker_seconds: float
    """CPU time of the workers, which hold the model."""


def _pairs(engine: Engine, switch: Callable[[bool], object], pairs: int) -> list[Figure]:
    with ThreadPoolExecutor(CLIENTS) as clients:

        def run(on: bool) -> Run:
            switch(on)
            prompts = [[random.randrange(2, 258) for _ in range(PROMPT)] for _ in range(CLIENTS)]
            core, workers = engine.cpu_seconds()
            begun = time.perf_counter()
            list(clients.map(lambda tokens: engine.complete(tokens, OUTPUTS), prompts))
            seconds = time.perf_counter() - begun
            core_now, workers_now = engine.cpu_seconds()
            return Run(seconds, core_now - core, workers_now - workers)

        for on in (True, False, True, False):
            run(on)  # warm
        before = engine.metrics()
        taken = []
        for i in range(pairs):
            runs = {on: run(on) for on in ((True, False) if i % 2 else (False, True))}
            taken.append((runs[True], runs[False]))
        switch(True)
        after = engine.metrics()

    def grown(name: str) -> float:
        return sum(after[key] - before[key] for key in after if key[0] == name)

    note = f"median of {pairs} pairs, in turn on one engine, {CLIENTS} requests of {OUTPUTS} tokens each"
    lost = [(on.seconds / off.seconds - 1.0) * 100 for on, off in taken]
    added = [
        (on.core_seconds - off.core_seconds) / (off.core_seconds + off.worker_seconds) * 100 for on, off in taken
    ]
    return [
        Figure("throughput lost, clock", statistics.median(lost), "%", 0.5, note, _confidence(lost)),
        Figure(
            "throughput lost, CPU time", statistics.median(added), "%", 0.5,
            f"what the EngineCore takes more, of what it and its workers take; {note}", _confidence(added),
        ),
        Figure(
            "hooks' share of steps", grown("exporter_seconds_total") / grown("busy_seconds_total") * 100, "%", 0.5,
            "by the exporter's own clocks",
        ),
        Figure(
            "hooks, real engine", grown("exporter_seconds_total") / grown("step_seconds_count") * 1e6, "µs", None,
            f"mean of {grown('step_seconds_count'):.0f} steps, which take "
            f"{grown('busy_seconds_total') / grown('step_seconds_count') * 1e3:.0f} ms on this machine",
        ),
    ]  # fmt: skip


def _confidence(values: list[float], times: int = 4000) -> tuple[float, float]:
    """Where the median lies with 95 % confidence, from medians of the values drawn again and again."""
    dice = random.Random(1)
    medians = sorted(statistics.median(dice.choices(values, k=len(values))) for _ in range(times))
    return medians[times // 40], medians[-times // 40]
