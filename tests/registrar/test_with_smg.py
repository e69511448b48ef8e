"""The registrar's passes against the real SMG, with stand-ins for the engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from ridgeline.api.fleet import InferenceFleet, Role
from ridgeline.registrar import synchronizer
from ridgeline.registrar.metrics import RegistrarMetrics
from ridgeline.registrar.smg import SmgBackend
from ridgeline.registrar.synchronizer import Synchronizer
from ridgeline.registrar.table import Engine, State
from tests.registrar.real_smg import KEY, Ports, complete, smg
from tests.registrar.stand_in_engine import StandInEngine, stand_in_engine

pytestmark = pytest.mark.engine

M, P, D = Role.MIXED, Role.PREFILL, Role.DECODE


@dataclass(frozen=True, slots=True)
class Bench:
    """One SMG and what looks at it."""

    ports: Ports
    session: aiohttp.ClientSession
    backend: SmgBackend
    synchronizer: Synchronizer
    metrics: RegistrarMetrics

    async def roles(self) -> dict[str, Role | None]:
        """What the table says, read anew."""
        return {w.pod: w.role for w in await self.backend.workers() if w.state is State.HEALTHY}

    def sample(self, name: str, **labels: str) -> float | None:
        """A metric of the registrar."""
        return self.metrics.registry.get_sample_value(f"ridgeline_registrar_{name}", labels)


def make_bench(session: aiohttp.ClientSession, ports: Ports, key: str | None = KEY) -> Bench:
    metrics = RegistrarMetrics()
    backend = SmgBackend(session, ports.url, key)
    return Bench(ports, session, backend, Synchronizer(backend, metrics), metrics)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests may hold the processors: what is tested is the outcome, not the wait."""
    monkeypatch.setattr(synchronizer, "SETTLE_SECONDS", 20.0)


@pytest.fixture
async def bench(smg_fleet: InferenceFleet, tmp_path: Path) -> AsyncIterator[Bench]:
    ports = Ports.free()
    async with smg(smg_fleet, ports, tmp_path / "smg.log"), aiohttp.ClientSession() as session:
        yield make_bench(session, ports)


def wanted(**engines: tuple[StandInEngine, Role]) -> dict[str, Engine]:
    return {engine.url: Engine(pod, engine.url, role) for pod, (engine, role) in engines.items()}


async def until(condition: Callable[[], bool], step: Callable[[], object] | None = None, seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            if step:
                await step()  # type: ignore[misc]
            await asyncio.sleep(0.1)


async def test_each_role_reaches_the_table_in_one_pass(bench: Bench) -> None:
    async with stand_in_engine() as a, stand_in_engine() as b, stand_in_engine() as c:
        await bench.synchronizer.run_pass(wanted(a=(a, M), b=(b, P), c=(c, D)))
        assert bench.synchronizer.view.synchronized, bench.synchronizer.view.message
        assert bench.synchronizer.view.workers == {"a": M, "b": P, "c": D} == await bench.roles()
        assert [bench.sample("workers", role=role.value) for role in Role] == [1, 1, 1]
        assert bench.sample("passes_total", outcome="changed") == 1


async def test_a_table_that_is_right_is_left_alone(bench: Bench) -> None:
    async with stand_in_engine() as a:
        for _ in range(3):
            await bench.synchronizer.run_pass(wanted(a=(a, M)))
        assert bench.sample("passes_total", outcome="changed") == 1
        assert bench.sample("passes_total", outcome="unchanged") == 2


async def test_requests_go_where_the_roles_say(bench: Bench) -> None:
    async with stand_in_engine() as a, stand_in_engine() as b:
        await bench.synchronizer.run_pass(wanted(a=(a, P), b=(b, D)))
        assert [await complete(bench.session, bench.ports) for _ in range(4)] == [200] * 4
        assert (a.kinds, b.kinds) == (["prefill"] * 4, ["decode"] * 4)


async def test_no_request_fails_while_a_fleet_splits_swaps_and_merges_under_load(bench: Bench) -> None:
    async with stand_in_engine(seconds_per_request=0.05) as a, stand_in_engine(seconds_per_request=0.05) as b:
        await bench.synchronizer.run_pass(wanted(a=(a, M), b=(b, M)))
        statuses: list[int] = []
        running = True

        async def client() -> None:
            while running:
                statuses.append(await complete(bench.session, bench.ports))

        clients = [asyncio.create_task(client()) for _ in range(8)]
        for roles in [(P, D), (D, P), (P, D), (M, M), (D, P), (M, M)]:
            await asyncio.sleep(0.3)
            await bench.synchronizer.run_pass(wanted(a=(a, roles[0]), b=(b, roles[1])))
            assert bench.synchronizer.view.workers == {"a": roles[0], "b": roles[1]}
        await asyncio.sleep(0.3)
        running = False
        await asyncio.gather(*clients)
        assert len(statuses) > 50
        assert set(statuses) == {200}
        assert bench.sample("role_changes_total") == 2 + 3 + 3 + 2 + 2 + 2
        assert {"mixed", "prefill", "decode"} == set(a.kinds) == set(b.kinds)


async def test_an_engine_that_is_gone_drains_and_leaves(bench: Bench) -> None:
    async with stand_in_engine() as a, stand_in_engine() as b:
        await bench.synchronizer.run_pass(wanted(a=(a, M), b=(b, M)))
        await bench.synchronizer.run_pass(wanted(a=(a, M)))
        assert bench.synchronizer.view.synchronized
        assert bench.synchronizer.view.workers == {"a": M}
        await complete(bench.session, bench.ports)
        assert b.kinds == []


async def test_an_engine_that_comes_back_while_its_entry_drains_is_added_when_that_is_gone(bench: Bench) -> None:
    async with stand_in_engine() as a, stand_in_engine() as b:
        both = wanted(a=(a, M), b=(b, M))
        await bench.synchronizer.run_pass(both)
        await bench.synchronizer.run_pass(wanted(a=(a, M)))
        await bench.synchronizer.run_pass(both)
        assert bench.synchronizer.view.message == "b is draining"
        await until(lambda: bench.synchronizer.view.synchronized, step=lambda: bench.synchronizer.run_pass(both))
        assert bench.synchronizer.view.workers == {"a": M, "b": M}


async def test_an_engine_that_answers_late_is_added_when_it_does(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synchronizer, "SETTLE_SECONDS", 0.2)
    port = Ports.free().router
    late = Engine("late", f"http://127.0.0.1:{port}", P)
    desired = {late.url: late}
    await bench.synchronizer.run_pass(desired)
    assert bench.synchronizer.view.message == "late is not in the table yet"
    await bench.synchronizer.run_pass(desired)  # SMG answers 409 to the second POST
    assert bench.synchronizer.view.message == "late is not in the table yet"
    async with stand_in_engine(port=port):
        await until(lambda: bench.synchronizer.view.synchronized, step=lambda: bench.synchronizer.run_pass(desired))
        assert await bench.roles() == {"late": P}


async def test_an_engine_that_falls_sick_is_a_difference_until_it_recovers(bench: Bench) -> None:
    async with stand_in_engine() as a, stand_in_engine() as b:
        desired = wanted(a=(a, M), b=(b, M))
        await bench.synchronizer.run_pass(desired)
        b.healthy = False
        await until(lambda: not bench.synchronizer.view.synchronized, step=lambda: bench.synchronizer.run_pass(desired))
        assert bench.synchronizer.view.message == "b is unhealthy"
        assert bench.synchronizer.view.workers == {"a": M}
        assert bench.sample("synchronized") == 0
        b.healthy = True
        await until(lambda: bench.synchronizer.view.synchronized, step=lambda: bench.synchronizer.run_pass(desired))


async def test_what_someone_else_put_into_the_table_is_taken_out_or_put_right(bench: Bench) -> None:
    async with stand_in_engine() as a, stand_in_engine() as b:
        headers = {"Authorization": f"Bearer {KEY}"}
        for url in (a.url, b.url):  # without the connector: could not hand over KV
            spec = {"url": url, "worker_type": "prefill"}
            async with bench.session.post(f"{bench.ports.url}/workers", json=spec, headers=headers) as response:
                assert response.status == 202
        await asyncio.sleep(0.5)
        await bench.synchronizer.run_pass(wanted(a=(a, P)))
        assert bench.synchronizer.view.synchronized, bench.synchronizer.view.message
        assert await bench.roles() == {"a": P}


async def test_a_restarted_router_is_filled_again(smg_fleet: InferenceFleet, tmp_path: Path) -> None:
    ports = Ports.free()
    async with aiohttp.ClientSession() as session, stand_in_engine() as a, stand_in_engine() as b:
        bench = make_bench(session, ports)
        desired = wanted(a=(a, P), b=(b, D))
        async with smg(smg_fleet, ports, tmp_path / "first.log"):
            await bench.synchronizer.run_pass(desired)
            assert bench.synchronizer.view.synchronized
        await bench.synchronizer.run_pass(desired)
        assert not bench.synchronizer.view.synchronized
        assert "GET /workers failed" in bench.synchronizer.view.message
        assert bench.sample("passes_total", outcome="failed") == 1
        async with smg(smg_fleet, ports, tmp_path / "second.log"):
            await bench.synchronizer.run_pass(desired)
            assert bench.synchronizer.view.synchronized
            assert await bench.roles() == {"a": P, "b": D}


async def test_a_wrong_key_is_named_and_not_shown(bench: Bench) -> None:
    stranger = make_bench(bench.session, bench.ports, key="a-wrong-key")
    await stranger.synchronizer.run_pass({})
    assert "answered 401" in stranger.synchronizer.view.message
    assert "a-wrong-key" not in stranger.synchronizer.view.message
