"""PodMonitors for clusters whose Prometheus Operator reads them.

Targets get `namespace`, `pod` and `fleet` and never the role: a flip would end every series of the pod
and start others, and every `rate()` over it would break. Rules join the role on instead.
"""

from __future__ import annotations

from ridgeline.api import names
from ridgeline.api.fleet import InferenceFleet
from ridgeline.render.metadata import Manifest, metadata, selector

FLEET_META_LABEL = "__meta_kubernetes_pod_label_" + names.LABEL_FLEET.replace(".", "_").replace("/", "_").replace(
    "-", "_"
)


def engine_monitor(fleet: InferenceFleet, interval_seconds: int) -> Manifest:
    """Scrapes the exporter and vLLM's own metrics on every engine."""
    endpoints = [
        _endpoint("exporter", "ridgeline-engine", interval_seconds),
        _endpoint("http", "ridgeline-vllm", interval_seconds),
    ]
    return _monitor(fleet, names.engines_name(fleet.name), names.COMPONENT_ENGINE, endpoints)


def router_monitor(fleet: InferenceFleet, interval_seconds: int) -> Manifest:
    """Scrapes the router and its registrar."""
    endpoints = [
        _endpoint("metrics", "ridgeline-router", interval_seconds),
        _endpoint("registrar", "ridgeline-registrar", interval_seconds),
    ]
    return _monitor(fleet, names.router_name(fleet.name), names.COMPONENT_ROUTER, endpoints)


def _monitor(fleet: InferenceFleet, name: str, component: str, endpoints: list[Manifest]) -> Manifest:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": metadata(fleet, name, component),
        "spec": {"selector": {"matchLabels": selector(fleet, component)}, "podMetricsEndpoints": endpoints},
    }


def _endpoint(port: str, job: str, interval_seconds: int) -> Manifest:
    return {
        "port": port,
        "path": "/metrics",
        "interval": f"{interval_seconds}s",
        "relabelings": [
            {"sourceLabels": [FLEET_META_LABEL], "targetLabel": "fleet", "action": "replace"},
            {"targetLabel": "job", "replacement": job, "action": "replace"},
        ],
    }
