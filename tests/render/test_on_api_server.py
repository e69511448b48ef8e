"""Rendered manifests in front of the real API server: schemas, defaults, admission, server-side apply."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ridgeline.api.fleet import InferenceFleet
from ridgeline.render import render_fleet
from tests.render.fleets import EXTERNAL, FULL, MINIMAL

if TYPE_CHECKING:
    from tests.tools.api_server import ApiServer

pytestmark = pytest.mark.apiserver


def rendered(fleet: InferenceFleet, namespace: str) -> list[dict[str, Any]]:
    """Without monitors: the API server alone does not know their kind."""
    return render_fleet(fleet.model_copy(update={"namespace": namespace}), operator_image="image", monitors=False)


def apply(server: ApiServer, manifests: list[dict[str, Any]], *options: str) -> list[dict[str, Any]]:
    """Server-side apply with strict field validation, as the operator's field manager."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})
    arguments = ["--server-side", "--field-manager=ridgeline", "--validate=strict", "-o", "json", "-f", "-"]
    answer = json.loads(server.kubectl("apply", *arguments, *options, stdin=text))
    return list(answer["items"])


@pytest.mark.parametrize("fleet", [MINIMAL, FULL, EXTERNAL], ids=["minimal", "full", "external"])
def test_the_api_server_accepts_every_field(fleet: InferenceFleet, api_server: ApiServer, api_namespace: str) -> None:
    manifests = rendered(fleet, api_namespace)
    assert len(apply(api_server, manifests, "--dry-run=server")) == len(manifests)


def test_applying_the_same_again_changes_nothing(api_server: ApiServer, api_namespace: str) -> None:
    first = apply(api_server, rendered(FULL, api_namespace))
    second = apply(api_server, rendered(FULL, api_namespace))
    assert [o["metadata"]["resourceVersion"] for o in first] == [o["metadata"]["resourceVersion"] for o in second]


@pytest.mark.parametrize(
    ("deployment", "level"),
    [
        pytest.param("chat-router", "restricted", id="router: restricted"),
        pytest.param("chat-engines", "baseline", id="engines: baseline, since the stock image runs as root"),
    ],
)
def test_pods_meet_their_pod_security_standard(
    deployment: str, level: str, api_server: ApiServer, api_namespace: str
) -> None:
    api_server.kubectl("label", "namespace", api_namespace, f"pod-security.kubernetes.io/enforce={level}")
    manifests = rendered(MINIMAL, api_namespace)
    template = next(m for m in manifests if m["metadata"]["name"] == deployment and m["kind"] == "Deployment")
    metadata = {"name": "pod", "namespace": api_namespace, **template["spec"]["template"]["metadata"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]["template"]["spec"]}
    api_server.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))


def test_the_registrar_may_read_pods_of_its_namespace_and_nothing_else(
    api_server: ApiServer, api_namespace: str
) -> None:
    apply(api_server, rendered(MINIMAL, api_namespace))

    def may(verb: str, resource: str, account: str = "chat-router") -> bool:
        who = f"--as=system:serviceaccount:{api_namespace}:{account}"
        attributes = {"namespace": api_namespace, "verb": verb, "resource": resource}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": who.removeprefix("--as="), "resourceAttributes": attributes},
        }
        answer = api_server.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(review))
        return bool(json.loads(answer)["status"]["allowed"])

    assert may("watch", "pods")
    assert not may("patch", "pods")
    assert not may("get", "secrets")
    assert not may("get", "pods", account="chat-engines")
