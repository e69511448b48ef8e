from __future__ import annotations

from pathlib import Path

import pytest

from tests.operator_process.fleets import fleet
from tests.operator_process.operators import eventually, operator
from tests.tools.api_server import ApiServer

pytestmark = pytest.mark.apiserver


def test_a_fleet_is_applied_and_has_all_conditions_from_its_first_status(
    api_server: ApiServer, api_namespace: str, tmp_path: Path
) -> None:
    api_server.apply(fleet(), namespace=api_namespace)
    with operator(api_server, api_namespace, tmp_path) as running:
        stored = eventually(
            lambda: (f := api_server.get("fleet", "chat", "-n", api_namespace)).get("status") and f, "a status"
        )
        conditions = {c["type"]: c for c in stored["status"]["conditions"]}
        assert set(conditions) == {
            "Ready", "Available", "MetricsAvailable", "RouterSynchronized", "Transitioning", "Degraded"
        }  # fmt: skip
        for each in conditions.values():
            assert each["reason"]
            assert each["observedGeneration"] == 1
        assert stored["status"]["topology"]["mode"] == "Mixed"
        kinds = eventually(
            lambda: {
                (o["kind"], o["metadata"]["name"])
                for o in api_server.get(
                    "deployments,services,serviceaccounts,roles,rolebindings,secrets", "-n", api_namespace,
                    "-l", "ridgeline.dev/fleet=chat",
                )["items"]
            },
            "the objects of the fleet",
        )  # fmt: skip
        assert {("Deployment", "chat-engines"), ("Deployment", "chat-router"), ("Service", "chat"),
                ("Secret", "chat-control")} <= kinds  # fmt: skip
        assert running.stop() == 0
