from __future__ import annotations

from typing import Any

import pytest

from ridgeline.act.api import DEPLOYMENTS, FLEETS, PODS, kind_of
from ridgeline.act.apply import Applied, digest, is_due

NOW = 1_790_000_000.0
ENGINES: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "e"},
    "spec": {"replicas": 2},
}
CHANGED: dict[str, Any] = {**ENGINES, "spec": {"replicas": 3}}
PRESENT = [("Deployment", "e")]


def applied(at: float = NOW) -> Applied:
    return Applied(digest([ENGINES]), at, frozenset(PRESENT))


@pytest.mark.parametrize(
    ("before", "manifests", "present", "due"),
    [
        pytest.param(None, [ENGINES], PRESENT, True, id="an operator that starts applies once"),
        pytest.param(applied(), [ENGINES], PRESENT, False, id="nothing changed"),
        pytest.param(applied(), [CHANGED], PRESENT, True, id="the spec changed"),
        pytest.param(applied(), [ENGINES], [], True, id="somebody deleted the Deployment"),
        pytest.param(applied(NOW - 61), [ENGINES], PRESENT, True, id="a minute has passed"),
    ],
)
def test_manifests_are_applied_when_they_may_differ(
    before: Applied | None, manifests: list[dict[str, Any]], present: list[tuple[str, str]], due: bool
) -> None:
    assert is_due(before, manifests, present, NOW) is due


def test_paths_follow_the_api() -> None:
    assert PODS.path("ns", "a") == "/api/v1/namespaces/ns/pods/a"
    assert DEPLOYMENTS.path("ns") == "/apis/apps/v1/namespaces/ns/deployments"
    assert FLEETS.path(None) == "/apis/ridgeline.dev/v1alpha1/inferencefleets"
    assert FLEETS.path("ns", "a", "status") == "/apis/ridgeline.dev/v1alpha1/namespaces/ns/inferencefleets/a/status"


def test_a_manifest_of_a_kind_that_fleets_do_not_have_is_an_error() -> None:
    with pytest.raises(KeyError):
        kind_of({"apiVersion": "v1", "kind": "ConfigMap"})
