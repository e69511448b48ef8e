"""A release of the chart on a real API server: installed, upgraded, used and removed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kubernetes.aio.client import ApiClient, Configuration

from ridgeline.act.leadership import Leadership, lead
from ridgeline.api.fleet import InferenceFleet
from ridgeline.render.manifests import render_fleet
from tests.operator_process.operators import eventually, operator
from tests.tools.api_server import KubectlError
from tests.tools.chart import CHART, Object, helm, one, settings, template

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
        "replicas": 2,
    },
}

KINDS = (
    "configmaps,serviceaccounts,services,secrets,deployments,leases,roles,rolebindings,clusterroles,"
    "clusterrolebindings,networkpolicies,pods,persistentvolumeclaims"
)
"""All but events, which the API server forgets within the hour."""


def present(server: ApiServer) -> set[tuple[str, str, str]]:
    """Kind, namespace and name of all that a release could leave behind."""
    found = server.get(KINDS, "--all-namespaces")["items"]
    return {(o["kind"], o["metadata"].get("namespace", ""), o["metadata"]["name"]) for o in found}


@dataclass(frozen=True, slots=True)
class Release:
    """An installed chart."""

    server: ApiServer
    namespace: str
    helm: Path

    @property
    def operator(self) -> str:
        """The operator's identity."""
        return f"system:serviceaccount:{self.namespace}:ridgeline-operator"

    def as_operator(self, *arguments: str, stdin: str | None = None) -> str:
        """kubectl with the operator's rights."""
        return self.server.kubectl(f"--as={self.operator}", *arguments, stdin=stdin)

    def may(self, verb: str, resource: str, namespace: str, subresource: str = "") -> bool:
        """Whether the operator may do that in a namespace."""
        question = ["auth", "can-i", verb, resource, f"--namespace={namespace}", f"--as={self.operator}"]
        question += [f"--subresource={subresource}"] if subresource else []
        try:
            return self.server.kubectl(*question).strip() == "yes"
        except KubectlError:  # "no" comes with an exit status
            return False


@pytest.fixture
def release(api_server: ApiServer, api_namespace: str, helm_program: Path) -> Iterator[Release]:
    """The chart, installed with Helm 3 and then 4."""
    before = present(api_server)
    made = Release(api_server, api_namespace, helm_program)
    common = ("--namespace", api_namespace)
    helm(helm_program, "install", "ridgeline", str(CHART), *common, kubeconfig=api_server.kubeconfig)
    yield made
    helm(helm_program, "uninstall", "ridgeline", *common, kubeconfig=api_server.kubeconfig)
    left = {key for key in present(api_server) - before if key[1] in ("", api_namespace)}
    assert left == set(), "helm uninstall leaves nothing but the definition"
    assert api_server.get("crd", "inferencefleets.ridgeline.dev")


def test_a_release_is_installed_upgraded_and_leaves_nothing_behind(release: Release) -> None:
    deployments = release.server.get("deployments", "-n", release.namespace)["items"]
    assert {d["metadata"]["name"] for d in deployments} == {"ridgeline-operator", "ridgeline-prometheus"}
    arguments = ["upgrade", "ridgeline", str(CHART), "--namespace", release.namespace]
    changes = settings("replicas=2", "networkPolicy.enabled=true", "prometheus.url=http://p:9090")
    helm(release.helm, *arguments, *changes, kubeconfig=release.server.kubeconfig)
    [deployment] = release.server.get("deployments", "-n", release.namespace)["items"]
    assert deployment["spec"]["replicas"] == 2


async def test_the_lease_of_the_chart_is_taken_and_an_upgrade_leaves_its_holder_alone(release: Release) -> None:
    configuration = Configuration(host=release.server.url)
    configuration.ssl_ca_cert = str(release.server.certificate)
    token = release.server.kubectl("create", "token", "ridgeline-operator", "-n", release.namespace).strip()
    configuration.api_key = {"authorization": f"Bearer {token}"}
    worked = asyncio.Event()

    async def work() -> None:
        worked.set()

    async with ApiClient(configuration) as client:
        leading = lead(
            client, namespace=release.namespace, name="ridgeline-operator", identity="pod-1",
            leadership=Leadership(), work=work,
        )  # fmt: skip
        async with asyncio.timeout(20):
            await leading
    assert worked.is_set()
    lease = ["lease", "ridgeline-operator", "-n", release.namespace]
    release.server.kubectl("patch", *lease, "--type=merge", "-p", '{"spec":{"holderIdentity":"pod-2"}}')
    arguments = ["upgrade", "ridgeline", str(CHART), "--namespace", release.namespace, *settings("replicas=2")]
    helm(release.helm, *arguments, kubeconfig=release.server.kubeconfig)
    assert release.server.get(*lease)["spec"]["holderIdentity"] == "pod-2"


def test_the_operator_can_make_all_that_a_fleet_consists_of(release: Release) -> None:
    [stored] = release.server.apply(FLEET, namespace=release.namespace)
    fleet = InferenceFleet.from_object(stored)
    for manifest in render_fleet(fleet, operator_image="ridgeline:1", monitors=False):
        made = release.as_operator(
            "apply", "--server-side", "--field-manager=ridgeline", "-f", "-", stdin=json.dumps(manifest)
        )
        assert "serverside-applied" in made
    release.server.kubectl("delete", "fleet", "chat", "-n", release.namespace)
    for manifest in render_fleet(fleet, operator_image="ridgeline:1", monitors=False):
        release.as_operator(
            "delete", manifest["kind"], manifest["metadata"]["name"], "-n", release.namespace, "--wait=false"
        )


def test_the_operator_keeps_a_fleet_with_the_charts_rights_and_asks_for_no_others(
    release: Release, tmp_path: Path
) -> None:
    server, namespace = release.server, release.namespace
    token = server.kubectl("create", "token", "ridgeline-operator", "-n", namespace).strip()
    config = json.loads(server.kubeconfig.read_text())
    config["users"] = [{"name": "admin", "user": {"token": token}}]
    limited = tmp_path / "operator.kubeconfig"
    limited.write_text(json.dumps(config))
    fleet = ["fleet", "chat", "-n", namespace]
    server.apply(FLEET, namespace=namespace)
    with operator(replace(server, kubeconfig=limited), namespace, tmp_path / "operator") as running:
        eventually(lambda: server.get("deployment", "chat-router", "-n", namespace), "the router's Deployment")
        eventually(lambda: server.get(*fleet)["status"]["conditions"], "conditions")
        # The router goes: what is no longer rendered is listed and deleted.
        server.kubectl("patch", *fleet, "--type=merge", "-p", '{"spec":{"router":{"type":"External"}}}')

        def gone() -> bool:
            found = server.get(
                "deployments,poddisruptionbudgets,services,serviceaccounts,roles,rolebindings", "-n", namespace
            )["items"]
            return not [o for o in found if o["metadata"]["name"] == "chat-router"]

        eventually(gone, "the router is deleted")
        assert running.stop() == 0
        log = running.log.read_text()
    assert "orbidden" not in log
    assert "403" not in log
    server.kubectl("delete", *fleet)
    for kind in ("deployment", "service", "serviceaccount", "secret"):  # nobody collects garbage here
        server.kubectl("delete", kind, "-l", "ridgeline.dev/fleet=chat", "-n", namespace)


@pytest.mark.parametrize(
    ("verb", "resource", "allowed"),  # a subresource stands behind a colon
    [
        pytest.param("list", "inferencefleets.ridgeline.dev", True, id="reads-fleets"),
        pytest.param("patch", "inferencefleets.ridgeline.dev:status", True, id="writes-their-status"),
        pytest.param("patch", "inferencefleets.ridgeline.dev", False, id="never-their-spec"),
        pytest.param("delete", "inferencefleets.ridgeline.dev", False, id="never-deletes-them"),
        pytest.param("patch", "pods", True, id="labels-pods"),
        pytest.param("delete", "pods", False, id="never-deletes-pods"),
        pytest.param("create", "pods:exec", False, id="never-enters-pods"),
        pytest.param("create", "secrets", True, id="makes-secrets"),
        pytest.param("list", "secrets", False, id="never-lists-secrets"),
        pytest.param("create", "events.events.k8s.io", True, id="tells-events"),
        pytest.param("create", "clusterroles.rbac.authorization.k8s.io", False, id="no-cluster-roles"),
        pytest.param("get", "nodes", False, id="no-nodes"),
        pytest.param("list", "customresourcedefinitions.apiextensions.k8s.io", False, id="no-definitions"),
    ],
)
def test_rights_of_the_operator_in_another_namespace(
    api_server: ApiServer, installed_everywhere: Release, verb: str, resource: str, allowed: bool
) -> None:
    name, _, subresource = resource.partition(":")
    assert installed_everywhere.may(verb, name, "default", subresource) is allowed


@pytest.fixture(scope="module")
def installed_everywhere(api_server: ApiServer, helm4_program: Path) -> Iterator[Release]:
    """One release for questions that change nothing."""
    namespace = api_server.create_namespace("rights")
    where = ["--namespace", namespace]
    helm(helm4_program, "install", "ridgeline", str(CHART), *where, kubeconfig=api_server.kubeconfig)
    yield Release(api_server, namespace, helm4_program)
    helm(helm4_program, "uninstall", "ridgeline", *where, kubeconfig=api_server.kubeconfig)


def test_with_a_list_of_namespaces_the_operator_has_no_rights_elsewhere(
    api_server: ApiServer, api_namespace: str, helm4_program: Path
) -> None:
    watched = api_server.create_namespace("watched")
    where = ["--namespace", api_namespace]
    values = settings(f"watch.namespaces={{{watched}}}")
    helm(helm4_program, "install", "ridgeline", str(CHART), *where, *values, kubeconfig=api_server.kubeconfig)
    release = Release(api_server, api_namespace, helm4_program)
    assert release.may("list", "pods", watched)
    assert not release.may("list", "pods", "default")
    assert release.may("update", "leases.coordination.k8s.io/ridgeline-operator", api_namespace)
    assert not release.may("update", "leases.coordination.k8s.io/another", api_namespace)
    helm(helm4_program, "uninstall", "ridgeline", *where, kubeconfig=api_server.kubeconfig)


def test_the_operator_cannot_grant_what_it_lacks(release: Release) -> None:
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "too-much", "namespace": release.namespace},
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["list"]}],
    }
    with pytest.raises(KubectlError, match="attempting to grant RBAC permissions not currently held"):
        release.as_operator("apply", "--server-side", "-f", "-", stdin=json.dumps(role))


@pytest.mark.parametrize(
    "values", [[], ["networkPolicy.enabled=true", "replicas=2", "gpuExporter.enabled=true"]], ids=["defaults", "more"]
)
def test_the_server_accepts_every_object_as_it_is(
    api_server: ApiServer, api_namespace: str, helm_program: Path, values: list[str]
) -> None:
    objects: list[Object] = template(helm_program, *settings(*values))
    for each in objects:
        if "namespace" in each["metadata"]:
            each["metadata"]["namespace"] = api_namespace
    answer = api_server.kubectl(
        "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-",
        stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}),
    )  # fmt: skip
    assert len(answer.splitlines()) == len(objects)
    assert "Warning" not in answer


def test_pods_of_the_chart_are_admitted_where_the_restricted_standard_is_enforced(
    api_server: ApiServer, api_namespace: str, helm4_program: Path
) -> None:
    level = "pod-security.kubernetes.io/enforce=restricted"
    api_server.kubectl("label", "namespace", api_namespace, level)
    for each in template(helm4_program):
        if each["kind"] != "Deployment":
            continue
        pod = each["spec"]["template"] | {"apiVersion": "v1", "kind": "Pod"}
        pod["metadata"] |= {"name": each["metadata"]["name"]}
        api_server.apply(pod, namespace=api_namespace, dry_run=True)
        lax = json.loads(json.dumps(pod))
        del lax["spec"]["containers"][0]["securityContext"]["capabilities"]
        with pytest.raises(KubectlError, match="violates PodSecurity"):
            api_server.apply(lax, namespace=api_namespace, dry_run=True)


def test_the_gpu_exporter_is_beyond_the_baseline_standard_by_its_one_folder_of_the_node_alone(
    api_server: ApiServer, api_namespace: str, helm4_program: Path
) -> None:
    # A pod is only admitted where its runtime class exists.
    values = settings("gpuExporter.enabled=true", "gpuExporter.runtimeClassName=")
    template_of_pods = one(template(helm4_program, *values), "DaemonSet")["spec"]["template"]
    pod = template_of_pods | {"apiVersion": "v1", "kind": "Pod"}
    pod["metadata"] |= {"name": "gpu-exporter"}
    del pod["spec"]["serviceAccountName"]
    api_server.kubectl("label", "namespace", api_namespace, "pod-security.kubernetes.io/enforce=baseline")
    with pytest.raises(
        KubectlError, match=r'violates PodSecurity "baseline:latest": hostPath volumes \(volume [^)]+\)$'
    ):
        api_server.apply(pod, namespace=api_namespace, dry_run=True)
    api_server.kubectl(
        "label", "--overwrite", "namespace", api_namespace, "pod-security.kubernetes.io/enforce=privileged"
    )
    api_server.apply(pod, namespace=api_namespace, dry_run=True)
