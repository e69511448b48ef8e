"""What a registrar tells Prometheus, in a registry of its own."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ridgeline.api.fleet import Role
from ridgeline.registrar.table import State, Worker


class Outcome(StrEnum):
    """How a pass ended."""

    UNCHANGED = "unchanged"
    CHANGED = "changed"
    FAILED = "failed"


class RegistrarMetrics:
    """Metrics of one registrar; every label value exists from the start, so that `rate()` sees the first event."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._workers = Gauge(
            "ridgeline_registrar_workers", "Healthy workers in the router's table.", ["role"], registry=self.registry
        )
        self.synchronized = Gauge(
            "ridgeline_registrar_synchronized",
            "1 when the router's table equalled the pod labels at the last pass.",
            registry=self.registry,
        )
        self._passes = Counter(
            "ridgeline_registrar_passes_total",
            "Passes over the table: nothing to do, something sent, or failed.",
            ["outcome"],
            registry=self.registry,
        )
        self.role_changes = Counter(
            "ridgeline_registrar_role_changes_total", "Role changes sent to the router.", registry=self.registry
        )
        self.last_synchronized = Gauge(
            "ridgeline_registrar_last_synchronized_timestamp_seconds",
            "When the table last equalled the labels, Unix seconds; 0 when never.",
            registry=self.registry,
        )
        self.synchronization_seconds = Histogram(
            "ridgeline_registrar_synchronization_seconds",
            "From the moment a change of the pods was seen until the router's table showed it.",
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=self.registry,
        )
        for role in Role:
            self._workers.labels(role=role.value).set(0)
        for outcome in Outcome:
            self._passes.labels(outcome=outcome.value)

    def passed(self, outcome: Outcome) -> None:
        """Count a pass."""
        self._passes.labels(outcome=outcome.value).inc()

    def show(self, table: Iterable[Worker]) -> None:
        """Set the gauges to a table."""
        healthy = [worker.role for worker in table if worker.state is State.HEALTHY]
        for role in Role:
            self._workers.labels(role=role.value).set(healthy.count(role))
