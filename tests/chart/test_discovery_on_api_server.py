"""The bundled Prometheus finds the right ports of the right pods: real Prometheus, real API server, real manifests.

The pods have addresses and no containers, so every scrape fails; what counts here is what would be scraped.
"""

from __future__ import annotations

import copy
import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from ridgeline.api.fleet import InferenceFleet
from ridgeline.render.manifests import render_fleet
from tests.cluster import kube
from tests.tools.chart import Object, one, settings, template
from tests.tools.processes import free_ports, program

if TYPE_CHECKING:
    from tests.tools.api_server import ApiServer

pytestmark = pytest.mark.apiserver

FLEET = {
    "apiVersion": "ridgeline.dev/v1alpha1",
    "kind": "InferenceFleet",
    "metadata": {"name": "chat"},
    "spec": {
        "model": {"id": "meta-llama/Llama-3.1-8B", "servedName": "llama-3.1-8b"},
        "hardware": {"accelerator": "H100-SXM5-80GB"},
        "engine": {"image": "docker.io/vllm/vllm-openai:v0.32.0"},
    },
}


def run_pod(server: ApiServer, namespace: str, name: str, deployment: Object, address: str, phase: str) -> None:
    """Make a pod of a Deployment's template, as far as anything can see from outside."""
    pod = copy.deepcopy(deployment["spec"]["template"]) | {"apiVersion": "v1", "kind": "Pod"}
    pod["metadata"]["name"] = name
    server.apply(pod, namespace=namespace)
    status = {"status": {"phase": phase, "podIP": address, "podIPs": [{"ip": address}]}}
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
    assert server.request("PATCH", path, status, "application/merge-patch+json").status == 200


@contextmanager
def prometheus(path: Path, folder: Path, config: Any) -> Iterator[str]:
    """Run Prometheus with a configuration; yields its base URL."""
    [port] = free_ports(1)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    command: list[str | Path] = [path, f"--config.file={folder}/prometheus.yml"]
    command += [f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"]
    with program(command, folder / "log"):
        yield f"http://127.0.0.1:{port}"


def ask(url: str, path: str) -> Any:
    """What Prometheus answers."""
    with urllib.request.urlopen(url + path, timeout=5) as answer:
        return json.load(answer)["data"]


def targets(url: str, count: int) -> list[dict[str, Any]]:
    """Active targets, once there are as many as expected (or after a while, to show what there is)."""
    deadline = time.monotonic() + 40
    found: list[dict[str, Any]] = []
    while len(found) < count and time.monotonic() < deadline:
        time.sleep(0.5)
        try:
            found = ask(url, "/api/v1/targets?state=active")["activeTargets"]
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def prometheus_program() -> Path:
    """Prometheus of the test cluster, which knows Kubernetes discovery; compiled here if that was not done before."""
    folder = kube.HOME / "prometheus"
    source = Path(kube.__file__).parent / "prometheus"
    kube.compile_go(source, folder, "remove_all_sd,enable_kubernetes_sd", "Prometheus: a few minutes, once")
    return folder / "prometheus"


@pytest.mark.timeout(1800)
def test_targets_are_the_ports_of_engines_routers_operator_and_gpu_exporter_with_their_labels(
    api_server: ApiServer, api_namespace: str, helm4_program: Path, prometheus_program: Path, tmp_path: Path
) -> None:
    [stored] = api_server.apply(FLEET, namespace=api_namespace)
    manifests = render_fleet(InferenceFleet.from_object(stored), operator_image="ridgeline:1", monitors=False)
    # The operator runs in the same namespace, so that this test's pods are the only ones that are found.
    # The test cluster's API server has no runtime class, and admits no pod that names one.
    values = (f"watch.namespaces={{{api_namespace}}}", "gpuExporter.enabled=true", "gpuExporter.runtimeClassName=")
    chart = template(helm4_program, *settings(*values), "-n", api_namespace)
    pods = {
        "chat-engines-1": (one(manifests, "Deployment", "chat-engines"), "127.0.1.1", "Running"),
        "chat-engines-2": (one(manifests, "Deployment", "chat-engines"), "127.0.1.2", "Succeeded"),
        "chat-router-1": (one(manifests, "Deployment", "chat-router"), "127.0.1.3", "Running"),
        "operator-1": (one(chart, "Deployment", "ridgeline-operator"), "127.0.1.4", "Running"),
        "gpu-exporter-1": (one(chart, "DaemonSet", "ridgeline-gpu-exporter"), "127.0.1.5", "Running"),
    }
    for name, (deployment, address, phase) in pods.items():
        run_pod(api_server, api_namespace, name, deployment, address, phase)

    files = one(chart, "ConfigMap", "ridgeline-prometheus")["data"]
    for name in set(files) - {"prometheus.yml"}:
        (tmp_path / name).write_text(files[name])
    config = yaml.safe_load(files["prometheus.yml"].replace("/etc/prometheus/", f"{tmp_path}/"))
    for job in config["scrape_configs"]:
        for discovery in job["kubernetes_sd_configs"]:
            discovery["kubeconfig_file"] = str(api_server.kubeconfig)
    with prometheus(prometheus_program, tmp_path, config) as url:
        found = targets(url, 6)
        groups = ask(url, "/api/v1/rules")["groups"]

    written = [
        group["name"]
        for path in sorted(tmp_path.glob("*.yaml"))
        for group in yaml.safe_load(path.read_text())["groups"]
    ]
    assert sorted(group["name"] for group in groups) == sorted(written)
    assert [rule["lastError"] for group in groups for rule in group["rules"] if rule.get("lastError")] == []
    assert all("namespace" in t["labels"] for t in found)
    assert {(t["labels"]["job"], t["labels"]["pod"], t["scrapeUrl"]) for t in found} == {
        ("ridgeline-engine", "chat-engines-1", "http://127.0.1.1:9400/metrics"),
        ("ridgeline-vllm", "chat-engines-1", "http://127.0.1.1:8000/metrics"),
        ("ridgeline-router", "chat-router-1", "http://127.0.1.3:29000/metrics"),
        ("ridgeline-registrar", "chat-router-1", "http://127.0.1.3:30002/metrics"),
        ("ridgeline-operator", "operator-1", "http://127.0.1.4:9090/metrics"),
        ("ridgeline-gpu", "gpu-exporter-1", "http://127.0.1.5:9402/metrics"),
    }
    for target in found:
        labels = dict(target["labels"])
        assert labels.pop("namespace") == api_namespace
        fleet = labels.pop("fleet", None)
        assert fleet == (None if labels["job"] in ("ridgeline-operator", "ridgeline-gpu") else "chat")
        assert set(labels) == {"job", "instance", "pod"}, "the role of an engine is never a label of its target"
