"""InferenceFleet against a real API server: what it refuses, accepts, fills in and shows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ridgeline.api import crd, names
from ridgeline.api.fleet import (
    Action,
    Condition,
    FleetSpec,
    FleetStatus,
    InferenceFleet,
    LastDecision,
    Mode,
    Recommendation,
    Step,
    TopologyStatus,
    TransitionStatus,
)
from tests.api.specs import BOUNDED, FULL, HELD_BY_A_RULE, MINIMAL, WITH_OTHER_FIELDS, changed, put, tries
from tests.tools.api_server import KubectlError

if TYPE_CHECKING:
    from tests.tools.api_server import Answer, ApiServer

pytestmark = pytest.mark.apiserver


def fleet(spec: dict[str, Any], name: str = "chat") -> dict[str, Any]:
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": name}, "spec": spec}


def collection(namespace: str) -> str:
    return f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}"


def try_to_create(server: ApiServer, spec: dict[str, Any], name: str = "chat") -> Answer:
    """Create without storing anything."""
    return server.request("POST", collection("default") + "?dryRun=All&fieldValidation=Strict", fleet(spec, name))


# ---------------------------------------------------------------- rules between fields


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        pytest.param({}, None, id="minimal"),
        pytest.param({"model__cache": {}}, None, id="cache-of-no-kind"),
        pytest.param({"model__cache": {"hostPath": "/models"}}, None, id="cache-on-the-node"),
        pytest.param({"model__cache": {"sizeLimit": "80Gi"}}, None, id="cache-per-pod"),
        pytest.param(
            {"model__cache": {"hostPath": "/models", "sizeLimit": "80Gi"}},
            "spec.model.cache: Invalid value: must set at most one of `persistentVolumeClaimName`",
            id="cache-of-two-kinds",
        ),
        pytest.param({"topology": {"policy": "Static", "prefillReplicas": 0}}, None, id="static-mixed"),
        pytest.param(
            {"topology": {"policy": "Static", "prefillReplicas": 2}, "replicas": 3}, None, id="static-with-one-decode"
        ),
        pytest.param(
            {"topology": {"policy": "Static", "prefillReplicas": 3}, "replicas": 3},
            "spec.topology.prefillReplicas: Invalid value: `prefillReplicas` must be less than `replicas`",
            id="static-without-decode",
        ),
        pytest.param(
            {"topology": {"policy": "Static"}},
            'spec.topology: Invalid value: must set `prefillReplicas` when `policy` is "Static"',
            id="static-without-a-number",
        ),
        pytest.param(
            {"topology": {"policy": "Auto", "prefillReplicas": 1}, "replicas": 2},
            "spec.topology: Invalid value: must not set `prefillReplicas` unless",
            id="number-with-auto",
        ),
        pytest.param(
            {"topology": {"prefillReplicas": 1}, "replicas": 2},
            "spec.topology: Invalid value: must not set `prefillReplicas` unless",
            id="number-with-the-default-policy",
        ),
        pytest.param(
            {"topology": {"policy": "Auto", "minPrefillReplicas": 2, "minDecodeReplicas": 2}, "replicas": 4},
            None,
            id="minima-that-fit",
        ),
        pytest.param(
            {"topology": {"policy": "Auto", "minPrefillReplicas": 3, "minDecodeReplicas": 2}, "replicas": 4},
            "spec.topology: Invalid value: `minPrefillReplicas` plus `minDecodeReplicas` must not exceed `replicas`",
            id="minima-that-do-not-fit",
        ),
        pytest.param({"topology": {"policy": "Auto"}, "replicas": 1}, None, id="one-engine-is-never-split"),
        pytest.param({"engine__args": ["--max-num-seqs", "64", "--model-impl=auto"]}, None, id="own-arguments"),
        pytest.param({"engine__args": ["--port=9000"]}, "spec.engine.args: Invalid value: must not set", id="port"),
        pytest.param({"engine__args": ["--model", "x"]}, "must not set `--model`", id="model-argument"),
        pytest.param({"engine__args": ["-tp", "2"]}, "must not set `--model`", id="tensor-parallel-argument"),
        pytest.param({"engine__podTemplate": {"spec": {"any": {"thing": 1}}}}, None, id="free-form-pod-template"),
        pytest.param({"unknown": 1}, 'unknown field "spec.unknown"', id="unknown-field"),
        pytest.param({"hardware": None}, "spec.hardware: Required value", id="no-hardware"),
        pytest.param(
            {"engine__env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]},
            'spec.engine.env[1]: Duplicate value: {"name":"A"}',
            id="one-variable-twice",
        ),
    ],
)
def test_a_spec_is_accepted_or_refused_with_a_sentence(
    api_server: ApiServer, changes: dict[str, Any], refusal: str | None
) -> None:
    answer = try_to_create(api_server, changed(MINIMAL, **changes))
    if refusal is None:
        assert (answer.status, answer.message) == (201, "")
    else:
        assert answer.status in (400, 422)
        assert refusal in answer.message.replace('Invalid value: "object": ', "Invalid value: ").replace(
            'Invalid value: "array": ', "Invalid value: "
        ).replace('Invalid value: "integer": ', "Invalid value: ")


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        pytest.param("chat", True, id="short"),
        pytest.param("a" * 50, True, id="as-long-as-it-may-be"),
        pytest.param("a" * 51, False, id="too-long-for-the-names-made-of-it"),
        pytest.param("7b-chat", False, id="starts-with-a-digit"),
        pytest.param("chat.v2", False, id="has-a-dot"),
    ],
)
def test_a_name_must_make_names_of_services(api_server: ApiServer, name: str, accepted: bool) -> None:
    answer = try_to_create(api_server, MINIMAL, name)
    assert (answer.status == 201) is accepted, answer.message
    assert accepted or "must have at most 50 characters" in answer.message


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        pytest.param({"model__servedName": "other"}, True, id="served-name"),
        pytest.param({"model__revision": "v2"}, True, id="revision"),
        pytest.param({"model__cache": {"hostPath": "/models"}}, True, id="cache"),
        pytest.param({"replicas": 4}, False, id="replicas"),
        pytest.param({"topology__policy": "Auto"}, False, id="policy"),
        pytest.param({"engine__image": "docker.io/vllm/vllm-openai:v0.33.0"}, False, id="image"),
    ],
)
def test_the_model_of_a_fleet_never_changes_and_the_rest_may(
    api_server: ApiServer, api_namespace: str, changes: dict[str, Any], refused: bool
) -> None:
    created = api_server.request("POST", collection(api_namespace), fleet(MINIMAL))
    assert created.status == 201
    patch = {"spec": changed({}, **changes)}
    path = f"{collection(api_namespace)}/chat?dryRun=All"
    answer = api_server.request("PATCH", path, patch, "application/merge-patch+json")
    assert answer.status == (422 if refused else 200)
    if refused:
        assert "spec.model" in answer.message
        assert "`model` must not change; create another fleet for another model" in answer.message


# ---------------------------------------------------------------- bounds, read from the schema


@pytest.mark.parametrize(("path", "node"), BOUNDED, ids=[path for path, _ in BOUNDED])
def test_a_field_is_accepted_at_its_bounds_and_refused_beyond(
    api_server: ApiServer, path: str, node: dict[str, Any]
) -> None:
    seen = 0
    for value, accepted in tries(path, node):
        if HELD_BY_A_RULE.get(path) == value:
            continue
        spec = changed(FULL, **WITH_OTHER_FIELDS.get(path, {}))
        put(spec, path, value)
        answer = try_to_create(api_server, spec)
        assert (answer.status == 201) is accepted, f"{path} = {str(value)[:60]!r}: {answer.status} {answer.message}"
        assert accepted or f"spec.{path.split('[')[0]}" in answer.message
        seen += 1
    assert seen >= 2


def test_the_table_of_bounds_reaches_every_field_of_the_full_spec() -> None:
    missing = {path.split("[")[0].split(".")[0] for path, _ in BOUNDED} ^ set(FULL)
    assert missing == set()


# ---------------------------------------------------------------- defaults, status, scale, columns


def test_the_server_fills_in_the_same_defaults_as_the_models(api_server: ApiServer, api_namespace: str) -> None:
    [stored] = api_server.apply(fleet(MINIMAL), namespace=api_namespace)
    assert FleetSpec.model_validate(stored["spec"]) == FleetSpec.model_validate(MINIMAL)
    assert stored["spec"]["topology"] == {"policy": "Recommend", "minPrefillReplicas": 1, "minDecodeReplicas": 1}
    assert stored["spec"]["replicas"] == 1
    assert InferenceFleet.from_object(stored).name == "chat"


STATUS = FleetStatus(
    observedGeneration=1,
    replicas=8,
    readyReplicas=8,
    selector="ridgeline.dev/fleet=chat,ridgeline.dev/component=engine",
    topology=TopologyStatus(mode=Mode.SPLIT, mixed=0, prefill=3, decode=5),
    recommendation=Recommendation(
        mode=Mode.SPLIT,
        prefill=3,
        decode=5,
        enginesNeeded=9,
        reason="DecodeStalled",
        message="why",
        time="2026-01-02T03:04:05Z",
    ),
    lastDecision=LastDecision(
        action=Action.SPLIT, reason="DecodeStalled", message="why", time="2026-01-02T03:04:05.678901Z"
    ),
    transition=TransitionStatus(
        origin=TopologyStatus(mode=Mode.MIXED, mixed=8, prefill=0, decode=0),
        to=TopologyStatus(mode=Mode.SPLIT, mixed=0, prefill=3, decode=5),
        step=Step.SOAK,
        action=Action.SPLIT,
        reason="DecodeStalled",
        message="why",
        startTime="2026-01-02T03:04:05Z",
        stepTime="2026-01-02T03:04:05Z",
        kvBytesAtSwitch=2**40,
    ),
    conditions=[
        Condition(type="Ready", status="True", reason="AllReady", lastTransitionTime="2026-01-02T03:04:05Z"),
        Condition(type="Degraded", status="False", reason="AsWanted", lastTransitionTime="2026-01-02T03:04:05Z"),
    ],
)


def apply_status(server: ApiServer, namespace: str, status: dict[str, Any], manager: str = "ridgeline") -> Answer:
    body = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "chat"}, "status": status}
    path = f"{collection(namespace)}/chat/status?fieldManager={manager}&force=true"
    return server.request("PATCH", path, body, "application/apply-patch+yaml")


def test_a_status_comes_back_as_it_was_written_and_what_is_left_out_is_gone(
    api_server: ApiServer, api_namespace: str
) -> None:
    api_server.apply(fleet(MINIMAL), namespace=api_namespace)
    stored = apply_status(api_server, api_namespace, STATUS.to_object())
    assert stored.status == 200, stored.message
    assert InferenceFleet.from_object(stored.body).status == STATUS

    over = STATUS.model_copy(update={"transition": None})
    assert InferenceFleet.from_object(apply_status(api_server, api_namespace, over.to_object()).body).status == over


def test_conditions_of_others_stay_beside_ours(api_server: ApiServer, api_namespace: str) -> None:
    api_server.apply(fleet(MINIMAL), namespace=api_namespace)
    theirs = {"type": "Approved", "status": "True", "reason": "Asked", "lastTransitionTime": "2026-01-02T03:04:05Z"}
    apply_status(api_server, api_namespace, {"conditions": [theirs]}, manager="somebody")
    answer = apply_status(api_server, api_namespace, STATUS.to_object())
    assert [c["type"] for c in answer.body["status"]["conditions"]] == ["Approved", "Ready", "Degraded"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        pytest.param(("lastDecision", "time"), "yesterday", id="time-in-another-form"),
        pytest.param(("topology", "mode"), "Half", id="unknown-mode"),
        pytest.param(("transition", "step"), "Limbo", id="unknown-step"),
        pytest.param(("topology", "decode"), -1, id="negative-count"),
    ],
)
def test_a_malformed_status_is_refused(
    api_server: ApiServer, api_namespace: str, path: tuple[str, str], value: Any
) -> None:
    api_server.apply(fleet(MINIMAL), namespace=api_namespace)
    status = STATUS.to_object()
    status[path[0]][path[1]] = value
    answer = apply_status(api_server, api_namespace, status)
    assert answer.status == 422
    assert f"status.{path[0]}.{path[1]}" in answer.message


def test_kubectl_shows_the_columns(api_server: ApiServer, api_namespace: str) -> None:
    api_server.apply(fleet(MINIMAL), namespace=api_namespace)
    apply_status(api_server, api_namespace, STATUS.to_object())
    for short_name in crd.SHORT_NAMES:
        head, row = api_server.kubectl("get", short_name, "-n", api_namespace).splitlines()
        assert head.split() == ["NAME", "MODEL", "MODE", "MIXED", "PREFILL", "DECODE", "READY", "REASON", "AGE"]
        assert row.split()[:-1] == ["chat", "llama-3.1-8b", "Split", "0", "3", "5", "True", "DecodeStalled"]
    head, row = api_server.kubectl("get", "fleets", "-o", "wide", "-n", api_namespace).splitlines()
    assert (head.split()[-1], row.split()[-1]) == ("NEEDED", "9")


def test_kubectl_scale_sets_the_engines_and_autoscalers_find_the_pods(
    api_server: ApiServer, api_namespace: str
) -> None:
    api_server.apply(fleet(MINIMAL), namespace=api_namespace)
    apply_status(api_server, api_namespace, STATUS.to_object())
    api_server.kubectl("scale", "fleet", "chat", "--replicas=5", "-n", api_namespace)
    assert api_server.get("fleet", "chat", "-n", api_namespace)["spec"]["replicas"] == 5
    scale = json.loads(api_server.kubectl("get", "--raw", f"{collection(api_namespace)}/chat/scale"))
    assert scale["status"] == {"replicas": 8, "selector": STATUS.selector}
    with pytest.raises(KubectlError, match="replicas"):
        api_server.kubectl("scale", "fleet", "chat", "--replicas=1025", "-n", api_namespace)


def test_kubectl_apply_refuses_a_misspelt_field(api_server: ApiServer, api_namespace: str) -> None:
    with pytest.raises(KubectlError, match=r'unknown field "(spec\.topology\.)?polcy"'):
        api_server.apply(fleet(changed(MINIMAL, topology={"polcy": "Auto"})), namespace=api_namespace)


def test_kubectl_explains_every_field(api_server: ApiServer) -> None:
    explained = api_server.kubectl("explain", "fleet.spec", "--recursive")
    for path, _ in BOUNDED:
        assert path.split(".")[-1].split("[")[0] in explained
    assert "Who decides how engines are divided" in api_server.kubectl("explain", "fleet.spec.topology")
