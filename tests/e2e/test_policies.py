"""Recommend says what it would do and does nothing; Static holds what was asked."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.calibration import calibrate
from tests.e2e.cluster import wait_for, wait_for_async
from tests.e2e.fleets import LiveFleet, operator_metric
from tests.e2e.scenario import bursts, narrate, no_request_failed

pytestmark = pytest.mark.cluster


async def test_recommend_changes_no_label_and_says_what_it_would_do(chat: LiveFleet) -> None:
    calibration = await asyncio.to_thread(calibrate, chat)
    versions = {pod["metadata"]["name"]: pod["metadata"]["labels"] for pod in chat.pods()}
    chat.policy("Recommend", calibration.objectives_that_no_budget_meets())
    load, narration = chat.load(), asyncio.create_task(narrate(chat))
    running = asyncio.create_task(load.run(bursts(75)))

    def recommended() -> dict[str, str] | None:
        recommendation: dict[str, str] = chat.status.get("recommendation") or {}
        return recommendation if recommendation.get("mode") == "Split" else None

    recommendation = await wait_for_async("a split is recommended", recommended, seconds=90)
    metric = await asyncio.to_thread(
        operator_metric, chat.cluster, "ridgeline_fleet_recommended_engines", fleet="chat", role="prefill"
    )

    def told() -> bool:
        return any(e["reason"] == recommendation["reason"] and "Split" in e["message"] for e in chat.events())

    await wait_for_async("an event tells of the recommendation", told, seconds=30)
    await running
    narration.cancel()

    no_request_failed(load)
    print(f"\nrecommended: {recommendation['reason']}: {recommendation['message']}")
    assert "%" in recommendation["message"], "the evidence stands in the message"
    assert metric == 1
    assert {pod["metadata"]["name"]: pod["metadata"]["labels"] for pod in chat.pods()} == versions
    assert chat.status["topology"]["tokenBudget"] == 2048


def test_static_holds_what_was_asked(chat: LiveFleet) -> None:
    chat.policy(
        "Static", {"timeToFirstTokenMilliseconds": 60_000, "interTokenLatencyMilliseconds": 10_000}, prefillReplicas=1
    )
    wait_for(
        "one engine prefills, the other decodes",
        lambda: sorted(chat.roles.values()) == ["decode", "prefill"],
        seconds=120,
    )
    wait_for(
        "every router shows them",
        lambda: all(sorted(t.values()) == ["decode", "prefill"] for t in chat.tables()),
        seconds=60,
    )
    decode = next(pod for pod, role in chat.roles.items() if role == "decode")
    before = chat.engine_metric(decode, "vllm:nixl_bytes_transferred_sum")
    load = chat.load()
    asyncio.run(load.run(bursts(10)))
    no_request_failed(load)
    assert chat.engine_metric(decode, "vllm:nixl_bytes_transferred_sum") > before
    assert sorted(chat.roles.values()) == ["decode", "prefill"]
