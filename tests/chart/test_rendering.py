"""What the chart renders, with Helm 3 and 4."""

from __future__ import annotations

import argparse
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from ridgeline import __version__, operator_command
from ridgeline.api.fleet import FleetSpec
from tests.tools import programs
from tests.tools.chart import (
    CHART,
    MONITORING,
    NAMESPACE,
    ROOT,
    HelmError,
    Object,
    helm,
    one,
    pod_specs,
    settings,
    template,
)

VARIANTS = [
    pytest.param([], id="defaults"),
    pytest.param([*MONITORING], id="prometheus-operator"),
    pytest.param(settings("prometheus.url=http://prometheus.monitoring:9090"), id="external"),
    pytest.param(
        [*MONITORING, *settings("prometheus.url=https://metrics.example/prefix", "networkPolicy.enabled=true")],
        id="external-with-prometheus-operator",
    ),
    pytest.param(
        settings(
            "watch.namespaces={chat,batch}", "networkPolicy.enabled=true", "replicas=2", "image.tag=1.2.3",
            "imagePullSecrets[0].name=pull", "tolerations[0].operator=Exists", "nodeSelector.pool=system",
            "podLabels.team=ml", "podAnnotations.note=yes", "priorityClassName=system-cluster-critical",
            "serviceAccount.annotations.note=yes", "rules.labels.release=stack", "monitors.labels.release=stack",
        ),
        id="everything-set",
    ),
]  # fmt: skip


@pytest.mark.parametrize("arguments", VARIANTS)
def test_helm_lint_has_nothing_to_say(helm_program: Path, arguments: list[str]) -> None:
    values = [word for word in arguments if word not in MONITORING]
    assert "0 chart(s) failed" in helm(helm_program, "lint", str(CHART), "--strict", *values)


@pytest.mark.parametrize("arguments", VARIANTS)
def test_both_major_versions_of_helm_render_the_same(arguments: list[str]) -> None:
    def ordered(objects: list[Object]) -> list[Object]:
        return sorted(objects, key=lambda o: (o["kind"], o["metadata"]["name"], o["metadata"].get("namespace", "")))

    assert ordered(template(programs.helm3(), *arguments)) == ordered(template(programs.helm4(), *arguments))


@pytest.mark.parametrize("arguments", VARIANTS)
def test_every_object_is_named_once_and_labelled(helm4_program: Path, arguments: list[str]) -> None:
    objects = template(helm4_program, *arguments)
    keys = [(o["kind"], o["metadata"]["name"], o["metadata"].get("namespace")) for o in objects]
    assert len(keys) == len(set(keys))
    for each in objects:
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "ridgeline"
        assert labels["app.kubernetes.io/instance"] == "ridgeline"
        cluster_wide = each["kind"] in ("ClusterRole", "ClusterRoleBinding")
        assert ("namespace" in each["metadata"]) is not cluster_wide
        assert len(each["metadata"]["name"]) <= 63


@pytest.mark.parametrize("arguments", VARIANTS)
def test_every_pod_satisfies_the_restricted_pod_security_standard(helm4_program: Path, arguments: list[str]) -> None:
    seen = 0
    for name, spec in pod_specs(template(helm4_program, *arguments)):
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), name
        assert all(set(volume) - {"name"} <= {"configMap", "emptyDir", "secret"} for volume in spec["volumes"]), name
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False, name
            assert context["readOnlyRootFilesystem"] is True, name
            assert context["capabilities"] == {"drop": ["ALL"]}, name
            assert container["resources"]["requests"], name
            assert container["resources"]["limits"]["memory"], name
            assert {"livenessProbe", "readinessProbe"} <= set(container), name
            seen += 1
    assert seen >= 1


def test_the_versions_of_chart_and_product_are_one() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"] == __version__


def test_the_chart_is_packaged_with_definition_and_rules(helm_program: Path, tmp_path: Path) -> None:
    helm(helm_program, "package", str(CHART), "--destination", str(tmp_path))
    text = helm(helm_program, "show", "all", str(next(tmp_path.glob("ridgeline-*.tgz"))))
    assert "kind: CustomResourceDefinition" in text


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        pytest.param("replicas=-1", "/replicas", id="negative-replicas"),
        pytest.param("replicas=two", "/replicas", id="replicas-in-words"),
        pytest.param("replcas=1", "replcas", id="misspelt"),
        pytest.param("image.repo=x", "repo", id="misspelt-within"),
        pytest.param("image.pullPolicy=Sometimes", "/image/pullPolicy", id="unknown-pull-policy"),
        pytest.param("prometheus.mode=none", "/prometheus/mode", id="unknown-mode"),
        pytest.param("prometheus.url=prometheus:9090", "/prometheus/url", id="url-without-scheme"),
        pytest.param("prometheus.scrapeInterval=5", "/prometheus/scrapeInterval", id="duration-without-unit"),
        pytest.param("prometheus.scrapeInterval=1m", "/prometheus/scrapeInterval", id="scrapes-in-minutes"),
        pytest.param("rules.window=0s", "/rules/window", id="empty-window"),
        pytest.param("watch.namespaces={Chat}", "/watch/namespaces/0", id="not-a-namespace"),
        pytest.param("logLevel=loud", "/logLevel", id="unknown-log-level"),
        pytest.param("intervalSeconds=0", "/intervalSeconds", id="no-interval"),
        pytest.param("grafana.dashboards.enabled=maybe", "/grafana/dashboards/enabled", id="neither-on-nor-off"),
        pytest.param("networkPolicy.ingress=x", "ingress", id="unknown-part-of-a-policy"),
        pytest.param("prometheus.mode=external", "set prometheus.url", id="external-without-url"),
    ],
)
def test_a_wrong_value_is_refused_and_named(helm_program: Path, value: str, complaint: str) -> None:
    with pytest.raises(HelmError) as refusal:
        template(helm_program, *settings(value))
    shown = str(refusal.value).replace(".", "/")  # Helm 3 writes paths with dots
    assert complaint.strip("/").replace(".", "/") in shown


def leaves(values: Any, path: str = "") -> list[str]:
    if isinstance(values, dict) and values:
        return [leaf for key, value in values.items() for leaf in leaves(value, f"{path}.{key}" if path else key)]
    return [path]


def test_the_schema_knows_every_value_and_the_readme_explains_it() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    readme = (CHART / "README.md").read_text()
    assert set(schema["properties"]) - {"global"} == set(values)
    documented = set(re.findall(r"^\| `([^`]+)` \|", readme, re.MULTILINE))
    missing = [leaf for leaf in leaves(values) if not any(leaf == d or leaf.startswith(f"{d}.") for d in documented)]
    assert missing == []
    assert {d.split(".")[0] for d in documented} <= set(values)


def test_the_notes_hold_a_fleet_that_the_models_accept(helm4_program: Path) -> None:
    text = helm(helm4_program, "install", "ridgeline", str(CHART), "--dry-run=client", "--namespace", NAMESPACE)
    notes = text.partition("NOTES:")[2]
    manifest = yaml.safe_load(notes.partition("<<EOF\n")[2].partition("  EOF")[0])
    FleetSpec.model_validate(manifest["spec"])
    assert "kubectl get fleets" in notes


# ---------------------------------------------------------------- the operator


def operator_container(objects: list[Object]) -> Object:
    [container] = one(objects, "Deployment", "ridgeline-operator")["spec"]["template"]["spec"]["containers"]
    return dict(container)


def test_the_operator_is_started_as_agreed(helm4_program: Path) -> None:
    container = operator_container(
        template(helm4_program, *settings("watch.namespaces={chat,batch}", "image.tag=9.1.0", "logLevel=debug"))
    )
    assert container["args"] == [
        "operator",
        f"--prometheus-url=http://ridgeline-prometheus.{NAMESPACE}.svc:9090",
        "--operator-image=ghcr.io/ridgeline-dev/ridgeline:9.1.0",
        "--operator-image-pull-policy=IfNotPresent",
        "--metrics-port=9090",
        "--health-port=8080",
        "--lease-namespace=$(POD_NAMESPACE)",
        "--lease-name=ridgeline-operator",
        "--namespace=chat",
        "--namespace=batch",
        "--interval-seconds=5",
        "--scrape-interval-seconds=5",
        "--rules-window-seconds=45",
        "--log-level=debug",
    ]
    assert "command" not in container, "the image's entrypoint is the ridgeline command"
    assert {variable["name"] for variable in container["env"]} == {"POD_NAME", "POD_NAMESPACE"}
    assert container["image"] == "ghcr.io/ridgeline-dev/ridgeline:9.1.0"


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([], id="defaults"),
        pytest.param(["watch.namespaces={chat,batch}", "prometheus.scrapeInterval=15s", "logLevel=warning"], id="set"),
        pytest.param(["prometheus.url=https://p.example/x", "prometheus.tokenSecret.name=token"], id="external"),
    ],
)
def test_the_command_line_accepts_the_arguments(helm4_program: Path, values: list[str]) -> None:
    parser = argparse.ArgumentParser()
    operator_command.add_parser(parser.add_subparsers(dest="command"))
    arguments = operator_container(template(helm4_program, *settings(*values)))["args"]
    parsed = parser.parse_args([argument.replace("$(POD_NAMESPACE)", NAMESPACE) for argument in arguments])
    assert parsed.lease_namespace == NAMESPACE
    assert parsed.operator_image.endswith(f":{__version__}")


def test_a_token_for_prometheus_is_mounted_where_the_operator_looks_for_it(helm4_program: Path) -> None:
    objects = template(helm4_program, *settings("prometheus.url=http://p:9090", "prometheus.tokenSecret.name=metrics"))
    container = operator_container(objects)
    [mount] = [m for m in container["volumeMounts"] if m["name"] == "prometheus-token"]
    assert f"--prometheus-token-file={mount['mountPath']}/token" in container["args"]
    spec = one(objects, "Deployment", "ridgeline-operator")["spec"]["template"]["spec"]
    assert {"name": "prometheus-token", "secret": {"secretName": "metrics"}} in spec["volumes"]


def test_the_image_is_of_the_charts_version_unless_told_otherwise(helm4_program: Path) -> None:
    assert operator_container(template(helm4_program))["image"].endswith(f":{__version__}")


def test_an_external_prometheus_is_asked_and_none_is_brought(helm4_program: Path) -> None:
    objects = template(helm4_program, *settings("prometheus.url=http://prometheus.monitoring:9090"))
    assert "--prometheus-url=http://prometheus.monitoring:9090" in operator_container(objects)["args"]
    assert {o["metadata"]["name"] for o in objects if o["kind"] == "Deployment"} == {"ridgeline-operator"}


def test_a_bundled_prometheus_may_be_asked_for_beside_a_url(helm4_program: Path) -> None:
    objects = template(helm4_program, *settings("prometheus.url=http://other:9090", "prometheus.mode=bundled"))
    assert f"--prometheus-url=http://ridgeline-prometheus.{NAMESPACE}.svc:9090" in operator_container(objects)["args"]
    one(objects, "Deployment", "ridgeline-prometheus")


def test_services_find_their_pods_and_ports(helm4_program: Path) -> None:
    objects = template(helm4_program)
    for service in (o for o in objects if o["kind"] == "Service"):
        deployment = one(objects, "Deployment", service["metadata"]["name"])
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= labels.items()
        assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
        ports = {p["name"] for c in deployment["spec"]["template"]["spec"]["containers"] for p in c["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def test_a_label_of_the_user_never_replaces_one_that_selects(helm4_program: Path) -> None:
    mine = 'podLabels={"app.kubernetes.io/component": "mine", "team": "ml"}'
    deployment = one(template(helm4_program, "--set-json", mine), "Deployment", "ridgeline-operator")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels["team"] == "ml"
    assert labels["app.kubernetes.io/component"] == "operator"


def test_releases_of_other_names_do_not_meet(helm4_program: Path) -> None:
    first = {(o["kind"], o["metadata"]["name"]) for o in template(helm4_program, release="ridgeline")}
    second = {(o["kind"], o["metadata"]["name"]) for o in template(helm4_program, release="second")}
    assert first & second == set()


# ---------------------------------------------------------------- dashboards


def test_each_dashboard_is_shipped_as_it_is_with_the_sidecars_label(helm4_program: Path) -> None:
    objects = template(helm4_program)
    for path in sorted((CHART / "dashboards").glob("*.json")):
        config_map = one(objects, "ConfigMap", f"ridgeline-dashboard-{path.stem}")
        assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert config_map["data"] == {path.name: path.read_text()}
        assert len(path.read_bytes()) < 1_000_000, "a ConfigMap holds a mebibyte at most"


def test_dashboards_can_be_left_out_and_labelled_otherwise(helm4_program: Path) -> None:
    def dashboards(*values: str) -> list[Object]:
        objects = template(helm4_program, *settings(*values))
        return [o for o in objects if "-dashboard-" in o["metadata"]["name"]]

    assert dashboards("grafana.dashboards.enabled=false") == []
    for each in dashboards("grafana.dashboards.labels.team=ml"):
        assert each["metadata"]["labels"]["team"] == "ml"
