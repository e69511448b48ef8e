"""Deleting leaves nothing behind but what the documentation says."""

from __future__ import annotations

import pytest

from tests.e2e.cluster import RELEASE, SYSTEM_NAMESPACE, Cluster, wait_for
from tests.e2e.fleets import LiveFleet

pytestmark = pytest.mark.cluster

KINDS = "deployments,replicasets,pods,services,secrets,serviceaccounts,poddisruptionbudgets,roles,rolebindings,configmaps,leases.coordination.k8s.io"
OF_KUBERNETES = {"serviceaccount/default", "configmap/kube-root-ca.crt"}


def leftovers(cluster: Cluster, namespace: str) -> set[str]:
    """Objects of a namespace that Kubernetes itself did not put there."""
    return set(cluster.kubectl("-n", namespace, "get", KINDS, "-o", "name").split()) - OF_KUBERNETES


def test_a_deleted_fleet_takes_everything_along(live_fleet: LiveFleet) -> None:
    live_fleet.cluster.kubectl("-n", live_fleet.namespace, "delete", "fleet", live_fleet.name, "--wait")
    wait_for("the namespace is empty", lambda: not leftovers(live_fleet.cluster, live_fleet.namespace), seconds=600)


def test_uninstalling_leaves_the_crd_and_nothing_else(release: Cluster) -> None:
    release.uninstall()
    wait_for("the namespace is empty", lambda: not leftovers(release, SYSTEM_NAMESPACE), seconds=300)
    names = release.kubectl("get", "clusterroles,clusterrolebindings,crds", "-o", "name").split()
    ours = {name for name in names if RELEASE in name}
    assert ours == {"customresourcedefinition.apiextensions.k8s.io/inferencefleets.ridgeline.dev"}
