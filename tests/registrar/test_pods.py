"""Which pods take requests."""

from __future__ import annotations

from typing import Any

import pytest

from ridgeline.api.fleet import Role
from ridgeline.registrar.pods import engines
from ridgeline.registrar.table import Engine


def pod(
    *,
    role: str | None = "mixed",
    ip: str | None = "10.0.0.1",
    ready: str | None = "True",
    deleted: bool = False,
    name: str = "chat-1",
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "labels": {"ridgeline.dev/role": role} if role is not None else {}}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    conditions = [{"type": "PodScheduled", "status": "True"}]
    if ready is not None:
        conditions.append({"type": "Ready", "status": ready})
    return {"metadata": metadata, "status": {"conditions": conditions, **({"podIP": ip} if ip else {})}}


@pytest.mark.parametrize("role", list(Role))
def test_a_ready_engine_is_wanted_under_its_label(role: Role) -> None:
    assert engines([pod(role=role.value)]) == {
        "http://10.0.0.1:8000": Engine(pod="chat-1", url="http://10.0.0.1:8000", role=role)
    }


@pytest.mark.parametrize(
    "refused",
    [
        pytest.param(pod(ready="False"), id="not ready"),
        pytest.param(pod(ready="Unknown"), id="node lost"),
        pytest.param(pod(ready=None), id="no Ready condition yet"),
        pytest.param(pod(ip=None), id="no address yet"),
        pytest.param(pod(deleted=True, ready="False"), id="terminating, and no longer ready"),
        pytest.param(pod(role=None), id="role label taken off"),
        pytest.param(pod(role="Mixed"), id="role that nobody knows"),
        pytest.param({"metadata": {"name": "chat-1"}}, id="neither labels nor status"),
        pytest.param({"metadata": {"name": "chat-1", "labels": None}, "status": None}, id="null labels and status"),
    ],
)
def test_these_take_no_requests(refused: dict[str, Any]) -> None:
    assert engines([refused]) == {}


@pytest.mark.parametrize(
    ("others", "leaving", "stays"),
    [
        pytest.param(["mixed"], "mixed", False, id="another mixed engine serves"),
        pytest.param(["prefill", "decode"], "prefill", False, id="a pair is left"),
        pytest.param(["decode"], "prefill", True, id="the last partner"),
        pytest.param(["decode"], "mixed", True, id="the last that serves"),
        pytest.param([], "mixed", True, id="the only one"),
        pytest.param(["decode"], "decode", False, id="it would be no help"),
    ],
)
def test_an_engine_on_its_way_out_stays_only_while_the_others_cannot_serve_without_it(
    others: list[str], leaving: str, stays: bool
) -> None:
    pods = [pod(role=role, ip=f"10.0.0.{n}", name=f"chat-{n}") for n, role in enumerate(others)]
    found = engines([*pods, pod(role=leaving, ip="10.0.1.1", name="leaving", deleted=True)])
    assert ("leaving" in {engine.pod for engine in found.values()}) is stays
    assert len(found) == len(others) + stays


def test_an_ipv6_address_is_put_into_brackets() -> None:
    assert list(engines([pod(ip="fd00::1")])) == ["http://[fd00::1]:8000"]
