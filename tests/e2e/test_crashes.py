"""Parts are killed while they are needed: the fleet serves on, and what was begun is finished or undone."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.e2e.cluster import SYSTEM_NAMESPACE, Cluster, wait_for, wait_for_async
from tests.e2e.fleets import RELAXED, LiveFleet, operator_pod
from tests.e2e.load import Shape, plan, trace_rows
from tests.e2e.scenario import no_request_failed

pytestmark = pytest.mark.cluster


def kill(cluster: Cluster, namespace: str, pod: str) -> None:
    """Kill a pod at once, as a node failure does: no SIGTERM, no grace."""
    cluster.kubectl("-n", namespace, "delete", "pod", pod, "--grace-period=0", "--force")


async def test_a_transition_outlives_the_operator_that_began_it(chat: LiveFleet) -> None:
    load = chat.load()
    running = asyncio.create_task(load.run(plan(trace_rows(300)[0], Shape(60, chats_per_second=1.0))))
    await asyncio.to_thread(chat.policy, "Static", RELAXED, prefillReplicas=1)
    await wait_for_async("a transition is under way", lambda: chat.status.get("transition"), seconds=60, interval=0.05)
    begun = chat.status.get("transition")
    await asyncio.to_thread(kill, chat.cluster, SYSTEM_NAMESPACE, operator_pod(chat.cluster))
    print(f"\nkilled the operator in step {begun and begun['step']}; labels: {sorted(chat.roles.values())}")

    def over() -> bool:
        return chat.status.get("transition") is None and sorted(chat.roles.values()) in (
            ["decode", "prefill"],
            ["mixed", "mixed"],
        )

    await running
    no_request_failed(load)
    await wait_for_async("the transition is finished or undone", over, seconds=180)
    print(f"after the restart: {sorted(chat.roles.values())}")
    wait_for("the routers are in step", lambda: all(table == chat.roles for table in chat.tables()), seconds=60)


async def test_a_new_router_pod_learns_the_table_by_itself(chat: LiveFleet) -> None:
    old = chat.pods("router")[0]["metadata"]["name"]
    await asyncio.to_thread(kill, chat.cluster, chat.namespace, old)

    def replaced() -> bool:
        pods = chat.pods("router")
        return bool(pods) and pods[0]["metadata"]["name"] != old and all(table == chat.roles for table in chat.tables())

    await wait_for_async("the new router's table equals the labels", replaced, seconds=180)
    load = chat.load()
    await wait_for_async("the router is ready", lambda: chat.condition("Ready") == "True", seconds=180)
    await load.run(plan(trace_rows(300)[0], Shape(10, chats_per_second=1.0)))
    no_request_failed(load)


async def test_only_requests_on_a_killed_engine_fail(chat: LiveFleet) -> None:
    load = chat.load()
    steady = Shape(60, chats_per_second=1.5, chat_output_tokens=400)
    running = asyncio.create_task(load.run(plan(trace_rows(300)[0], steady)))

    def busy_engine() -> tuple[str, int] | None:
        for pod in chat.roles:
            if requests := int(chat.engine_metric(pod, "vllm:num_requests_running")):
                return pod, requests
        return None

    victim, held = await wait_for_async("an engine is at work", busy_engine, seconds=30)
    killed = time.time()
    await asyncio.to_thread(kill, chat.cluster, chat.namespace, victim)
    await wait_for_async(
        "the table has let the killed engine go",
        lambda: all(victim not in table for table in chat.tables()),
        seconds=120,
    )
    await running
    failed = load.failed
    print(f"\nkilled {victim} with {held} running requests: {len(failed)} of {len(load.sent)} failed")
    late = [sent for sent in failed if sent.started > killed]
    assert not late, f"requests that came after the kill are retried elsewhere: {late[0].error or 'cut'} {late[0]}"
    await wait_for_async(
        "its successor is ready and in the table",
        lambda: all(table == chat.roles and len(table) == 2 for table in chat.tables()),
        seconds=600,
    )
