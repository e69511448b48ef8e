"""The engine Deployment and its headless Service.

How an engine ends. Its pod gets a deletion timestamp; every registrar takes it out of its router's
table within about a second, while the preStop sleep keeps the engine serving (one without which the
others cannot serve stays in the table until they can, or until it is no longer Ready); then SIGTERM, and vLLM
finishes what it holds for at most `--shutdown-timeout`. KV that another engine has still to read counts
as held until it was read or its lease ends (30 s), so a prefill engine leaves no half-read cache behind.
The grace period covers all of it, and none of it is waited for by an idle engine:

    |- deletion      |- SIGTERM                                     |- SIGKILL
    |-- preStop 10 s --|-- --shutdown-timeout (default 300 s) ------|
    |-------------------- terminationGracePeriodSeconds ------------------ + 10 s --|
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ridgeline.api import names
from ridgeline.api.fleet import InferenceFleet, ModelCache, Role
from ridgeline.render.arguments import value_of, with_defaults
from ridgeline.render.merge import merge, merge_list
from ridgeline.render.metadata import Manifest, labels, metadata, selector
from ridgeline_exporters.roofline.hardware import UnknownAccelerator, find

PRE_STOP_SECONDS = 10
"""Long enough for registrars to hear of the deletion and for requests that were just routed to arrive."""
SHUTDOWN_TIMEOUT_SECONDS = 300
"""Longest time for requests in flight: ten leases, or 6,000 tokens at 50 ms."""
KILL_MARGIN_SECONDS = 10
PROBE_PERIOD_SECONDS = 5

ENGINE_COMMAND = ["python3", "-m", "vllm.entrypoints.openai.api_server"]
"""The module behind `vllm serve`; unlike the script it also starts with the CPU build."""

KV_TRANSFER = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}

VOLUME_EXPORTER, VOLUME_SHARED_MEMORY, VOLUME_CACHE, VOLUME_SCRATCH = "exporter", "shared-memory", "cache", "scratch"

LOCKED_DOWN = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
"""For the stock vLLM image: it runs as root, so a user id or a read-only root would break it."""
RESTRICTED = {**LOCKED_DOWN, "runAsNonRoot": True, "runAsUser": 65532, "readOnlyRootFilesystem": True}
"""For images that need nothing: the operator's and the router's."""


def engine_service(fleet: InferenceFleet) -> Manifest:
    """Headless Service that names the Ready engines, for people and for routers that are not ours."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(fleet, names.engines_name(fleet.name), names.COMPONENT_ENGINE),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": False,
            "selector": selector(fleet, names.COMPONENT_ENGINE),
            "ports": [
                {"name": "http", "port": names.ENGINE_PORT, "targetPort": "http", "protocol": "TCP"},
                {"name": "exporter", "port": names.EXPORTER_PORT, "targetPort": "exporter", "protocol": "TCP"},
            ],
        },
    }


def engine_deployment(fleet: InferenceFleet, operator_image: str, pull_policy: str) -> Manifest:
    """All engines of the fleet, whatever their role.

    A rollout replaces engine by engine without a surge: there is no spare GPU to surge onto, and a
    surge that never schedules would block the rollout for ever.
    """
    template = pod_template(fleet, operator_image, pull_policy)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(fleet, names.engines_name(fleet.name), names.COMPONENT_ENGINE),
        "spec": {
            "replicas": fleet.spec.replicas,
            "revisionHistoryLimit": 3,
            "progressDeadlineSeconds": fleet.spec.engine.startupTimeoutSeconds + 600,
            "selector": {"matchLabels": selector(fleet, names.COMPONENT_ENGINE)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "template": template,
        },
    }


def pod_template(fleet: InferenceFleet, operator_image: str, pull_policy: str) -> Manifest:
    """The engine pod: rendered, then the user's template over it, then what must hold whatever the user wrote."""
    placement = node_affinity(fleet.spec.hardware.accelerator)
    rendered: Manifest = {
        "metadata": {"labels": {**labels(fleet, names.COMPONENT_ENGINE), names.LABEL_ROLE: Role.MIXED.value}},
        "spec": {
            "serviceAccountName": names.engines_name(fleet.name),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,  # a Service called "vllm" would set VLLM_PORT and break the engine
            "terminationGracePeriodSeconds": grace_period_seconds(fleet),
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "tolerations": [{"key": names.GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}],
            "initContainers": [exporter_container(operator_image, pull_policy)],
            "containers": [engine_container(fleet)],
            "volumes": volumes(fleet),
        },
    }
    if placement:
        rendered["spec"]["affinity"] = {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [placement]}]
                }
            }
        }
    merged: Manifest = merge(rendered, fleet.spec.engine.podTemplate or {})
    merged["metadata"] = merge(merged["metadata"], {"labels": rendered["metadata"]["labels"]})
    return _with_placement(merged, placement)


def exporter_container(operator_image: str, pull_policy: str) -> Manifest:
    """Init container that copies the exporter onto the engine's PYTHONPATH."""
    return {
        "name": names.INIT_CONTAINER_EXPORTER,
        "image": operator_image,
        "imagePullPolicy": pull_policy,
        "command": ["python3", "-m", "ridgeline_exporters.install", names.EXPORTER_FOLDER],
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": RESTRICTED,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": VOLUME_EXPORTER, "mountPath": names.EXPORTER_FOLDER}],
    }


def engine_container(fleet: InferenceFleet) -> Manifest:
    """The vLLM container."""
    gpus = {names.GPU_RESOURCE: str(fleet.spec.hardware.perEngine)}
    health = {"httpGet": {"path": "/health", "port": "http"}, "timeoutSeconds": 5}
    return {
        "name": names.CONTAINER_ENGINE,
        "image": fleet.spec.engine.image,
        "command": ENGINE_COMMAND,
        "args": arguments(fleet),
        "env": environment(fleet),
        "ports": [
            {"name": "http", "containerPort": names.ENGINE_PORT, "protocol": "TCP"},
            {"name": "side-channel", "containerPort": names.SIDE_CHANNEL_PORT, "protocol": "TCP"},
            {"name": "exporter", "containerPort": names.EXPORTER_PORT, "protocol": "TCP"},
        ],
        "resources": {"requests": gpus, "limits": gpus},
        "startupProbe": {
            **health,
            "periodSeconds": PROBE_PERIOD_SECONDS,
            "failureThreshold": -(-fleet.spec.engine.startupTimeoutSeconds // PROBE_PERIOD_SECONDS),
        },
        "readinessProbe": {**health, "periodSeconds": PROBE_PERIOD_SECONDS, "failureThreshold": 3},
        # A front end that is busy with long prompts answers late: a minute of silence, not a hiccup, is death.
        "livenessProbe": {**health, "timeoutSeconds": 10, "periodSeconds": 10, "failureThreshold": 6},
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}},
        "securityContext": LOCKED_DOWN,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": VOLUME_EXPORTER, "mountPath": names.EXPORTER_FOLDER, "readOnly": True},
            {"name": VOLUME_SHARED_MEMORY, "mountPath": "/dev/shm"},  # noqa: S108 - tensor-parallel workers meet there
            {"name": VOLUME_CACHE, "mountPath": names.CACHE_FOLDER},
            {"name": VOLUME_SCRATCH, "mountPath": "/tmp"},  # noqa: S108 - also HOME, writable for any user id
        ],
    }


def arguments(fleet: InferenceFleet) -> list[str]:
    """Arguments of vLLM's API server: ours, less what the user sets, then the user's."""
    model = fleet.spec.model
    defaults: list[tuple[str, ...]] = [
        ("--model", model.id),
        ("--served-model-name", model.servedName),
        *([("--revision", model.revision)] if model.revision else []),
        ("--port", str(names.ENGINE_PORT)),
        ("--tensor-parallel-size", str(fleet.spec.hardware.perEngine)),
        ("--kv-transfer-config", json.dumps(KV_TRANSFER, separators=(",", ":"))),
        ("--shutdown-timeout", str(SHUTDOWN_TIMEOUT_SECONDS)),
    ]
    return with_defaults(defaults, fleet.spec.engine.args)


def environment(fleet: InferenceFleet) -> list[Manifest]:
    """Environment of the engine: ours in a fixed order, the user's over it.

    The objectives are not here: they change at run time, through the exporter's control endpoint, and a
    changed environment would reload the model on every engine.
    """
    spec = fleet.spec
    control = {"name": names.secret_name(fleet.name), "key": names.SECRET_KEY_CONTROL}
    rendered: list[Manifest] = [
        _value("PYTHONPATH", names.EXPORTER_FOLDER),
        _value("HOME", "/tmp"),  # noqa: S108 - an emptyDir of the pod
        _value("HF_HOME", f"{names.CACHE_FOLDER}/huggingface"),
        {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        _value("VLLM_NIXL_SIDE_CHANNEL_PORT", names.SIDE_CHANNEL_PORT),
        _value("RIDGELINE_EXPORTER_PORT", names.EXPORTER_PORT),
        {"name": "RIDGELINE_CONTROL_TOKEN", "valueFrom": {"secretKeyRef": control}},
        _value("RIDGELINE_ACCELERATOR", spec.hardware.accelerator),
    ]
    if spec.hardware.peaks:
        rendered += [
            _value("RIDGELINE_PEAK_TERAFLOPS", spec.hardware.peaks.computeTeraflops),
            _value("RIDGELINE_PEAK_GIGABYTES_PER_SECOND", spec.hardware.peaks.memoryBandwidthGigabytesPerSecond),
        ]
    if spec.model.tokenSecretRef:
        token = {"name": spec.model.tokenSecretRef.name, "key": spec.model.tokenSecretRef.key}
        rendered.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": token}})
    return merge_list("env", rendered, [_value(e.name, _with_exporter(e.name, e.value)) for e in spec.engine.env])


def volumes(fleet: InferenceFleet) -> list[Manifest]:
    """Volumes of the engine pod."""
    return [
        {"name": VOLUME_EXPORTER, "emptyDir": {}},
        {"name": VOLUME_SHARED_MEMORY, "emptyDir": {"medium": "Memory"}},
        {"name": VOLUME_CACHE, **cache_source(fleet.spec.model.cache)},
        {"name": VOLUME_SCRATCH, "emptyDir": {}},
    ]


def cache_source(cache: ModelCache | None) -> Manifest:
    """Where the weights are kept between starts."""
    if cache and cache.persistentVolumeClaimName:
        return {"persistentVolumeClaim": {"claimName": cache.persistentVolumeClaimName}}
    if cache and cache.hostPath:
        return {"hostPath": {"path": cache.hostPath, "type": "DirectoryOrCreate"}}
    if cache and cache.sizeLimit:
        return {"emptyDir": {"sizeLimit": cache.sizeLimit}}
    return {"emptyDir": {}}


def node_affinity(accelerator: str) -> Manifest | None:
    """Requirement on the node's GPU product; None for an accelerator that only the user knows."""
    try:
        products = find(accelerator).product_labels
    except UnknownAccelerator:
        return None
    return {"key": names.GPU_PRODUCT_LABEL, "operator": "In", "values": list(products)} if products else None


def grace_period_seconds(fleet: InferenceFleet) -> int:
    """How long an engine may take to end; see the picture at the top."""
    drain = value_of("--shutdown-timeout", fleet.spec.engine.args)
    return PRE_STOP_SECONDS + int(drain or SHUTDOWN_TIMEOUT_SECONDS) + KILL_MARGIN_SECONDS


def _value(name: str, value: object) -> Manifest:
    return {"name": name, "value": str(value)}


def _with_exporter(name: str, value: str) -> str:
    """Keep the exporter importable where a user brings a PYTHONPATH."""
    return f"{names.EXPORTER_FOLDER}:{value}" if name == "PYTHONPATH" and value else value


def _with_placement(template: Manifest, placement: Mapping[str, Any] | None) -> Manifest:
    """Hold every node selector term to the accelerator: terms are alternatives, and a user's own would undo ours."""
    path = ("spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    required: Any = template
    for field in path:
        required = required.get(field) or {}
    terms = required.get("nodeSelectorTerms")
    if not placement or not terms:
        return template
    held = [
        {**term, "matchExpressions": [placement, *(e for e in term.get("matchExpressions", []) if e != placement)]}
        for term in terms
    ]
    patch: Any = {"nodeSelectorTerms": held}
    for field in reversed(path):
        patch = {field: patch}
    held_template: Manifest = merge(template, patch)
    return held_template
