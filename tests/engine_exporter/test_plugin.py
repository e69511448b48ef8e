from __future__ import annotations

import logging
import socket
import sys
import types
import urllib.request
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ridgeline_exporters.engine import plugin, weights
from ridgeline_exporters.engine.exporter import Exporter
from ridgeline_exporters.engine.server import ExporterServer
from ridgeline_exporters.engine.settings import Settings
from tests.engine_exporter.synthetic import SHAPE, Bench, SyntheticRequest, SyntheticScheduler, step, token


class Wrapped(SyntheticScheduler):
    """A scheduler class of this module's own, so that wrapping it touches no other test."""


class AsyncWrapped(Wrapped):
    """As vLLM's AsyncScheduler: inherits what is wrapped."""


@pytest.fixture(scope="module", autouse=True)
def _wrap() -> None:
    plugin.wrap(Wrapped)
    plugin.wrap(Wrapped)  # vLLM may load plug-ins more than once


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Exporter]:
    """Exporters of the schedulers that a test builds; they serve nothing."""
    exporters: list[Exporter] = []

    def start(scheduler: Any) -> None:
        bench = Bench()
        bench.exporter._scheduler = scheduler
        exporters.append(bench.exporter)
        scheduler._ridgeline_exporter = bench.exporter

    monkeypatch.setattr(plugin, "start_exporter", start)
    return exporters


@pytest.mark.parametrize("kind", [Wrapped, AsyncWrapped])
def test_each_call_reaches_the_scheduler_once_and_its_answer_the_engine(
    kind: type[Wrapped], started: list[Exporter]
) -> None:
    scheduler = kind()
    output = step()
    scheduler.to_schedule.append(output)
    assert scheduler.schedule(False) is output
    tokens = [token("a")]
    assert scheduler.update_from_output(output, tokens)[0].outputs is tokens
    assert scheduler.finish_requests(["a"], None) == []
    request = SyntheticRequest("b", 8)
    scheduler.add_request(request)
    assert scheduler.requests == {"b": request}
    assert scheduler.calls == ["schedule", "update", "finish", "add"]
    assert len(started) == 1
    assert started[0].up


def test_steps_of_a_wrapped_scheduler_are_counted(started: list[Exporter]) -> None:
    scheduler = Wrapped()
    scheduler.to_schedule.append(step(new={"a": (8, 0, 8)}))
    scheduler.update_from_output(scheduler.schedule(), [token("a")])
    assert started[0].totals.tokens == {"prefill": 8, "decode": 0}


def test_a_request_of_a_wrapped_scheduler_arrives_with_the_prompt_that_it_came_with(started: list[Exporter]) -> None:
    class Shortening(Wrapped):
        """As a connector that has the decode engine compute the end of each prompt."""

        def _enqueue(self, request: SyntheticRequest) -> None:
            request.num_prompt_tokens -= 1

    scheduler = Shortening()
    request = SyntheticRequest("a", 8)
    scheduler.add_request(request)
    assert request.num_prompt_tokens == 7
    assert scheduler.requests == {"a": request}
    assert started[0].totals.prompt_tokens.total == 8


def test_a_posted_limit_is_in_force_in_the_very_next_step(started: list[Exporter]) -> None:
    scheduler = Wrapped()
    started[0].put_limits({"max_num_scheduled_tokens": 64})
    scheduler.to_schedule.append(step())
    scheduler.schedule()
    assert scheduler.budgets == [64]


def raise_(*_: Any) -> None:
    raise ValueError("planted")


FAULTS = [
    pytest.param(lambda e: setattr(e._control, "apply", raise_), id="applying a limit"),
    pytest.param(lambda e: setattr(e, "_note_arrival", raise_), id="noting an arrival"),
    pytest.param(lambda e: setattr(e, "_note_scheduled", raise_), id="noting a step"),
    pytest.param(lambda e: setattr(e, "_account", raise_), id="accounting"),
    pytest.param(lambda e: setattr(e._accounting, "add", raise_), id="the totals"),
    pytest.param(lambda e: setattr(e._accounting._baseline, "add", raise_), id="the baseline"),
    pytest.param(lambda e: setattr(e._tokens, "note", raise_), id="the requests' clocks"),
    pytest.param(lambda e: setattr(e._tokens, "judge_cut", raise_), id="judging requests"),
    pytest.param(lambda e: setattr(e, "_monotonic", raise_), id="the clock"),
    pytest.param(lambda e: e._in_flight.append("nonsense"), id="the exporter's own state"),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_hook_never_reaches_the_engine(fault: Callable[[Exporter], Any], started: list[Exporter]) -> None:
    scheduler = Wrapped()
    fault(started[0])
    for i in range(5):
        scheduler.add_request(SyntheticRequest(f"r{i}", 8))
        output = step(new={"a": (8, 0, 8)}) if i == 0 else step(cached={"a": (7 + i, 1)})
        scheduler.to_schedule.append(output)
        assert scheduler.schedule() is output
        assert scheduler.update_from_output(output, [token("a")])[0].outputs
        assert scheduler.finish_requests([], None) == []
    assert scheduler.calls == ["add", "schedule", "update", "finish"] * 5
    assert started[0].totals.errors <= 1


def test_an_error_of_the_engine_is_passed_on_unchanged(started: list[Exporter]) -> None:
    scheduler = Wrapped()
    with pytest.raises(IndexError):
        scheduler.schedule()  # nothing was queued
    assert scheduler.calls == ["schedule"]
    assert started[0].up


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ExporterServer]]:
    """Servers that a test starts, on free ports of the loopback interface."""
    servers: list[ExporterServer] = []

    class Kept(ExporterServer):
        def start(self) -> None:
            servers.append(self)
            super().start()

    monkeypatch.setattr(plugin, "ExporterServer", Kept)
    monkeypatch.setenv("RIDGELINE_EXPORTER_HOST", "127.0.0.1")
    monkeypatch.setenv("RIDGELINE_EXPORTER_PORT", "0")
    yield servers
    for server in servers:
        server.shutdown()
        server.server_close()


def works_as_ever(scheduler: SyntheticScheduler) -> None:
    output = step()
    scheduler.to_schedule.append(output)
    assert scheduler.schedule() is output
    assert scheduler.update_from_output(output, [])
    assert scheduler.finish_requests([], None) == []
    assert scheduler.calls == ["schedule", "update", "finish"]


def scrape(server: ExporterServer) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def test_an_exporter_that_cannot_read_the_engine_serves_that_it_is_down(
    served: list[ExporterServer], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    works_as_ever(Wrapped())  # it has no configuration that could be read
    text = scrape(served[0])
    assert "ridgeline_engine_exporter_up 0.0" in text
    assert "ridgeline_engine_exporter_errors_total 1.0" in text
    assert len(caplog.records) == 1


def test_a_scheduler_that_lacks_a_method_gets_an_exporter_that_is_down(
    served: list[ExporterServer], caplog: pytest.LogCaptureFixture
) -> None:
    class Renamed:
        def schedule(self) -> str:
            return "as ever"

    caplog.set_level(logging.WARNING)
    plugin.wrap(Renamed)
    assert Renamed().schedule() == "as ever"
    assert "ridgeline_engine_exporter_up 0.0" in scrape(served[0])
    assert [record.message for record in caplog.records] == [
        "The Ridgeline exporter does not know this vLLM and is off: "
        "its scheduler has no update_from_output and no finish_requests and no add_request."
    ]


def test_a_taken_port_leaves_the_engine_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(plugin, "_build", lambda *_: Bench().exporter)
    monkeypatch.setenv("RIDGELINE_EXPORTER_HOST", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("RIDGELINE_EXPORTER_PORT", str(taken.getsockname()[1]))
        works_as_ever(Wrapped())
    assert len(caplog.records) == 1
    assert "in use" in caplog.records[0].message


def test_a_plug_in_that_fails_does_not_keep_the_engine_from_starting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plugin, "wrap", raise_)
    for name in ("vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    module = types.ModuleType("vllm.v1.core.sched.scheduler")
    module.Scheduler = SyntheticScheduler  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    plugin.register()
    assert "stays off" in caplog.text
    assert "planted" in caplog.text


def test_a_pause_reaches_the_scheduler_and_ends_what_counts_as_busy(started: list[Exporter]) -> None:
    scheduler = Wrapped()
    started[0]._last_completion = 1.0
    scheduler.set_pause_state("paused")
    assert scheduler.calls == ["paused"]
    assert started[0]._last_completion is None


class Core:
    """As vLLM's EngineCore: has workers that it can call by a method's name, makes KV caches, builds a scheduler."""

    def __init__(self, answers: list[Any], executor: str = "mp") -> None:
        self.answers = answers
        self.vllm_config = SimpleNamespace(
            parallel_config=SimpleNamespace(distributed_executor_backend=executor, nnodes=1)
        )
        self.caches = self._initialize_kv_caches()

    def _initialize_kv_caches(self) -> str:
        return "caches"

    def collective_rpc(self, method: str) -> list[Any]:
        if isinstance(self.answers[0], Exception):
            raise self.answers[0]
        assert method == weights.METHOD
        return self.answers


class Worker:
    """As vLLM's worker: gets the method by which it is asked."""


PART = {"resident": 3_000_000, "looked_up": 500_000, "experts": 0}


@pytest.mark.parametrize(
    ("answers", "executor", "total"),
    [
        pytest.param([PART, PART], "mp", 5_000_000, id="two workers"),
        pytest.param([PART, None], "mp", None, id="one cannot tell"),
        pytest.param([{**PART, "resident": 500_000}], "mp", None, id="nothing was loaded"),
        pytest.param([PART], "ray", None, id="workers elsewhere are not asked"),
        pytest.param([RuntimeError("planted")], "mp", None, id="asking fails"),
    ],
)
def test_the_weights_are_those_that_the_workers_loaded_or_else_computed(
    answers: list[Any], executor: str, total: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.wrap_core(Core, Worker)
    plugin.wrap_core(Core, Worker)
    assert Core(answers, executor).caches == "caches"
    bench = Bench()
    monkeypatch.setattr(plugin, "describe", lambda *_: bench.exporter._description)
    exporter = plugin._build(bench.scheduler, Settings())
    assert exporter is not None
    gauges = exporter.gauges()
    info = next(labels for labels, _ in gauges["info"])
    assert info[-1] == ("computed" if total is None else "loaded")
    assert list(gauges["weight_bytes"]) == [((), SHAPE.weight_bytes if total is None else total)]
    assert getattr(Worker(), weights.METHOD)() is None, "a worker without a model cannot tell, and says so"


def test_a_process_without_vllm_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    plugin.register()
    assert "stays off" in caplog.text
