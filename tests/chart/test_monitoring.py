"""Both ways in which the chart gets signals: the Prometheus Operator's kinds and a Prometheus of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ridgeline.api import names
from tests.tools import programs
from tests.tools.chart import CHART, MONITORING, NAMESPACE, Object, one, settings, template

RULES = sorted((CHART / "rules").glob("*.yaml"))

JOBS = {
    "ridgeline-engine": names.EXPORTER_PORT,
    "ridgeline-vllm": names.ENGINE_PORT,
    "ridgeline-router": names.ROUTER_METRICS_PORT,
    "ridgeline-registrar": names.REGISTRAR_PORT,
    "ridgeline-operator": names.OPERATOR_METRICS_PORT,
}


def prometheus_files(objects: list[Object]) -> dict[str, str]:
    data: dict[str, str] = one(objects, "ConfigMap", "ridgeline-prometheus")["data"]
    return data


def scrape_jobs(objects: list[Object]) -> dict[str, Any]:
    config = yaml.safe_load(prometheus_files(objects)["prometheus.yml"])
    return {job["job_name"]: job for job in config["scrape_configs"]}


@pytest.mark.parametrize(
    ("arguments", "bundled", "monitors"),
    [
        pytest.param([], True, False, id="a-bare-cluster"),
        pytest.param([*MONITORING], True, True, id="prometheus-operator-without-a-url"),
        pytest.param(settings("prometheus.url=http://p:9090"), False, False, id="url"),
        pytest.param([*MONITORING, *settings("prometheus.url=http://p:9090")], False, True, id="prometheus-operator"),
        pytest.param([*MONITORING, *settings("monitors.enabled=never")], True, False, id="monitors-never"),
        pytest.param(settings("monitors.enabled=always"), True, True, id="monitors-always"),
    ],
)
def test_the_cluster_and_the_values_say_which_way(
    helm4_program: Path, arguments: list[str], bundled: bool, monitors: bool
) -> None:
    objects = template(helm4_program, *arguments)
    kinds = {o["kind"] for o in objects}
    assert ("ridgeline-prometheus" in {o["metadata"]["name"] for o in objects}) is bundled
    assert ("PodMonitor" in kinds) is monitors
    assert ("PrometheusRule" in kinds) is monitors


def test_the_prometheus_operator_gets_every_rule_with_the_window_filled_in(helm4_program: Path) -> None:
    objects = template(helm4_program, *MONITORING, *settings("rules.window=90s", "rules.labels.release=stack"))
    rules = {o["metadata"]["name"]: o for o in objects if o["kind"] == "PrometheusRule"}
    assert set(rules) == {f"ridgeline-{path.stem}" for path in RULES}
    for path in RULES:
        rule = rules[f"ridgeline-{path.stem}"]
        assert rule["spec"] == yaml.safe_load(path.read_text().replace("${window}", "90s").replace("${interval}", "5s"))
        assert rule["metadata"]["labels"]["release"] == "stack"


def test_the_operator_is_monitored_under_its_jobs_name_and_its_labels_are_honoured(helm4_program: Path) -> None:
    objects = template(helm4_program, *MONITORING, *settings("prometheus.scrapeInterval=7s"))
    monitor = one(objects, "PodMonitor")
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint == {
        "port": "metrics",
        "interval": "7s",
        "honorLabels": True,
        "relabelings": [{"targetLabel": "job", "replacement": "ridgeline-operator"}],
    }
    deployment = one(objects, "Deployment", "ridgeline-operator")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize(("job", "port"), JOBS.items(), ids=list(JOBS))
def test_each_job_of_the_bundled_prometheus_keeps_one_port(helm4_program: Path, job: str, port: int) -> None:
    [keep] = [r for r in scrape_jobs(template(helm4_program))[job]["relabel_configs"] if r.get("action") == "keep"]
    assert keep == {
        "source_labels": ["__meta_kubernetes_pod_container_port_number"],
        "regex": str(port),
        "action": "keep",
    }


def test_there_are_no_other_jobs_and_only_the_operators_labels_are_honoured(helm4_program: Path) -> None:
    jobs = scrape_jobs(template(helm4_program))
    assert set(jobs) == set(JOBS)
    assert [name for name, job in jobs.items() if job.get("honor_labels")] == ["ridgeline-operator"]


def test_targets_are_labelled_with_namespace_fleet_and_pod_and_never_with_the_role(helm4_program: Path) -> None:
    for name, job in scrape_jobs(template(helm4_program)).items():
        labels = {r["target_label"] for r in job["relabel_configs"] if "target_label" in r}
        assert labels == {"namespace", "pod"} | (set() if name == "ridgeline-operator" else {"fleet"})


def test_only_watched_namespaces_are_searched_for_targets(helm4_program: Path) -> None:
    jobs = scrape_jobs(template(helm4_program, *settings("watch.namespaces={chat,batch}")))
    for name, job in jobs.items():
        [discovery] = job["kubernetes_sd_configs"]
        expected = [NAMESPACE] if name == "ridgeline-operator" else ["chat", "batch"]
        assert discovery["namespaces"] == {"names": expected}


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([], id="defaults"),
        pytest.param(["watch.namespaces={chat}", "prometheus.scrapeInterval=15s", "rules.window=120s"], id="changed"),
    ],
)
def test_promtool_accepts_the_bundled_configuration_and_its_rules(
    helm4_program: Path, tmp_path: Path, values: list[str]
) -> None:
    files = prometheus_files(template(helm4_program, *settings(*values)))
    assert set(files) == {"prometheus.yml", *(path.name for path in RULES)}
    config = yaml.safe_load(files["prometheus.yml"].replace("/etc/prometheus/", f"{tmp_path}/"))
    for job in config["scrape_configs"]:
        # Debian's build knows no Kubernetes; test_discovery_on_api_server.py runs one that does.
        del job["kubernetes_sd_configs"]
    files["prometheus.yml"] = yaml.safe_dump(config)
    for name, content in files.items():
        assert "${" not in content
        (tmp_path / name).write_text(content)
    check = [str(programs.promtool()), "check", "config", "prometheus.yml"]
    done = subprocess.run(check, cwd=tmp_path, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("SUCCESS") >= 1 + len(RULES)


@pytest.mark.parametrize("value", ["rules.window=90s", "prometheus.scrapeInterval=11s"])
def test_new_rules_or_settings_restart_the_bundled_prometheus(helm4_program: Path, value: str) -> None:
    def annotations(objects: list[Object]) -> Any:
        return one(objects, "Deployment", "ridgeline-prometheus")["spec"]["template"]["metadata"]["annotations"]

    assert annotations(template(helm4_program)) != annotations(template(helm4_program, *settings(value)))
