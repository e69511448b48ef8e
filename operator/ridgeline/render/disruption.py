"""Disruption budgets: a drained node takes engines and routers one by one, never a whole pool at once."""

from __future__ import annotations

from ridgeline.api.fleet import InferenceFleet
from ridgeline.render.metadata import Manifest, metadata, selector


def disruption_budget(fleet: InferenceFleet, name: str, component: str) -> Manifest:
    """At most one pod of a component may be evicted at a time; one that is not Ready may always be.

    `maxUnavailable` rather than `minAvailable`: it lets a node be drained whatever the number of replicas.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(fleet, name, component),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": selector(fleet, component)},
        },
    }
