"""The router pod, its Service and the registrar's rights."""

from __future__ import annotations

from typing import Any

import pytest

from ridgeline.api import names
from ridgeline.api.fleet import InferenceFleet
from ridgeline.render.arguments import value_of
from tests.render.fleets import EXTERNAL, MINIMAL, fleet, named, render_all, router_pod


def container(of: InferenceFleet, name: str) -> Any:
    return named(router_pod(of)["containers"], name)


@pytest.mark.parametrize(
    ("rendered", "monitors", "kinds"),
    [
        pytest.param(
            MINIMAL,
            False,
            {
                "ServiceAccount/chat-engines", "Service/chat-engines", "Deployment/chat-engines",
                "ServiceAccount/chat-router", "Role/chat-router", "RoleBinding/chat-router", "Service/chat",
                "Deployment/chat-router", "PodDisruptionBudget/chat-engines", "PodDisruptionBudget/chat-router",
            },
            id="SMG",
        ),
        pytest.param(
            EXTERNAL,
            True,
            {
                "ServiceAccount/chat-engines", "Service/chat-engines", "Deployment/chat-engines",
                "PodDisruptionBudget/chat-engines", "PodMonitor/chat-engines",
            },
            id="External has no router objects",
        ),
    ],
)  # fmt: skip
def test_objects_of_a_fleet(rendered: InferenceFleet, monitors: bool, kinds: set[str]) -> None:
    assert set(render_all(rendered, monitors=monitors)) == kinds


def test_every_object_belongs_to_the_fleet_and_goes_with_it() -> None:
    for manifest in render_all(MINIMAL, monitors=True).values():
        metadata = manifest["metadata"]
        assert metadata["namespace"] == "inference"
        assert metadata["labels"][names.LABEL_FLEET] == "chat"
        assert metadata["ownerReferences"] == [
            {
                "apiVersion": "ridgeline.dev/v1alpha1",
                "kind": "InferenceFleet",
                "name": "chat",
                "uid": MINIMAL.uid,
                "controller": True,
            }
        ]


@pytest.mark.parametrize(
    ("args", "flag", "value"),
    [
        pytest.param([], "--policy", "least_load", id="default policy"),
        pytest.param(["--policy", "round_robin"], "--policy", "round_robin", id="policy of the user"),
        pytest.param([], "--health-check-interval-secs", "1", id="dead engines are noticed in seconds"),
        pytest.param([], "--worker-startup-check-interval", "1", id="late engines too"),
        pytest.param(["--log-level=info"], "--log-level", "info", id="log level of the user"),
    ],
)
def test_router_arguments(args: list[str], flag: str, value: str) -> None:
    rendered = container(fleet({"router": {"args": args}}), "router")["args"]
    assert value_of(flag, rendered) == value
    assert "--enable-igw" in rendered


def test_the_key_is_never_in_a_manifest() -> None:
    for name in ("router", "registrar"):
        assert container(MINIMAL, name)["env"] == [
            {"name": "ROUTER_KEY", "valueFrom": {"secretKeyRef": {"name": "chat-control", "key": "router-key"}}}
        ]
    key = value_of("--control-plane-api-keys", container(MINIMAL, "router")["args"])
    assert key == "registrar:registrar:admin:$(ROUTER_KEY)"


def test_only_the_registrar_reaches_the_api_server() -> None:
    mounts = {c["name"]: [m["name"] for m in c["volumeMounts"]] for c in router_pod(MINIMAL)["containers"]}
    assert mounts == {"router": ["scratch"], "registrar": ["scratch", "api-access"]}
    assert router_pod(MINIMAL)["automountServiceAccountToken"] is False
    assert render_all(MINIMAL)["Role/chat-router"]["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    ]


def test_the_registrar_speaks_to_the_router_beside_it() -> None:
    args = container(MINIMAL, "registrar")["args"]
    assert [value_of(flag, args) for flag in ("--namespace", "--fleet", "--router-url", "--port")] == [
        "inference", "chat", "http://127.0.0.1:30000", "30002",
    ]  # fmt: skip


def test_one_engine_that_the_router_refuses_does_not_close_the_router() -> None:
    assert container(MINIMAL, "registrar")["readinessProbe"]["httpGet"] == {"path": "/servedz", "port": "registrar"}
    assert container(MINIMAL, "router")["readinessProbe"]["httpGet"] == {"path": "/readiness", "port": "health"}


@pytest.mark.parametrize(
    ("args", "grace"), [([], 315), (["--shutdown-grace-period-secs", "30"], 45)], ids=["default", "of the user"]
)
def test_the_grace_period_covers_the_streams(args: list[str], grace: int) -> None:
    assert router_pod(fleet({"router": {"args": args}}))["terminationGracePeriodSeconds"] == grace


def test_clients_find_the_router_under_the_name_of_the_fleet() -> None:
    service = render_all(MINIMAL)["Service/chat"]["spec"]
    assert service["ports"] == [{"name": "http", "port": 8000, "targetPort": "http", "protocol": "TCP"}]
    assert named(container(MINIMAL, "router")["ports"], "http")["containerPort"] == 30000
    assert service["selector"] == {names.LABEL_FLEET: "chat", names.LABEL_COMPONENT: "router"}


def test_monitors_name_their_jobs_and_never_the_role() -> None:
    rendered = render_all(MINIMAL, monitors=True)
    jobs = {}
    for name in ("chat-engines", "chat-router"):
        for endpoint in rendered[f"PodMonitor/{name}"]["spec"]["podMetricsEndpoints"]:
            targets = {r["targetLabel"]: r for r in endpoint["relabelings"]}
            assert set(targets) == {"fleet", "job"}
            assert targets["fleet"]["sourceLabels"] == ["__meta_kubernetes_pod_label_ridgeline_dev_fleet"]
            jobs[targets["job"]["replacement"]] = endpoint["port"]
    assert jobs == {
        "ridgeline-engine": "exporter",
        "ridgeline-vllm": "http",
        "ridgeline-router": "metrics",
        "ridgeline-registrar": "registrar",
    }
