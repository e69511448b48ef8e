from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.operator_process.fleets import fleet
from tests.operator_process.operators import Operator, condition, eventually, operator
from tests.tools.api_server import ApiServer

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(300)]

LEASE = "ridgeline-operator"


def leads(running: Operator) -> bool:
    """Whether this operator says that it leads."""
    return running.process.poll() is None and running.metrics().get("ridgeline_leader") == 1


def holder(server: ApiServer, namespace: str) -> str:
    """Identity in the Lease; empty when nobody holds it."""
    return str(server.get("lease", LEASE, "-n", namespace)["spec"].get("holderIdentity") or "")


def test_a_follower_takes_over_from_a_killed_leader_and_never_writes_beside_it(
    api_server: ApiServer, api_namespace: str, tmp_path: Path
) -> None:
    with operator(api_server, api_namespace, tmp_path / "first") as first:
        eventually(lambda: leads(first), "a first leader")
        with operator(api_server, api_namespace, tmp_path / "second") as second:
            eventually(second.healthy, "a follower that is up")
            api_server.apply(fleet(), namespace=api_namespace)
            eventually(lambda: api_server.get("fleet", "chat", "-n", api_namespace)["status"]["conditions"], "a status")
            for _ in range(10):
                assert not leads(second)
                assert not [name for name in second.metrics() if name.startswith("ridgeline_fleet_")]
                time.sleep(0.2)
            before = holder(api_server, api_namespace)

            first.kill()
            killed_at = time.monotonic()
            api_server.apply(fleet(replicas=3), namespace=api_namespace)
            eventually(lambda: leads(second), "the follower leads", seconds=120)
            assert time.monotonic() - killed_at > 5, "not before the lease had run out"
            assert holder(api_server, api_namespace) != before

            def followed() -> bool:
                stored = api_server.get("fleet", "chat", "-n", api_namespace)
                return bool(condition(stored, "Ready")["observedGeneration"] == 2)

            eventually(followed, "the new leader works")


def test_a_leader_that_ends_orderly_hands_over_at_once(
    api_server: ApiServer, api_namespace: str, tmp_path: Path
) -> None:
    with (
        operator(api_server, api_namespace, tmp_path / "first") as first,
        operator(api_server, api_namespace, tmp_path / "second") as second,
    ):
        leader, follower = eventually(
            lambda: (first, second) if leads(first) else (second, first) if leads(second) else None, "a leader"
        )
        before = holder(api_server, api_namespace)
        assert leader.stop() == 0
        assert holder(api_server, api_namespace) != before, "the lease is given back, not left to run out"
        eventually(lambda: leads(follower), "the follower leads")


def test_a_leader_that_loses_its_lease_ends_its_process(
    api_server: ApiServer, api_namespace: str, tmp_path: Path
) -> None:
    with operator(api_server, api_namespace, tmp_path) as running:
        eventually(lambda: leads(running), "a leader")
        for _ in range(3):  # a renewal in flight may overwrite the first
            api_server.kubectl(
                "patch", "lease", LEASE, "-n", api_namespace, "--type=merge",
                "-p", '{"spec":{"holderIdentity":"somebody-else","leaseDurationSeconds":3600}}',
            )  # fmt: skip
            time.sleep(0.3)
        assert running.process.wait(timeout=60) == 1
        assert any("could not be renewed" in message for message in running.messages())


def test_a_leader_that_was_frozen_wakes_up_without_writing(
    api_server: ApiServer, api_namespace: str, tmp_path: Path
) -> None:
    with operator(api_server, api_namespace, tmp_path / "first") as first:
        eventually(lambda: leads(first), "a first leader")
        with operator(api_server, api_namespace, tmp_path / "second", "--interval-seconds=3600") as second:
            eventually(second.healthy, "a follower that is up")
            first.process.send_signal(signal.SIGSTOP)
            try:
                eventually(lambda: leads(second), "the follower leads", seconds=120)
                api_server.apply(fleet(), namespace=api_namespace)
                eventually(
                    lambda: api_server.get("fleet", "chat", "-n", api_namespace)["status"]["conditions"], "a status"
                )
                time.sleep(2)
                before = api_server.get("fleet", "chat", "-n", api_namespace)["metadata"]["resourceVersion"]
            finally:
                first.process.send_signal(signal.SIGCONT)
            assert first.process.wait(timeout=60) == 1
            assert api_server.get("fleet", "chat", "-n", api_namespace)["metadata"]["resourceVersion"] == before


def test_a_deleted_lease_is_made_again(api_server: ApiServer, api_namespace: str, tmp_path: Path) -> None:
    with operator(api_server, api_namespace, tmp_path) as running:
        eventually(lambda: leads(running), "a leader")
        api_server.kubectl("delete", "lease", LEASE, "-n", api_namespace)
        eventually(lambda: holder(api_server, api_namespace), "a new Lease")
        assert leads(running)
