"""Without metrics nothing flips, and the fleet says why."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.cluster import SYSTEM_NAMESPACE, wait_for_async
from tests.e2e.fleets import LiveFleet
from tests.e2e.scenario import bursts, no_request_failed

pytestmark = pytest.mark.cluster
TIGHT = {"timeToFirstTokenMilliseconds": 20_000, "interTokenLatencyMilliseconds": 20}


async def test_nothing_flips_while_prometheus_is_away_and_it_recovers(chat: LiveFleet) -> None:
    scale = ("-n", SYSTEM_NAMESPACE, "scale", "deployment/ridgeline-prometheus")
    await asyncio.to_thread(chat.cluster.kubectl, *scale, "--replicas=0")
    try:
        await wait_for_async(
            "MetricsAvailable is False", lambda: chat.condition("MetricsAvailable") == "False", seconds=120
        )
        condition = chat.whole_condition("MetricsAvailable")
        print(f"\nwithout Prometheus: {condition['reason']}: {condition['message']}")
        assert condition["reason"]
        assert condition["message"]
        roles = chat.roles
        chat.policy("Auto", TIGHT)
        load = chat.load()
        await load.run(bursts(30))
        no_request_failed(load)
        assert chat.roles == roles, "no evidence, no change"
        assert chat.condition("MetricsAvailable") == "False"
        assert chat.status["topology"]["tokenBudget"] == 2048
    finally:
        await asyncio.to_thread(chat.cluster.kubectl, *scale, "--replicas=1")
    await wait_for_async(
        "MetricsAvailable is True again", lambda: chat.condition("MetricsAvailable") == "True", seconds=180
    )
