"""Cost of the exporter's hooks, its memory and its scrapes, on synthetic scheduler outputs in this process."""

from __future__ import annotations

import gc
import statistics
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from ridgeline_exporters.engine.server import ExporterServer
from tests.bench.figures import Figure
from tests.engine_exporter.synthetic import (
    Bench,
    SyntheticEngineOutput,
    SyntheticEngineOutputs,
    SyntheticFinishReason,
    SyntheticSchedulerOutput,
    step,
    token,
)

RUNNING, CONTEXT = 256, 4096
PAGE_KILOBYTES = 4.0


class Load:
    """A batch that decodes for ever."""

    def __init__(self, running: int = RUNNING, context: int = CONTEXT) -> None:
        self.bench = Bench()
        self.names = [f"cmpl-{i:032x}-0" for i in range(running)]
        self.context = context
        self._guests: list[str] = []
        self._ended: set[str] = set()
        for name in self.names:
            self.bench.scheduler.running.append(self.bench.request(name, context))
        new = dict.fromkeys(self.names, (context, 0, context))
        self.bench.run(step(new=new), 0.1, *[token(name) for name in self.names])

    def decode(self) -> float:
        """One step of all of them; returns the seconds that the hooks took."""
        return self._step()

    def begin(self, prompts: int) -> float:
        """The same with so many new prompts of 512 tokens beside them, each of which gets its first token."""
        names = [f"guest-{self.context}-{i:024x}-0" for i in range(prompts)]
        for name in names:
            self.bench.request(name, 512)
        seconds = self._step(new=names)
        self._guests = names
        return seconds

    def end(self) -> float:
        """The same with the last tokens of those that came with the step before."""
        ending, self._guests = self._guests, []
        seconds = self._step(ending=ending)
        for name in ending:
            del self.bench.scheduler.requests[name]
        self._ended = set(ending)
        return seconds

    def _step(self, new: Sequence[str] = (), ending: Sequence[str] = ()) -> float:
        output = step(
            new=dict.fromkeys(new, (512, 0, 512)),
            cached=dict.fromkeys(self.names, (self.context, 1)) | dict.fromkeys(ending, (512, 1)),
            finished=self._ended,
        )
        last = [token(name, finish_reason=SyntheticFinishReason.LENGTH) for name in ending]
        tokens = {0: SyntheticEngineOutputs([*map(token, self.names), *last, *map(token, new)])}
        self.context += 1
        self._ended = set()
        return _clock(self.bench, output, tokens)


def _clock(bench: Bench, output: SyntheticSchedulerOutput, tokens: dict[int, SyntheticEngineOutputs]) -> float:
    begun = time.perf_counter()
    bench.exporter.before_schedule()
    bench.exporter.after_schedule(output, bench.monotonic.now)
    middle = time.perf_counter()
    bench.pass_time(0.01)
    resumed = time.perf_counter()
    bench.exporter.after_update(output, tokens, bench.monotonic.now)
    return time.perf_counter() - resumed + middle - begun


def step_cost(steps: int = 2000) -> list[Figure]:
    """Median time of the hooks per step."""
    load = Load()
    decode = [load.decode() for _ in range(steps)][steps // 10 :]
    mixed = [(load.begin(prompts=4), load.end()) for _ in range(steps // 4)]
    assert load.bench.exporter.up
    begin, end = (statistics.median(each) * 1e6 for each in zip(*mixed, strict=True))
    note = f"median over {steps} steps of {RUNNING} requests with {CONTEXT} tokens, on synthetic scheduler outputs"
    return [
        Figure("hooks, decode step", statistics.median(decode) * 1e6, "µs", 50.0, note),
        Figure("hooks, mixed step", begin, "µs", 50.0, "the same with four new prompts and their first tokens"),
        Figure("hooks, step of last tokens", end, "µs", 50.0, "the same with four requests that end"),
    ]


def memory(steps: int = 1_000_000) -> list[Figure]:
    """Growth of the process over a million steps in which requests come and go."""
    bench = Bench()
    length, batch = 40, 4
    settled = 0.0
    for i in range(steps):
        if i == steps // 10:
            settled = _resident_kilobytes()
        _churn(bench, i, length, batch)
    assert bench.exporter.up
    grown = _resident_kilobytes() - settled
    note = f"resident memory after {steps:,} steps, less that after a tenth of them; {batch} requests come and go"
    return [Figure("memory growth", grown / 1024, "MiB", 1.0, note)]


def _churn(bench: Bench, i: int, length: int, batch: int) -> None:
    """Step i of a stream of requests of 8 prompt tokens and `length` output tokens, `batch` of them at a time."""
    age, generation = i % length, i // length
    names = [f"{generation}-{k}" for k in range(batch)]
    reason = SyntheticFinishReason.LENGTH if age == length - 1 else None
    tokens = [SyntheticEngineOutput(name, [7], reason) for name in names]
    if age == 0:
        ended = {f"{generation - 1}-{k}" for k in range(batch)}
        for name in ended:
            bench.scheduler.requests.pop(name, None)
        bench.scheduler.running = [bench.request(name, 8) for name in names]
        output = step(new=dict.fromkeys(names, (8, 0, 8)), finished=ended)
    else:
        output = step(cached=dict.fromkeys(names, (7 + age, 1)))
    bench.run(output, 0.01, *tokens)


def _resident_kilobytes() -> float:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_KILOBYTES


def scrapes(seconds: float = 6.0) -> list[Figure]:
    """How long a scrape takes while an engine steps, and how much later a step's hooks end because of it."""
    load = Load()
    with ExporterServer(("127.0.0.1", 0), load.bench.exporter, None) as server:
        server.start()
        alone = _paced(load, seconds)
        over = threading.Event()
        taken: list[float] = []

        def scrape() -> None:
            while not over.wait(0.05):
                begun = time.perf_counter()
                with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
                    answer.read()
                taken.append(time.perf_counter() - begun)

        scraper = threading.Thread(target=scrape)
        scraper.start()
        scraped = _paced(load, seconds)
        over.set()
        scraper.join()
        server.shutdown()
    later = _tail(scraped) - _tail(alone)
    return [
        Figure("scrape", statistics.median(taken) * 1e3, "ms", 10.0, f"median of {len(taken)} over HTTP"),
        Figure(
            "step later by scrapes", max(0.0, later) * 1e3, "ms", None,
            f"99th percentile of wake-up and hooks with 20 scrapes a second, less that without; {len(scraped)} steps",
        ),
    ]  # fmt: skip


def _paced(load: Load, seconds: float) -> list[float]:
    """Steps of 5 ms in which the loop waits as for a GPU; how much longer each took than its wait."""
    lateness = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begun = time.perf_counter()
        time.sleep(0.005)
        woken = time.perf_counter()
        lateness.append(woken - begun - 0.005 + load.decode())
    return lateness


def _tail(values: list[float]) -> float:
    return sorted(values)[int(0.99 * len(values))]
