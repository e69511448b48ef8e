"""A fleet in the cluster as a test sees it: its status, its pods, its router, its metrics."""

from __future__ import annotations

import json
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.cluster import SYSTEM_NAMESPACE, Cluster, fleet, wait_for
from tests.e2e.load import Load

RELAXED = {"timeToFirstTokenMilliseconds": 60_000, "interTokenLatencyMilliseconds": 10_000}
MAXIMUM_BUDGET = 2048

Roles = dict[str, str]


@dataclass(slots=True)
class LiveFleet:
    """One fleet."""

    cluster: Cluster
    name: str
    namespace: str

    @classmethod
    def created(cls, cluster: Cluster, name: str, namespace: str, **spec: Any) -> LiveFleet:
        """Apply a fleet and wait until it is ready and its router answers."""
        cluster.apply(fleet(name, namespace, cluster.images, **{"objectives": RELAXED, **spec}))
        made = cls(cluster, name, namespace)
        wait_for(f"fleet {name} is ready", lambda: made.condition("Ready") == "True", seconds=900)
        return made

    # ------------------------------------------------------------ what is written

    def patch(self, **spec: Any) -> None:
        """Change the spec as a user does: with a merge patch."""
        self.cluster.kubectl(
            "-n", self.namespace, "patch", "fleet", self.name, "--type=merge", "-p", json.dumps({"spec": spec})
        )

    def reset(self) -> None:
        """Back to two ready mixed engines at full budget, whatever a test before this one left."""
        self.patch(topology={"policy": "Static", "prefillReplicas": 0}, objectives=RELAXED, replicas=2)

        def rested() -> bool:
            status = self.status
            return (
                set(self.roles.values()) == {"mixed"}
                and len(self.roles) == 2
                and self.condition("Ready") == "True"
                and self.condition("MetricsAvailable") == "True"
                and status.get("transition") is None
                and status["topology"].get("tokenBudget") == MAXIMUM_BUDGET
                and status["observedGeneration"] == self.object["metadata"]["generation"]
            )

        wait_for("the fleet is mixed and at rest", rested, seconds=900, interval=1)

    def policy(self, policy: str, objectives: dict[str, int], **topology: Any) -> None:
        """Choose policy and objectives; `prefillReplicas` is dropped unless it is given."""
        self.patch(topology={"policy": policy, "prefillReplicas": None, **topology}, objectives=objectives)

    # ------------------------------------------------------------ what is seen

    @property
    def object(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.cluster.get("fleet", self.name, self.namespace)
        return answer

    @property
    def status(self) -> dict[str, Any]:
        return dict(self.object.get("status") or {})

    def condition(self, kind: str) -> str:
        """Status of a condition, "" before there is one."""
        return str(self.whole_condition(kind).get("status", ""))

    def whole_condition(self, kind: str) -> dict[str, Any]:
        """A condition; empty before there is one."""
        return next((c for c in self.status.get("conditions", []) if c["type"] == kind), {})

    def pods(self, component: str = "engine") -> list[dict[str, Any]]:
        """Pods that are not being deleted."""
        found = self.cluster.get(
            "pods",
            namespace=self.namespace,
            selector=f"ridgeline.dev/fleet={self.name},ridgeline.dev/component={component}",
        )
        return [p for p in found if "deletionTimestamp" not in p["metadata"]]

    @property
    def roles(self) -> Roles:
        """Engine pod → role label: the truth about the topology."""
        return {p["metadata"]["name"]: p["metadata"]["labels"]["ridgeline.dev/role"] for p in self.pods()}

    def tables(self) -> list[Roles]:
        """The worker table of each router, as its registrar tells."""
        path = "/api/v1/namespaces/{}/pods/{}:30002/proxy/v1/workers"
        names = [p["metadata"]["name"] for p in self.pods("router")]
        return [
            json.loads(self.cluster.kubectl("get", "--raw", path.format(self.namespace, name)))["workers"]
            for name in names
        ]

    def events(self) -> list[dict[str, Any]]:
        """Events about the fleet."""
        found = self.cluster.get("events", namespace=self.namespace)
        return [
            e
            for e in found
            if e["involvedObject"].get("kind") == "InferenceFleet" and e["involvedObject"]["name"] == self.name
        ]

    # ------------------------------------------------------------ numbers

    def query(self, promql: str) -> list[tuple[dict[str, str], float]]:
        """An instant query of the release's Prometheus."""
        return query(self.cluster, promql)

    def rule(self, name: str, **labels: str) -> float | None:
        """A recorded series of this fleet; None where there is no sample."""
        chosen = {"namespace": self.namespace, "fleet": self.name, **labels}
        matchers = ",".join(f'{key}="{value}"' for key, value in chosen.items())
        found = self.query(f"{name}{{{matchers}}}")
        return found[0][1] if found else None

    def engine_metric(self, pod: str, name: str, port: int = 8000, **labels: str) -> float:
        """Sum of a series of one engine, read from the engine itself; 0 where it has not been born."""
        raw = self.cluster.kubectl(
            "get", "--raw", f"/api/v1/namespaces/{self.namespace}/pods/{pod}:{port}/proxy/metrics"
        )
        return sum(
            sample.value
            for family in text_string_to_metric_families(raw)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def load(self, seed: int = 1) -> Load:
        """A load on this fleet's router."""
        return Load(self.cluster.address(self.name, self.namespace, 8000), "small", seed)

    def watch(self) -> Iterator[str]:
        """Yields a line whenever topology, budget or decision have changed, else an empty one."""
        last = ""
        while True:
            status = self.status
            topology, decision = status.get("topology", {}), status.get("lastDecision", {})
            step = (status.get("transition") or {}).get("step", "-")
            line = (
                f"{topology.get('mode')} {topology.get('mixed')}M {topology.get('prefill')}P {topology.get('decode')}D, "
                f"budget {topology.get('tokenBudget')}, step {step}; {decision.get('action')} {decision.get('reason')}: {decision.get('message')}"
            )
            yield f"{time.strftime('%H:%M:%S')} {line}" if line != last else ""
            last = line


def query(cluster: Cluster, promql: str) -> list[tuple[dict[str, str], float]]:
    """An instant query of the release's Prometheus: labels and value of each sample."""
    path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/services/ridgeline-prometheus:9090/proxy/api/v1/query?query={urllib.parse.quote(promql)}"
    answer = json.loads(cluster.kubectl("get", "--raw", path))
    return [(sample["metric"], float(sample["value"][1])) for sample in answer["data"]["result"]]


def operator_pod(cluster: Cluster) -> str:
    """Name of the operator's running pod."""
    pods = cluster.get("pods", namespace=SYSTEM_NAMESPACE, selector="app.kubernetes.io/component=operator")
    return str(next(p["metadata"]["name"] for p in pods if "deletionTimestamp" not in p["metadata"]))


def operator_metric(cluster: Cluster, name: str, **labels: str) -> float:
    """Sum of a series of the operator, read from the operator itself."""
    raw = cluster.kubectl(
        "get", "--raw", f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods/{operator_pod(cluster)}:9090/proxy/metrics"
    )
    return sum(
        sample.value
        for family in text_string_to_metric_families(raw)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
