"""What the exporter costs vLLM itself: its real scheduler without a model, and a real engine with and without it."""

from __future__ import annotations

import random
import statistics
import tempfile
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from tests.bench.figures import Figure
from tests.engines.engine_python import SCHEDULER_SCRIPTS, answer_of
from tests.engines.engines import Engine, install_exporter, install_test_plugin, make_model, stream

CLIENTS, PROMPT, OUTPUTS = 16, 32, 1900
ROUNDS = 8
"""Some 14 minutes: fewer tell too little of half a percent."""
TURN = 8
"""Steps with the exporter or without it, before they change places: few, since what else runs on the machine changes
from second to second, and only neighbours can be compared."""
SETTLE = 2
"""Gaps after a change which belong to neither side: the engine obeys with its next step."""
LOST_WAKE_SECONDS = 1.0
"""A gap this long is none of a step: vLLM's workers look after 5 s again when a notification of theirs was lost."""


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


def throughput(rounds: int = ROUNDS) -> list[Figure]:
    """Throughput of one engine in steady decode, the exporter taken away and given back every few steps."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model", hidden=768, layers=3, feed_forward=2048, heads=12, kv_heads=4)
        install_exporter(folder / "plugin")
        install_test_plugin(folder / "plugin")
        switch = folder / "switch"
        variables = {"RIDGELINE_TEST_SWITCH_FILE": str(switch)}
        arguments = {"--kv-transfer-config": None, "--kv-cache-memory-bytes": 1024**3}
        engine = Engine("bench", folder / "model", folder / "plugin", folder, arguments, variables)
        try:
            engine.wait()
            engine.give_workers_a_core()  # else what else runs decides when they begin a step, and the clock tells that
            return _compare(engine, lambda on: switch.write_text("on" if on else "off"), rounds)
        finally:
            engine.stop()


def _compare(engine: Engine, switch: Callable[[bool], object], rounds: int) -> list[Figure]:
    turns: list[Turn] = []
    before = engine.metrics()
    for _ in range(rounds):
        turns += _round(engine, switch)
    switch(True)
    engine.complete([2] * PROMPT, 2)
    after = engine.metrics()

    def grown(name: str) -> float:
        return sum(after[key] - before[key] for key in after if key[0] == name)

    # Two turns with it and two without, the outer ones alike: what drifts steadily, as the contexts grow, cancels.
    quads = [turns[i : i + 4] for i in range(0, len(turns) - 3, 4)]
    lost, added = [], []
    for quad in quads:
        on, off = ([turn for turn in quad if turn.on is side] for side in (True, False))
        if all(turn.gaps for turn in quad):
            lost.append((_mean_gap(on) / _mean_gap(off) - 1.0) * 100)
        steps = sum(turn.core_seconds + turn.worker_seconds for turn in off)
        added.append((sum(turn.core_seconds for turn in on) - sum(turn.core_seconds for turn in off)) / steps * 100)
    note = f"median of {len(lost)} times {4 * TURN} decode steps of {CLIENTS} requests, with it and without in turn"
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


class Turn:
    """Some steps in a row, all with the exporter or all without it."""

    def __init__(self, on: bool, times: list[float], core_seconds: float, worker_seconds: float) -> None:
        """Keep the gaps between tokens at monotonic `times`, and the CPU time of the EngineCore and its workers."""
        self.on = on
        gaps = [later - earlier for earlier, later in pairwise(times)][SETTLE:]
        self.gaps = [gap for gap in gaps if gap < LOST_WAKE_SECONDS]
        self.core_seconds, self.worker_seconds = core_seconds, worker_seconds


def _mean_gap(turns: list[Turn]) -> float:
    return statistics.fmean(gap for turn in turns for gap in turn.gaps)


def _round(engine: Engine, switch: Callable[[bool], object]) -> list[Turn]:
    """Requests that decode side by side; the first one's tokens are the clock, as every step makes one of each."""

    def prompt() -> list[int]:
        return [random.randrange(2, 258) for _ in range(PROMPT)]

    switch(True)
    watched = stream(engine.url, prompt(), OUTPUTS)
    next(watched)
    others = [threading.Thread(target=engine.complete, args=(prompt(), OUTPUTS)) for _ in range(CLIENTS - 1)]
    for other in others:
        other.start()
    while engine.state()["running"] < CLIENTS:
        next(watched)
    turns, times, on = [], [next(watched)], True
    spent = engine.cpu_seconds()
    for time in watched:
        times.append(time)
        if len(times) > TURN + SETTLE:
            now = engine.cpu_seconds()
            turns.append(Turn(on, times, now[0] - spent[0], now[1] - spent[1]))
            on = len(turns) % 4 in (0, 3)
            switch(on)
            spent, times = now, [time]
    for other in others:
        other.join()
    return turns[: len(turns) // 4 * 4]


def _confidence(values: list[float], times: int = 4000) -> tuple[float, float]:
    """Where the median lies with 95 % confidence, from medians of the values drawn again and again."""
    dice = random.Random(1)
    medians = sorted(statistics.median(dice.choices(values, k=len(values))) for _ in range(times))
    return medians[times // 40], medians[-times // 40]
