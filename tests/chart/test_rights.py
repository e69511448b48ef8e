"""The operator's rights: what its code asks for, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.act import api as act
from ridgeline.api import names
from ridgeline.api.fleet import FleetSpec, InferenceFleet
from ridgeline.render.manifests import render_fleet
from tests.tools.chart import MONITORING, NAMESPACE, Object, one, settings, template

FLEET = InferenceFleet(
    namespace="default",
    name="chat",
    uid="1",
    generation=1,
    spec=FleetSpec.model_validate(
        {
            "model": {"id": "m", "servedName": "m"},
            "hardware": {"accelerator": "H100-SXM5-80GB"},
            "engine": {"image": "i"},
        }
    ),
)

# Server-side apply is a PATCH, which asks for `create` too where the object is new; pruning lists and deletes.
RENDERED_VERBS = {"list", "create", "patch", "delete"}
OTHER_RIGHTS = {
    (names.GROUP, names.PLURAL): {"get", "list", "watch"},
    (names.GROUP, f"{names.PLURAL}/status"): {"patch"},
    ("apps", "deployments"): RENDERED_VERBS | {"get", "watch"},
    ("", "pods"): {"get", "list", "watch", "patch"},
    ("", "secrets"): {"get", "create"},
    ("events.k8s.io", "events"): {"create"},
}


def group(kind: act.Kind) -> str:
    return kind.api_version.rpartition("/")[0]


def rights(role: Object) -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    for rule in role["rules"]:
        for api_group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault((api_group, resource), set()).update(rule["verbs"])
    return found


def operator_role(objects: list[Object]) -> Object:
    return one(objects, "ClusterRole", f"ridgeline-{NAMESPACE}-operator")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        pytest.param([], False, id="kinds that come later"),
        pytest.param([*MONITORING], False, id="the prometheus operator"),
        pytest.param([*MONITORING, *settings("monitors.enabled=never")], True, id="no monitors wanted"),
    ],
)
def test_the_operator_may_do_what_its_code_does_and_no_more(
    helm4_program: Path, arguments: list[str], told: bool
) -> None:
    """Rights on PodMonitors are always there: it prunes them, and a refusal would hold up every fleet."""
    objects = template(helm4_program, *arguments)
    expected = {(group(kind), kind.plural): RENDERED_VERBS for kind in act.RENDERED_KINDS} | OTHER_RIGHTS
    assert rights(operator_role(objects)) == expected
    operator = one(objects, "Deployment", "ridgeline-operator")["spec"]["template"]["spec"]["containers"][0]
    assert ("--no-monitors" in operator["args"]) is told


def test_the_operator_holds_what_it_grants_to_registrars(helm4_program: Path) -> None:
    held = rights(operator_role(template(helm4_program)))
    granted = [m for m in render_fleet(FLEET, operator_image="i", monitors=False) if m["kind"] == "Role"]
    assert granted
    for role in granted:
        for right, verbs in rights(role).items():
            assert verbs <= held[right]


@pytest.mark.parametrize("values", [[], ["watch.namespaces={chat,batch}"]], ids=["everywhere", "two-namespaces"])
def test_no_role_has_a_wildcard_or_escalates(helm4_program: Path, values: list[str]) -> None:
    for role in (o for o in template(helm4_program, *settings(*values)) if o["kind"] in ("Role", "ClusterRole")):
        for (api_group, resource), verbs in rights(role).items():
            assert "*" not in (api_group, resource)
            assert not {"*", "escalate", "bind", "impersonate"} & verbs


def test_rights_are_given_in_the_watched_namespaces_only(helm4_program: Path) -> None:
    objects = template(helm4_program, *settings("watch.namespaces={chat,batch}"))
    assert not [o for o in objects if o["kind"] == "ClusterRoleBinding"]
    bindings = {(o["metadata"]["namespace"], o["roleRef"]["name"]) for o in objects if o["kind"] == "RoleBinding"}
    operator, prometheus = f"ridgeline-{NAMESPACE}-operator", f"ridgeline-{NAMESPACE}-prometheus"
    assert bindings == {
        ("chat", operator),
        ("batch", operator),
        (NAMESPACE, "ridgeline-operator-leader"),
        ("chat", prometheus),
        ("batch", prometheus),
        (NAMESPACE, prometheus),  # to find the operator
    }


def test_the_lease_is_part_of_the_release_and_only_it_may_be_taken(helm4_program: Path) -> None:
    objects = template(helm4_program)
    lease = one(objects, "Lease")["metadata"]
    assert (lease["name"], lease["namespace"]) == ("ridgeline-operator", NAMESPACE)
    named, unnamed = one(objects, "Role", "ridgeline-operator-leader")["rules"]
    assert named["resourceNames"] == ["ridgeline-operator"]
    assert set(named["verbs"]) == {"get", "update", "patch"}
    assert unnamed["verbs"] == ["create"]


def test_prometheus_may_only_look_for_pods(helm4_program: Path) -> None:
    role = one(template(helm4_program), "ClusterRole", f"ridgeline-{NAMESPACE}-prometheus")
    assert rights(role) == {("", "pods"): {"get", "list", "watch"}}
