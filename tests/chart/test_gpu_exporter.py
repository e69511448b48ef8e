"""The GPU exporter's DaemonSet: off unless asked for, with the least that it can do with."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from ridgeline_exporters.gpu.command import PORT, parser
from tests.tools import programs
from tests.tools.chart import CHART, MONITORING, NAMESPACE, HelmError, Object, helm, one, settings, template

NAME = "ridgeline-gpu-exporter"
ENABLED = settings("gpuExporter.enabled=true")
EVERYTHING = [*ENABLED, *MONITORING, *settings("networkPolicy.enabled=true")]


def pod(objects: list[Object]) -> Object:
    return dict(one(objects, "DaemonSet", NAME)["spec"]["template"]["spec"])


def container(objects: list[Object]) -> Object:
    [found] = pod(objects)["containers"]
    return dict(found)


def test_nothing_of_it_is_there_unless_it_is_asked_for(helm4_program: Path) -> None:
    objects = template(helm4_program, *MONITORING, *settings("networkPolicy.enabled=true"))
    assert not [o for o in objects if "gpu-exporter" in o["metadata"]["name"] or o["kind"] == "DaemonSet"]
    assert "ridgeline-gpu" not in one(objects, "ConfigMap", "ridgeline-prometheus")["data"]["prometheus.yml"]


def test_helm_lint_has_nothing_to_say(helm_program: Path) -> None:
    assert "0 chart(s) failed" in helm(helm_program, "lint", str(CHART), "--strict", *ENABLED)


def test_both_major_versions_of_helm_render_the_same() -> None:
    def ordered(objects: list[Object]) -> list[Object]:
        return sorted(objects, key=lambda o: (o["kind"], o["metadata"]["name"]))

    three, four = template(programs.helm3(), *EVERYTHING), template(programs.helm4(), *EVERYTHING)
    assert ordered(three) == ordered(four)
    assert {o["kind"] for o in four if o["metadata"]["name"] == NAME} == {
        "DaemonSet",
        "NetworkPolicy",
        "PodMonitor",
        "ServiceAccount",
    }


def test_it_is_root_without_any_capability_and_mounts_one_folder_to_read(helm4_program: Path) -> None:
    """What is beyond the standard "restricted" is listed here: the user, and the kubelet's folder."""
    spec = pod(template(helm4_program, *ENABLED))
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert container(template(helm4_program, *ENABLED))["securityContext"] == {
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    folder = "/var/lib/kubelet/pod-resources"
    assert spec["volumes"] == [{"name": "pod-resources", "hostPath": {"path": folder, "type": "Directory"}}]
    assert spec["containers"][0]["volumeMounts"] == [{"name": "pod-resources", "mountPath": folder, "readOnly": True}]


def test_it_sees_every_gpu_and_takes_none(helm4_program: Path) -> None:
    objects = template(helm4_program, *ENABLED)
    variables = {v["name"]: v.get("value") for v in container(objects)["env"]}
    assert variables["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert variables["NVIDIA_DRIVER_CAPABILITIES"] == "utility"
    assert pod(objects)["runtimeClassName"] == "nvidia"
    assert pod(objects)["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    resources = container(objects)["resources"]
    assert not any("nvidia.com" in name for part in resources.values() for name in part)
    assert resources["limits"]["memory"]


def test_the_command_line_accepts_the_arguments(helm4_program: Path) -> None:
    made = container(template(helm4_program, *ENABLED, *settings("logLevel=warning")))
    assert made["command"] == ["python", "-m", "ridgeline_exporters.gpu"]
    parsed = parser().parse_args(made["args"])
    assert (parsed.port, parsed.log_level) == (PORT, "warning")
    [mount] = made["volumeMounts"]
    assert str(parsed.pod_resources_socket.parent) == mount["mountPath"]
    assert made["ports"] == [{"name": "metrics", "containerPort": PORT}]
    assert made["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    assert made["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}


def test_where_it_runs_can_be_changed(helm4_program: Path) -> None:
    values = ["gpuExporter.runtimeClassName=", "gpuExporter.podResourcesPath=/data/kubelet/pod-resources"]
    values += ["gpuExporter.priorityClassName=system-node-critical", "imagePullSecrets[0].name=pull"]
    spec = pod(template(helm4_program, *ENABLED, *settings(*values)))
    assert "runtimeClassName" not in spec
    assert spec["volumes"][0]["hostPath"]["path"] == "/data/kubelet/pod-resources"
    assert spec["priorityClassName"] == "system-node-critical"
    assert spec["imagePullSecrets"] == [{"name": "pull"}]


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("gpuExporter.enabled=maybe", "enabled"),
        ("gpuExporter.podResourcesPath=pod-resources", "podResourcesPath"),
        ("gpuExporter.image=x", "image"),
    ],
)
def test_a_wrong_value_is_refused_and_named(helm_program: Path, value: str, complaint: str) -> None:
    with pytest.raises(HelmError, match=complaint):
        template(helm_program, *settings(value))


def test_selectors_find_its_pods(helm4_program: Path) -> None:
    objects = template(helm4_program, *EVERYTHING)
    daemon_set = one(objects, "DaemonSet", NAME)
    labels = daemon_set["spec"]["template"]["metadata"]["labels"]
    for selector in (
        daemon_set["spec"]["selector"],
        one(objects, "PodMonitor", NAME)["spec"]["selector"],
        one(objects, "NetworkPolicy", NAME)["spec"]["podSelector"],
    ):
        assert selector["matchLabels"].items() <= labels.items()
        assert selector["matchLabels"]["app.kubernetes.io/component"] == "gpu-exporter"


def test_both_ways_of_scraping_honour_the_pods_that_its_series_name(helm4_program: Path, tmp_path: Path) -> None:
    objects = template(helm4_program, *EVERYTHING, *settings("prometheus.scrapeInterval=7s"))
    assert one(objects, "PodMonitor", NAME)["spec"]["podMetricsEndpoints"] == [
        {
            "port": "metrics",
            "interval": "7s",
            "honorLabels": True,
            "relabelings": [{"targetLabel": "job", "replacement": "ridgeline-gpu"}],
        }
    ]
    config = yaml.safe_load(one(objects, "ConfigMap", "ridgeline-prometheus")["data"]["prometheus.yml"])
    [job] = [job for job in config["scrape_configs"] if job["job_name"] == "ridgeline-gpu"]
    assert job["honor_labels"] is True
    [discovery] = job["kubernetes_sd_configs"]
    assert discovery["namespaces"] == {"names": [NAMESPACE]}
    labels = one(objects, "DaemonSet", NAME)["spec"]["template"]["metadata"]["labels"]
    wanted = dict(pair.split("=") for pair in re.split(",", discovery["selectors"][0]["label"]))
    assert wanted.items() <= labels.items()
    [keep] = [r for r in job["relabel_configs"] if r.get("action") == "keep"]
    assert keep["regex"] == str(PORT)

    for each in config["scrape_configs"]:
        del each["kubernetes_sd_configs"]  # Debian's build knows no Kubernetes
    config["rule_files"] = []
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    check = [str(programs.promtool()), "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(check, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
