from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Any

import pytest

from ridgeline_exporters.engine import plugin
from ridgeline_exporters.engine.exporter import Exporter
from tests.engine_exporter.synthetic import Bench, SyntheticScheduler, step, token


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
    assert scheduler.calls == ["schedule", "update", "finish"]
    assert len(started) == 1
    assert started[0].up


def test_steps_of_a_wrapped_scheduler_are_counted(started: list[Exporter]) -> None:
    scheduler = Wrapped()
    scheduler.to_schedule.append(step(new={"a": (8, 0, 8)}))
    scheduler.update_from_output(scheduler.schedule(), [token("a")])
    assert started[0].totals.tokens == {"prefill": 8, "decode": 0}


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
    pytest.param(lambda e: setattr(e, "_note_scheduled", raise_), id="noting a step"),
    pytest.param(lambda e: setattr(e, "_account", raise_), id="accounting"),
    pytest.param(lambda e: setattr(e._accounting, "add", raise_), id="the totals"),
    pytest.param(lambda e: setattr(e._accounting._baseline, "add", raise_), id="the baseline"),
    pytest.param(lambda e: setattr(e, "_note_tokens", raise_), id="the requests' clocks"),
    pytest.param(lambda e: setattr(e, "_judge_cut", raise_), id="judging requests"),
    pytest.param(lambda e: setattr(e, "_monotonic", raise_), id="the clock"),
    pytest.param(lambda e: e._in_flight.append("nonsense"), id="the exporter's own state"),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_hook_never_reaches_the_engine(fault: Callable[[Exporter], Any], started: list[Exporter]) -> None:
    scheduler = Wrapped()
    fault(started[0])
    for i in range(5):
        output = step(new={"a": (8, 0, 8)}) if i == 0 else step(cached={"a": (7 + i, 1)})
        scheduler.to_schedule.append(output)
        assert scheduler.schedule() is output
        assert scheduler.update_from_output(output, [token("a")])[0].outputs
        assert scheduler.finish_requests([], None) == []
    assert scheduler.calls == ["schedule", "update", "finish"] * 5
    assert started[0].totals.errors <= 1


def test_an_error_of_the_engine_is_passed_on_unchanged(started: list[Exporter]) -> None:
    scheduler = Wrapped()
    with pytest.raises(IndexError):
        scheduler.schedule()  # nothing was queued
    assert scheduler.calls == ["schedule"]
    assert started[0].up


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(OSError("port taken"), id="port taken"),
        pytest.param(AttributeError("another vLLM"), id="another vLLM"),
    ],
)
def test_an_exporter_that_cannot_start_leaves_the_engine_alone(
    fault: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def build(*_: Any) -> Any:
        raise fault

    monkeypatch.setattr(plugin, "build", build)
    caplog.set_level(logging.WARNING)
    scheduler = Wrapped()
    output = step()
    scheduler.to_schedule.append(output)
    assert scheduler.schedule() is output
    assert scheduler.update_from_output(output, [])
    assert scheduler.finish_requests([], None) == []
    assert scheduler.calls == ["schedule", "update", "finish"]
    assert len(caplog.records) == 1


def test_a_taken_port_is_an_operating_system_error() -> None:
    from ridgeline_exporters.engine.server import ExporterServer

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        ExporterServer(("127.0.0.1", taken.getsockname()[1]), Bench().exporter, None)


def test_a_process_without_vllm_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    plugin.register()
    assert "stays off" in caplog.text
