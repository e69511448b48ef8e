"""Metadata that every rendered object carries: name, labels and owner."""

from __future__ import annotations

from typing import Any

from ridgeline.api import names
from ridgeline.api.fleet import InferenceFleet

Manifest = dict[str, Any]

PROGRAMS = {names.COMPONENT_ENGINE: "vllm", names.COMPONENT_ROUTER: "smg"}


def selector(fleet: InferenceFleet, component: str) -> dict[str, str]:
    """Labels that find the pods of one component.

    The role is left out on purpose: a pod that changes its role must stay with its ReplicaSet,
    and a Deployment's selector can never be changed.
    """
    return {names.LABEL_FLEET: fleet.name, names.LABEL_COMPONENT: component}


def labels(fleet: InferenceFleet, component: str) -> dict[str, str]:
    """Labels of an object: the selector's and the ones that other tools know."""
    return {
        "app.kubernetes.io/name": PROGRAMS[component],
        "app.kubernetes.io/instance": fleet.name,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "ridgeline",
        "app.kubernetes.io/managed-by": "ridgeline",
        **selector(fleet, component),
    }


def metadata(fleet: InferenceFleet, name: str, component: str) -> Manifest:
    """Metadata of an object that belongs to the fleet and goes when the fleet goes.

    `blockOwnerDeletion` stays unset: where the API server enforces owner permissions it would ask
    for a right on the fleet's finalizers, and nothing here needs the fleet to wait.
    """
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": fleet.name,
        "uid": fleet.uid,
        "controller": True,
    }
    return {
        "name": name,
        "namespace": fleet.namespace,
        "labels": labels(fleet, component),
        "ownerReferences": [owner],
    }
