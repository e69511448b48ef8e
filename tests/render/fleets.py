"""Fleets to render."""

from __future__ import annotations

from typing import Any

from ridgeline.api.fleet import InferenceFleet
from ridgeline.render import render_fleet


def fleet(spec: dict[str, Any] | None = None, *, name: str = "chat", namespace: str = "inference") -> InferenceFleet:
    """A fleet with the least that a user must write, and parts of the spec laid over it."""
    base: dict[str, Any] = {
        "model": {"id": "meta-llama/Llama-3.1-70B-Instruct", "servedName": "llama-3.1-70b"},
        "hardware": {"accelerator": "H100-SXM5-80GB", "perEngine": 4},
        "engine": {"image": "docker.io/vllm/vllm-openai:v0.32.0"},
        "replicas": 2,
    }
    for part, fields in (spec or {}).items():
        base[part] = {**base.get(part, {}), **fields} if isinstance(fields, dict) else fields
    metadata = {"namespace": namespace, "name": name, "uid": "2d5c1a36-0000-4000-8000-000000000001", "generation": 1}
    return InferenceFleet.from_object({"metadata": metadata, "spec": base})


MINIMAL = fleet()

FULL = fleet(
    {
        "model": {
            "revision": "v1",
            "cache": {"persistentVolumeClaimName": "weights"},
            "tokenSecretRef": {"name": "hub", "key": "token"},
        },
        "hardware": {
            "perEngine": 8,
            "peaks": {"computeTeraflops": 1000, "memoryBandwidthGigabytesPerSecond": 3000},
        },
        "engine": {
            "args": ["--max-num-seqs", "512", "--shutdown-timeout", "60"],
            "env": [{"name": "NCCL_DEBUG", "value": "WARN"}, {"name": "PYTHONPATH", "value": "/plugins"}],
            "startupTimeoutSeconds": 3600,
            "podTemplate": {
                "metadata": {"annotations": {"example.com/team": "search"}},
                "spec": {
                    "priorityClassName": "serving",
                    "runtimeClassName": "nvidia",
                    "tolerations": [{"key": "dedicated", "value": "inference", "effect": "NoSchedule"}],
                    "imagePullSecrets": [{"name": "registry"}],
                    "volumes": [{"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "32Gi"}}],
                    "containers": [
                        {
                            "name": "engine",
                            "resources": {"requests": {"cpu": "16", "memory": "200Gi"}},
                            "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
                        },
                        {"name": "log-shipper", "image": "example.com/shipper:1"},
                    ],
                },
            },
        },
        "replicas": 8,
        "router": {"image": "example.com/smg:1.13.0", "replicas": 2, "args": ["--policy", "round_robin"]},
    }
)

EXTERNAL = fleet({"router": {"type": "External"}, "model": {"cache": {"hostPath": "/var/lib/models"}}})


def render_all(of: InferenceFleet, *, monitors: bool = False) -> dict[str, Any]:
    """Manifests by "Kind/name"."""
    rendered = render_fleet(of, operator_image="ghcr.io/example/ridgeline:0.1.0", monitors=monitors)
    by_name = {f"{manifest['kind']}/{manifest['metadata']['name']}": manifest for manifest in rendered}
    assert len(by_name) == len(rendered)
    return by_name


def engine_pod(of: InferenceFleet) -> Any:
    """Spec of the engine pod."""
    return render_all(of)[f"Deployment/{of.name}-engines"]["spec"]["template"]["spec"]


def router_pod(of: InferenceFleet) -> Any:
    """Spec of the router pod."""
    return render_all(of)[f"Deployment/{of.name}-router"]["spec"]["template"]["spec"]


def named(entries: list[dict[str, Any]], name: str) -> Any:
    """The entry of a list that has this name."""
    found = [entry for entry in entries if entry["name"] == name]
    assert len(found) == 1, f"{name}: {len(found)} of {[entry['name'] for entry in entries]}"
    return found[0]
