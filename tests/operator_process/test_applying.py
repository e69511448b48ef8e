from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.operator_process.fleets import fleet
from tests.operator_process.operators import condition, eventually, operator
from tests.operator_process.stand_ins import write_pod
from tests.tools.api_server import ApiServer

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(300)]

KINDS = "deployments,services,serviceaccounts,poddisruptionbudgets,roles,rolebindings,secrets"


def stored(server: ApiServer, namespace: str, name: str = "chat") -> dict[str, Any]:
    found: dict[str, Any] = server.get("fleet", name, "-n", namespace)
    return found


def with_status(server: ApiServer, namespace: str, name: str = "chat") -> dict[str, Any]:
    """The fleet once it has a status."""

    def check() -> Any:
        found = stored(server, namespace, name)
        return found.get("status", {}).get("conditions") and found

    found: dict[str, Any] = eventually(check, f"a status of {name}")
    return found


def owned(server: ApiServer, namespace: str, name: str = "chat") -> set[tuple[str, str]]:
    """Kind and name of what the fleet consists of."""
    items = server.get(KINDS, "-n", namespace, "-l", f"ridgeline.dev/fleet={name}")["items"]
    assert all(item["metadata"]["ownerReferences"][0]["name"] == name for item in items)
    return {(item["kind"], item["metadata"]["name"]) for item in items}


def test_a_fleet_is_applied_and_has_all_conditions_from_its_first_status(
    api_server: ApiServer, api_namespace: str, tmp_path: Path
) -> None:
    api_server.apply(fleet(), namespace=api_namespace)
    with operator(api_server, api_namespace, tmp_path) as running:
        found = with_status(api_server, api_namespace)
        conditions = {c["type"]: c for c in found["status"]["conditions"]}
        assert set(conditions) == {
            "Ready",
            "Available",
            "MetricsAvailable",
            "RouterSynchronized",
            "Transitioning",
            "Degraded",
        }
        for each in conditions.values():
            assert each["reason"]
            assert each["lastTransitionTime"]
            assert each["observedGeneration"] == 1
        assert found["status"]["topology"]["mode"] == "Mixed"
        wanted = {
            ("Deployment", "chat-engines"),
            ("Deployment", "chat-router"),
            ("Service", "chat"),
            ("Secret", "chat-control"),
            ("PodDisruptionBudget", "chat-engines"),
        }
        assert wanted <= owned(api_server, api_namespace)
        assert "finalizers" not in found["metadata"]
        assert not [key for key in found["metadata"].get("annotations", {}) if "kopf" in key]
        assert running.stop() == 0


def test_without_prometheus_the_fleet_holds_and_says_why(
    api_server: ApiServer, api_namespace: str, tmp_path: Path
) -> None:
    api_server.apply(fleet(topology={"policy": "Auto"}), namespace=api_namespace)
    with operator(api_server, api_namespace, tmp_path) as running:

        def told() -> bool:
            answer = condition(stored(api_server, api_namespace), "MetricsAvailable")
            return bool(answer["status"] == "False" and answer["reason"] == "PrometheusUnreachable")

        eventually(told, "the reason in MetricsAvailable")
        assert "transition" not in stored(api_server, api_namespace)["status"]
        assert running.healthy()


def test_the_secret_is_made_once_and_never_shown(api_server: ApiServer, api_namespace: str, tmp_path: Path) -> None:
    api_server.apply(fleet(), namespace=api_namespace)
    with operator(api_server, api_namespace, tmp_path / "first") as first:
        with_status(api_server, api_namespace)
        before = api_server.get("secret", "chat-control", "-n", api_namespace)["data"]
        first.stop()
    with operator(api_server, api_namespace, tmp_path / "second", "--log-level=debug") as second:
        api_server.apply(fleet(replicas=3), namespace=api_namespace)
        eventually(lambda: stored(api_server, api_namespace)["status"]["observedGeneration"] == 2, "the second spec")
        assert api_server.get("secret", "chat-control", "-n", api_namespace)["data"] == before
        keys = [base64.b64decode(value).decode() for value in before.values()]
        assert len({key for key in keys if len(key) >= 32}) == 2
        for key in keys:
            assert key not in second.log.read_text()
            assert key not in json.dumps(stored(api_server, api_namespace))


def test_a_quiet_fleet_is_not_written_again(api_server: ApiServer, api_namespace: str, tmp_path: Path) -> None:
    api_server.apply(fleet(), namespace=api_namespace)
    with operator(api_server, api_namespace, tmp_path):
        with_status(api_server, api_namespace)
        time.sleep(4)  # the first answers settle
        before = stored(api_server, api_namespace)["metadata"]["resourceVersion"]
        time.sleep(6)
        assert stored(api_server, api_namespace)["metadata"]["resourceVersion"] == before


def test_foreign_fields_of_the_status_survive(api_server: ApiServer, api_namespace: str, tmp_path: Path) -> None:
    api_server.apply(fleet(), namespace=api_namespace)
    foreign = {"type": "Audited", "status": "True", "reason": "Seen", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    patch = {
        "apiVersion": "ridgeline.dev/v1alpha1",
        "kind": "InferenceFleet",
        "metadata": {"name": "chat"},
        "status": {"conditions": [foreign]},
    }
    with operator(api_server, api_namespace, tmp_path):
        with_status(api_server, api_namespace)
        api_server.kubectl(
            "apply", "--server-side", "--subresource=status", "--field-manager=auditor", "-n", api_namespace, "-f", "-",
            stdin=json.dumps(patch),
        )  # fmt: skip
        api_server.apply(fleet(replicas=3), namespace=api_namespace)
        eventually(lambda: stored(api_server, api_namespace)["status"]["observedGeneration"] == 2, "the second spec")
        assert condition(stored(api_server, api_namespace), "Audited")["reason"] == "Seen"


def test_what_somebody_deleted_comes_back_and_what_is_no_longer_wanted_goes(
    api_server: ApiServer, api_namespace: str, tmp_path: Path
) -> None:
    api_server.apply(fleet(), namespace=api_namespace)
    with operator(api_server, api_namespace, tmp_path):
        with_status(api_server, api_namespace)
        eventually(lambda: ("Deployment", "chat-router") in owned(api_server, api_namespace), "the router")
        api_server.kubectl("delete", "deployment", "chat-engines", "-n", api_namespace)
        eventually(lambda: ("Deployment", "chat-engines") in owned(api_server, api_namespace), "the engines again")
        api_server.apply(fleet(router={"type": "External"}), namespace=api_namespace)
        eventually(lambda: ("Deployment", "chat-router") not in owned(api_server, api_namespace), "no router")
        assert ("Deployment", "chat-engines") in owned(api_server, api_namespace)
        assert ("Secret", "chat-control") in owned(api_server, api_namespace)


def test_a_strangers_service_is_neither_taken_nor_deleted(
    api_server: ApiServer, api_namespace: str, tmp_path: Path
) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "chat", "labels": {"ridgeline.dev/fleet": "chat"}},
        "spec": {"selector": {"app": "website"}, "ports": [{"port": 80}]},
    }
    api_server.apply(service, fleet(), namespace=api_namespace)
    with operator(api_server, api_namespace, tmp_path):
        answer = condition(with_status(api_server, api_namespace), "Degraded")
        assert (answer["status"], answer["reason"]) == ("True", "NameTaken")
        found = api_server.get("service", "chat", "-n", api_namespace)
        assert found["spec"]["selector"] == {"app": "website"}
        assert "ownerReferences" not in found["metadata"]
        api_server.kubectl("delete", "service", "chat", "-n", api_namespace)
        eventually(lambda: ("Service", "chat") in owned(api_server, api_namespace), "the fleet's own Service")


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        pytest.param({}, "UnusableSecret", id="without a token"),
        pytest.param({"control-token": "a2V5LW9mLXRoZS11c2Vy"}, "AsExpected", id="brought by the user"),
    ],
)
def test_a_secret_that_is_there_already(
    api_server: ApiServer, api_namespace: str, tmp_path: Path, token: dict[str, str], reason: str
) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "chat-control"}, "data": token}
    api_server.apply(secret, fleet(), namespace=api_namespace)
    with operator(api_server, api_namespace, tmp_path):
        assert condition(with_status(api_server, api_namespace), "Degraded")["reason"] == reason
        assert api_server.get("secret", "chat-control", "-n", api_namespace).get("data", {}) == token


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        pytest.param({"hardware": {"accelerator": "Abacus-9000"}}, "UnknownAccelerator", id="unknown accelerator"),
        pytest.param(
            {"engine": {"image": "i", "podTemplate": {"spec": {"containers": [{"image": "x"}]}}}},
            "InvalidPodTemplate",
            id="a container without a name",
        ),
        pytest.param(
            {"engine": {"image": "i", "podTemplate": {"spec": {"restartPolicy": "Sometimes"}}}},
            "ManifestsRefused",
            id="a template that the API server refuses",
        ),
    ],
)
def test_a_spec_that_cannot_work_is_told_and_harms_no_other_fleet(
    api_server: ApiServer, api_namespace: str, tmp_path: Path, spec: dict[str, Any], reason: str
) -> None:
    api_server.apply(fleet(**spec), fleet("good"), namespace=api_namespace)
    with operator(api_server, api_namespace, tmp_path) as running:
        with_status(api_server, api_namespace, "good")
        answer = condition(with_status(api_server, api_namespace), "Degraded")
        assert (answer["status"], answer["reason"]) == ("True", reason)
        assert answer["message"]
        assert condition(stored(api_server, api_namespace), "Ready")["reason"] == reason
        assert condition(stored(api_server, api_namespace, "good"), "Degraded")["status"] == "False"
        assert running.process.poll() is None
        api_server.apply(fleet(), namespace=api_namespace)
        eventually(
            lambda: condition(stored(api_server, api_namespace), "Degraded")["status"] == "False", "the corrected spec"
        )


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        pytest.param(
            {"phase": "Pending", "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                 "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."}]},
            "InsufficientGPUs", id="too few GPUs",
        ),
        pytest.param(
            {"phase": "Pending", "containerStatuses": [
                {"name": "engine", "ready": False, "restartCount": 0, "image": "i", "imageID": "",
                 "state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}]},
            "ImageCannotBePulled", id="image",
        ),
        pytest.param(
            {"phase": "Running", "containerStatuses": [
                {"name": "engine", "ready": False, "restartCount": 4, "image": "i", "imageID": "",
                 "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                 "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": "OSError: can't load model",
                               "startedAt": None, "finishedAt": None}}}]},
            "EngineFailing", id="unloadable model",
        ),
    ],
)  # fmt: skip
def test_engines_that_cannot_start_are_told(
    api_server: ApiServer, api_namespace: str, tmp_path: Path, status: dict[str, Any], reason: str
) -> None:
    api_server.apply(fleet(), namespace=api_namespace)
    labels = {"ridgeline.dev/component": "engine", "ridgeline.dev/role": "mixed"}
    with operator(api_server, api_namespace, tmp_path) as running:
        with_status(api_server, api_namespace)
        write_pod(api_server, api_namespace, "chat", "chat-0", "engine", labels, status)
        answer = eventually(
            lambda: (c := condition(stored(api_server, api_namespace), "Degraded"))["reason"] == reason and c, reason
        )
        assert answer["status"] == "True"
        events = api_server.get("events.events.k8s.io", "-n", api_namespace)["items"]
        assert eventually(lambda: [e for e in events if e["reason"] == reason and e["type"] == "Warning"], "an event")
        assert running.process.poll() is None


def test_a_spec_of_another_version_is_told_and_crashes_nothing(
    api_server: ApiServer, api_namespace: str, tmp_path: Path
) -> None:
    """A CRD of another version may let through what this operator does not understand."""
    with operator(api_server, api_namespace, tmp_path) as running:
        crd = api_server.get("crd", "inferencefleets.ridgeline.dev")
        properties = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/replicas/maximum"
        maximum = properties["replicas"]["maximum"]

        def allow(most: int) -> None:
            patch = json.dumps([{"op": "replace", "path": path, "value": most}])
            api_server.kubectl("patch", "crd", "inferencefleets.ridgeline.dev", "--type=json", "-p", patch)

        allow(9999)
        try:
            eventually(lambda: api_server.apply(fleet(replicas=5000), namespace=api_namespace), "the wider CRD")
            answer = condition(with_status(api_server, api_namespace), "Degraded")
            assert (answer["status"], answer["reason"]) == ("True", "InvalidSpec")
            assert "replicas" in answer["message"]
            assert running.process.poll() is None
            api_server.apply(fleet(), namespace=api_namespace)
            eventually(
                lambda: condition(stored(api_server, api_namespace), "Degraded")["status"] == "False",
                "the corrected spec",
            )
        finally:
            allow(maximum)


def test_a_deleted_fleet_goes_at_once_and_leaves_no_series(
    api_server: ApiServer, api_namespace: str, tmp_path: Path
) -> None:
    api_server.apply(fleet(), fleet("other"), namespace=api_namespace)
    with operator(api_server, api_namespace, tmp_path) as running:
        with_status(api_server, api_namespace)
        with_status(api_server, api_namespace, "other")
        eventually(lambda: [n for n in running.metrics() if 'fleet="chat"' in n], "series of the fleet")
        api_server.kubectl("delete", "fleet", "chat", "-n", api_namespace, "--timeout=10s")
        eventually(lambda: not [n for n in running.metrics() if 'fleet="chat"' in n], "no series")
        assert [n for n in running.metrics() if 'fleet="other"' in n]
        time.sleep(2)
        assert not [n for n in running.metrics() if 'fleet="chat"' in n]
        metrics = running.metrics()
        assert metrics["ridgeline_reconcile_errors_total"] == 0
