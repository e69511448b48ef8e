"""One release and one fleet for all cluster tests: engines take a minute to start, so they are shared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.cluster import SYSTEM_NAMESPACE, Cluster, make_model
from tests.e2e.fleets import LiveFleet

# The story of a release, in order: nothing is left to test after it has been removed.
ORDER = (
    "test_install",
    "test_auto",
    "test_policies",
    "test_prometheus",
    "test_crashes",
    "test_wrong_input",
    "test_removal",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the cluster tests in the order above."""

    def place(item: pytest.Item) -> int:
        module = item.path.stem
        return ORDER.index(module) if module in ORDER else -1

    items.sort(key=place)


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The cluster, with nothing of an earlier run in it."""
    found = Cluster.found()
    if found.ours:
        make_model()
    found.refuse_if_in_use()
    found.try_kubectl("delete", "fleets", "--all", "--all-namespaces", "--wait", "--timeout=120s")
    found.uninstall()
    found.try_kubectl("delete", "namespace", SYSTEM_NAMESPACE, "e2e", "--ignore-not-found", "--wait", "--timeout=300s")
    return found


@pytest.fixture(scope="session")
def release(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with the chart installed."""
    cluster.install()
    yield cluster
    print("\n" + cluster.try_kubectl("-n", SYSTEM_NAMESPACE, "logs", "deploy/ridgeline-operator", "--tail=30").stdout)


@pytest.fixture(scope="session")
def live_fleet(release: Cluster) -> LiveFleet:
    """A fleet of two engines, ready."""
    release.try_kubectl("create", "namespace", "e2e")
    return LiveFleet.created(release, "chat", "e2e")


@pytest.fixture
def chat(live_fleet: LiveFleet) -> LiveFleet:
    """The fleet as each test finds it: two ready mixed engines at full budget, at rest."""
    live_fleet.reset()
    return live_fleet
