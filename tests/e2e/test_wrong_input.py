"""What cannot work is said where the user looks, with what to do; the operator lives on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import SYSTEM_NAMESPACE, Cluster, fleet, wait_for
from tests.e2e.fleets import LiveFleet, operator_pod

pytestmark = pytest.mark.cluster
NAMESPACE = "e2e-wrong"


@pytest.fixture
def namespace(release: Cluster) -> Iterator[str]:
    """A namespace for fleets that never serve."""
    release.try_kubectl("create", "namespace", NAMESPACE)
    yield NAMESPACE
    release.kubectl("-n", NAMESPACE, "delete", "fleets", "--all", "--wait")


@pytest.mark.parametrize(
    ("spec", "reason", "says"),
    [
        pytest.param(
            {"hardware": {"accelerator": "H1000"}}, "UnknownAccelerator", "peaks", id="an accelerator nobody knows"
        ),
        pytest.param(
            {"model": {"id": "/cache/none", "servedName": "none"}},
            "EngineFailing",
            "spec.model",
            id="a model that is not there",
        ),
        pytest.param(
            {"image": "localhost/no-such-image:1"},
            "ImageCannotBePulled",
            "spec.engine.image",
            id="an image that is not there",
        ),
        pytest.param({"replicas": 12}, "InsufficientGPUs", "replicas", id="more engines than GPUs"),
    ],
)
def test_a_fleet_that_cannot_work_says_why(
    release: Cluster, namespace: str, spec: dict[str, Any], reason: str, says: str
) -> None:
    operator = operator_pod(release)
    manifest = fleet("wrong", namespace, release.images, topology={"policy": "Recommend"})
    image = spec.pop("image", None)
    manifest["spec"].update(spec)
    if image:
        manifest["spec"]["engine"]["image"] = image
    if "replicas" in spec:  # engines that need no image: only the scheduler is asked
        manifest["spec"]["engine"]["podTemplate"] = {
            "spec": {"containers": [{"name": "engine", "command": ["sleep", "1000"]}]}
        }
    release.apply(manifest)
    wrong = LiveFleet(release, "wrong", namespace)

    def degraded() -> dict[str, Any] | None:
        """The kubelet may read an engine's last lines before all are written: then the next end of the engine tells."""
        condition = wrong.whole_condition("Degraded")
        if condition.get("status") != "True" or condition["reason"] != reason:
            return None
        return condition if says in condition["message"] else None

    condition = wait_for(f"Degraded says {reason} and {says}", degraded, seconds=400)
    print(f"\n{condition['reason']}: {condition['message']}")
    assert wrong.condition("Ready") == "False"
    pod = release.get("pod", operator, SYSTEM_NAMESPACE)
    assert sum(status["restartCount"] for status in pod["status"]["containerStatuses"]) == 0
