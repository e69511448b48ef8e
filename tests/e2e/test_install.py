"""From `helm install` to the first token, with no manual step."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.fleets import LiveFleet
from tests.e2e.load import Planned

pytestmark = pytest.mark.cluster


def test_a_fleet_answers_through_its_router_after_install_and_apply(live_fleet: LiveFleet) -> None:
    load = live_fleet.load()
    started = time.time()
    asyncio.run(load.run([Planned(0, 32, 16)]))
    assert [s.error for s in load.sent] == [None]
    assert load.sent[0].complete
    print(
        f"\nfirst token {load.sent[0].token_times[0] - started:.2f} s after the request; the fleet:\n{live_fleet.cluster.kubectl('get', 'fleets', '-A')}"
    )


def test_kubectl_get_fleets_shows_the_columns(live_fleet: LiveFleet, release: Cluster) -> None:
    header, row = release.kubectl("-n", live_fleet.namespace, "get", "fleets").splitlines()
    assert header.split() == ["NAME", "MODEL", "MODE", "MIXED", "PREFILL", "DECODE", "READY", "REASON", "AGE"]
    assert row.split()[:7] == ["chat", "small", "Mixed", "2", "0", "0", "True"]


def test_engine_series_carry_fleet_and_pod_but_never_the_role(live_fleet: LiveFleet) -> None:
    series = [labels for labels, _ in live_fleet.query(f'ridgeline_engine_exporter_up{{fleet="{live_fleet.name}"}}')]
    assert {s["pod"] for s in series} == set(live_fleet.roles)
    assert all(s["namespace"] == live_fleet.namespace and "role" not in s for s in series)


def test_a_drained_node_may_take_one_engine_at_a_time(live_fleet: LiveFleet, release: Cluster) -> None:
    def allowed() -> bool:
        budgets = release.get("poddisruptionbudgets", namespace=live_fleet.namespace)
        return {b["metadata"]["name"]: b["status"].get("disruptionsAllowed") for b in budgets} == {
            "chat-engines": 1,
            "chat-router": 1,
        }

    wait_for("the budgets count the pods", allowed, seconds=60)
