"""The engine pod, option by option."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ridgeline.api import names
from ridgeline.api.fleet import InferenceFleet
from ridgeline.render.arguments import flag_of, value_of
from tests.render.fleets import FULL, MINIMAL, engine_pod, fleet, named, render_all


def engine(of: InferenceFleet) -> Any:
    return named(engine_pod(of)["containers"], "engine")


def variable(of: InferenceFleet, name: str) -> Any:
    return named(engine(of)["env"], name)


def test_the_selector_leaves_the_role_to_the_operator() -> None:
    deployment = render_all(MINIMAL)["Deployment/chat-engines"]["spec"]
    assert deployment["selector"]["matchLabels"] == {names.LABEL_FLEET: "chat", names.LABEL_COMPONENT: "engine"}
    assert deployment["template"]["metadata"]["labels"][names.LABEL_ROLE] == "mixed"


def test_a_rollout_needs_no_gpu_that_is_not_there() -> None:
    assert render_all(MINIMAL)["Deployment/chat-engines"]["spec"]["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
    }


@pytest.mark.parametrize("gpus", [1, 8])
def test_an_engine_asks_for_its_gpus_and_spreads_the_model_over_them(gpus: int) -> None:
    container = engine(fleet({"hardware": {"perEngine": gpus}}))
    assert container["resources"] == {
        "requests": {"nvidia.com/gpu": str(gpus)},
        "limits": {"nvidia.com/gpu": str(gpus)},
    }
    assert value_of("--tensor-parallel-size", container["args"]) == str(gpus)


@pytest.mark.parametrize(
    ("cache", "source"),
    [
        pytest.param(None, {"emptyDir": {}}, id="unset"),
        pytest.param({}, {"emptyDir": {}}, id="empty"),
        pytest.param({"sizeLimit": "500Gi"}, {"emptyDir": {"sizeLimit": "500Gi"}}, id="sizeLimit"),
        pytest.param({"hostPath": "/m"}, {"hostPath": {"path": "/m", "type": "DirectoryOrCreate"}}, id="hostPath"),
        pytest.param({"persistentVolumeClaimName": "w"}, {"persistentVolumeClaim": {"claimName": "w"}}, id="claim"),
    ],
)
def test_weights_are_kept_where_the_fleet_says(cache: dict[str, str] | None, source: dict[str, Any]) -> None:
    spec = fleet({"model": {"cache": cache}} if cache is not None else {})
    assert named(engine_pod(spec)["volumes"], "cache") == {"name": "cache", **source}
    assert {"name": "cache", "mountPath": "/cache"} in engine(spec)["volumeMounts"]
    assert variable(spec, "HF_HOME")["value"] == "/cache/huggingface"


def test_shared_memory_is_memory() -> None:
    assert named(engine_pod(MINIMAL)["volumes"], "shared-memory")["emptyDir"] == {"medium": "Memory"}
    assert {"name": "shared-memory", "mountPath": "/dev/shm"} in engine(MINIMAL)["volumeMounts"]


@pytest.mark.parametrize(
    ("hardware", "terms"),
    [
        pytest.param(
            {"accelerator": "H100-SXM5-80GB"},
            [
                {
                    "matchExpressions": [
                        {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-H100-80GB-HBM3"]}
                    ]
                }
            ],
            id="known",
        ),
        pytest.param(
            {
                "accelerator": "TPU-like-thing",
                "peaks": {"computeTeraflops": 1, "memoryBandwidthGigabytesPerSecond": 1},
            },
            None,
            id="known to the user only: any node with GPUs",
        ),
    ],
)
def test_engines_go_to_nodes_with_the_accelerator(hardware: dict[str, Any], terms: Any) -> None:
    affinity = engine_pod(fleet({"hardware": hardware})).get("affinity")
    if terms is None:
        assert affinity is None
    else:
        required = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert required == {"nodeSelectorTerms": terms}


def test_node_terms_of_the_user_are_held_to_the_accelerator() -> None:
    own = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in "ab"]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": own}}}
    pod = engine_pod(fleet({"engine": {"image": "i", "podTemplate": {"spec": {"affinity": affinity}}}}))
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [[e["key"] for e in term["matchExpressions"]] for term in terms] == [["nvidia.com/gpu.product", "zone"]] * 2


def test_pod_affinity_of_the_user_leaves_node_affinity_alone() -> None:
    affinity: dict[str, Any] = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    pod = engine_pod(fleet({"engine": {"image": "i", "podTemplate": {"spec": {"affinity": affinity}}}}))
    assert set(pod["affinity"]) == {"nodeAffinity", "podAntiAffinity"}


@pytest.mark.parametrize(
    ("seconds", "failures"), [(30, 6), (31, 7), (1800, 360), (14_400, 2880)], ids=lambda value: str(value)
)
def test_loading_may_take_as_long_as_the_fleet_says(seconds: int, failures: int) -> None:
    spec = fleet({"engine": {"image": "i", "startupTimeoutSeconds": seconds}})
    probe = engine(spec)["startupProbe"]
    assert probe["failureThreshold"] == failures
    assert probe["failureThreshold"] * probe["periodSeconds"] >= seconds
    assert render_all(spec)["Deployment/chat-engines"]["spec"]["progressDeadlineSeconds"] > seconds


@pytest.mark.parametrize(
    ("args", "shutdown", "grace"),
    [
        pytest.param([], "300", 320, id="default"),
        pytest.param(["--shutdown-timeout", "60"], "60", 80, id="shorter"),
        pytest.param(["--shutdown-timeout=1200"], "1200", 1220, id="longer, with an equals sign"),
        pytest.param(["--shutdown_timeout", "5"], "5", 25, id="with an underscore"),
    ],
)
def test_the_grace_period_covers_sleep_and_drain(args: list[str], shutdown: str, grace: int) -> None:
    spec = fleet({"engine": {"image": "i", "args": args}})
    assert value_of("--shutdown-timeout", engine(spec)["args"]) == shutdown
    assert [flag_of(a) for a in engine(spec)["args"]].count("--shutdown-timeout") == 1
    assert engine_pod(spec)["terminationGracePeriodSeconds"] == grace
    sleep = engine(spec)["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert sleep + int(shutdown) < grace


def test_any_engine_may_send_and_receive_kv() -> None:
    config = json.loads(value_of("--kv-transfer-config", engine(MINIMAL)["args"]) or "")
    assert config == {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
    assert variable(MINIMAL, "VLLM_NIXL_SIDE_CHANNEL_HOST")["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"


def test_a_transfer_config_of_the_user_takes_the_place_of_ours() -> None:
    own = '{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_buffer_device":"cpu"}'
    args = engine(fleet({"engine": {"image": "i", "args": ["--kv-transfer-config", own]}}))["args"]
    assert args.count("--kv-transfer-config") == 1
    assert value_of("--kv-transfer-config", args) == own


@pytest.mark.parametrize(
    ("env", "name", "value"),
    [
        pytest.param([("NEW", "1")], "NEW", "1", id="new"),
        pytest.param([("HF_HOME", "/x")], "HF_HOME", "/x", id="ours replaced"),
        pytest.param([("VLLM_NIXL_SIDE_CHANNEL_HOST", "h")], "VLLM_NIXL_SIDE_CHANNEL_HOST", "h", id="valueFrom ousted"),
        pytest.param([("PYTHONPATH", "/p")], "PYTHONPATH", "/ridgeline:/p", id="the exporter stays importable"),
        pytest.param([("A", "1"), ("A", "2")], "A", "2", id="the last of two counts"),
    ],
)
def test_variables_of_the_user(env: list[tuple[str, str]], name: str, value: str) -> None:
    spec = fleet({"engine": {"image": "i", "env": [{"name": n, "value": v} for n, v in env]}})
    assert variable(spec, name) == {"name": name, "value": value}


def test_the_hub_token_comes_from_the_secret_only_when_there_is_one() -> None:
    assert variable(FULL, "HF_TOKEN")["valueFrom"]["secretKeyRef"] == {"name": "hub", "key": "token"}
    assert "HF_TOKEN" not in [entry["name"] for entry in engine(MINIMAL)["env"]]


def test_peaks_reach_the_exporter_only_when_the_user_gave_them() -> None:
    assert variable(FULL, "RIDGELINE_PEAK_TERAFLOPS")["value"] == "1000"
    assert variable(FULL, "RIDGELINE_PEAK_GIGABYTES_PER_SECOND")["value"] == "3000"
    assert not [entry for entry in engine(MINIMAL)["env"] if entry["name"].startswith("RIDGELINE_PEAK")]


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"objectives": {"timeToFirstTokenMilliseconds": 1}}, id="objectives"),
        pytest.param({"topology": {"policy": "Auto"}}, id="policy"),
        pytest.param({"rules": {"cooldownSeconds": 1}}, id="rules"),
        pytest.param({"router": {"replicas": 3}}, id="router"),
        pytest.param({"replicas": 5}, id="replicas"),
    ],
)
def test_what_engines_need_not_know_never_restarts_them(changed: dict[str, Any]) -> None:
    before = render_all(MINIMAL)["Deployment/chat-engines"]["spec"]["template"]
    assert render_all(fleet(changed))["Deployment/chat-engines"]["spec"]["template"] == before


def test_labels_that_hold_the_fleet_together_cannot_be_overwritten() -> None:
    labels = {names.LABEL_ROLE: "decode", names.LABEL_FLEET: "other", "team": "search"}
    spec = fleet({"engine": {"image": "i", "podTemplate": {"metadata": {"labels": labels}}}})
    found = render_all(spec)["Deployment/chat-engines"]["spec"]["template"]["metadata"]["labels"]
    assert (found[names.LABEL_ROLE], found[names.LABEL_FLEET], found["team"]) == ("mixed", "chat", "search")


def test_containers_of_the_user_stand_beside_the_engine() -> None:
    pod = engine_pod(FULL)
    assert [container["name"] for container in pod["containers"]] == ["engine", "log-shipper"]
    assert engine(FULL)["resources"]["requests"] == {"nvidia.com/gpu": "8", "cpu": "16", "memory": "200Gi"}
    assert engine(FULL)["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert [t["key"] for t in pod["tolerations"]] == ["nvidia.com/gpu", "dedicated"]


def test_the_stock_image_may_run_as_root_and_gains_nothing_by_it() -> None:
    assert engine(MINIMAL)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert engine_pod(MINIMAL)["automountServiceAccountToken"] is False
