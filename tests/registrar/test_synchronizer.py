"""Passes against a table in memory: what is sent, when, and what happens when the router or the pods get in the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from ridgeline.api.fleet import Role
from ridgeline.registrar import synchronizer as module
from ridgeline.registrar.backend import RouterError
from ridgeline.registrar.metrics import RegistrarMetrics
from ridgeline.registrar.synchronizer import Synchronizer
from ridgeline.registrar.table import Engine, State, Worker

M, P, D = Role.MIXED, Role.PREFILL, Role.DECODE


@dataclass(slots=True)
class TableInMemory:
    """A router backend that is only a table, with the ways in which a real one disobeys."""

    entries: dict[str, Worker] = field(default_factory=dict)
    deaf_to: set[str] = field(default_factory=set)
    """Pods whose additions are accepted and never listed."""
    away: bool = False
    calls: list[str] = field(default_factory=list)
    on_call: Callable[[], None] = lambda: None

    async def workers(self) -> Sequence[Worker]:
        if self.away:
            raise RouterError("GET /workers failed: connection refused")
        return list(self.entries.values())

    async def add(self, engine: Engine) -> None:
        self._called(f"+{engine.pod} {engine.role.name[0]}")
        if engine.pod not in self.deaf_to:
            self._store(engine)

    async def update(self, worker: Worker, engine: Engine) -> None:
        self._called(f"{engine.pod} {engine.role.name[0]}")
        self._store(engine)

    async def remove(self, worker: Worker) -> None:
        self._called(f"-{worker.pod}")
        del self.entries[worker.url]

    def _called(self, call: str) -> None:
        self.calls.append(call)
        self.on_call()

    def _store(self, engine: Engine) -> None:
        self.entries[engine.url] = Worker(f"id-{engine.pod}", engine.url, engine.role, State.HEALTHY, engine.pod)


def wanted(**roles: Role) -> dict[str, Engine]:
    return {f"http://{pod}": Engine(pod, f"http://{pod}", role) for pod, role in roles.items()}


@pytest.fixture
def backend() -> TableInMemory:
    return TableInMemory()


@pytest.fixture
def metrics() -> RegistrarMetrics:
    return RegistrarMetrics()


@pytest.fixture
def passes(backend: TableInMemory, metrics: RegistrarMetrics, monkeypatch: pytest.MonkeyPatch) -> Synchronizer:
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.05)
    return Synchronizer(backend, metrics)


async def test_a_pass_leaves_the_table_equal_to_the_labels(passes: Synchronizer, backend: TableInMemory) -> None:
    await passes.run_pass(wanted(a=M, b=M))
    await passes.run_pass(wanted(b=D, c=P))
    assert backend.calls == ["+a M", "+b M", "+c P", "b D", "-a"]
    assert passes.view.workers == {"b": D, "c": P}
    assert passes.view.synchronized


async def test_nothing_that_was_sent_before_is_relied_on(passes: Synchronizer, backend: TableInMemory) -> None:
    await passes.run_pass(wanted(a=M))
    backend.entries.clear()
    await passes.run_pass(wanted(a=M))
    assert backend.calls == ["+a M", "+a M"]


async def test_an_engine_that_the_router_never_lists_holds_up_the_others_once_and_not_again(
    passes: Synchronizer, backend: TableInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.deaf_to = {"z"}
    await passes.run_pass(wanted(a=M, b=M, z=M))
    monkeypatch.setattr(module, "SETTLE_SECONDS", 3600.0)
    await passes.run_pass(wanted(a=P, b=D, z=M))
    assert passes.view.workers == {"a": P, "b": D}
    assert passes.view.message == "z is not in the table yet"


async def test_a_pass_stops_when_the_pods_change_under_it(passes: Synchronizer, backend: TableInMemory) -> None:
    await passes.run_pass(wanted(a=M, b=M, c=M))
    backend.calls.clear()
    now = {"desired": wanted(a=P, b=D, c=D)}
    backend.on_call = lambda: now.update(desired=wanted(a=M, b=M, c=M))
    await passes.run_pass(wanted(a=P, b=D, c=D), lambda: now["desired"])
    assert backend.calls == ["a P"]
    assert not passes.view.synchronized


async def test_a_router_that_is_away_has_no_known_workers_and_a_reason(
    passes: Synchronizer, backend: TableInMemory, metrics: RegistrarMetrics
) -> None:
    await passes.run_pass(wanted(a=M))
    backend.away = True
    await passes.run_pass(wanted(a=M))
    assert not passes.view.synchronized
    assert passes.view.message == "GET /workers failed: connection refused"
    assert passes.view.workers == {}
    assert metrics.registry.get_sample_value("ridgeline_registrar_synchronized") == 0
    assert metrics.registry.get_sample_value("ridgeline_registrar_passes_total", {"outcome": "failed"}) == 1


async def test_the_time_from_a_seen_change_to_the_table_is_measured_once_per_change(
    passes: Synchronizer, metrics: RegistrarMetrics
) -> None:
    def count() -> float | None:
        return metrics.registry.get_sample_value("ridgeline_registrar_synchronization_seconds_count")

    passes.pods_changed(wanted(a=M))
    await passes.run_pass(wanted(a=M))
    await passes.run_pass(wanted(a=M))
    assert count() == 1
    passes.pods_changed(wanted(a=M))
    await passes.run_pass(wanted(a=M))
    assert count() == 1
    passes.pods_changed(wanted(a=D))
    await passes.run_pass(wanted(a=D))
    assert count() == 2


async def test_a_long_list_of_differences_is_cut(passes: Synchronizer, backend: TableInMemory) -> None:
    backend.deaf_to = set("abcdefg")
    await passes.run_pass(wanted(**dict.fromkeys("abcdefg", M)))
    assert passes.view.message.endswith("; and 2 more")
