"""All manifests of a fleet, in the order in which they are applied."""

from __future__ import annotations

import json

from ridgeline.api import names
from ridgeline.api.fleet import InferenceFleet, RouterType
from ridgeline.render.disruption import disruption_budget
from ridgeline.render.engine import engine_deployment, engine_service
from ridgeline.render.metadata import Manifest
from ridgeline.render.monitors import engine_monitor, router_monitor
from ridgeline.render.router import (
    registrar_role,
    registrar_role_binding,
    router_deployment,
    router_service,
    service_account,
)


def render_fleet(
    fleet: InferenceFleet,
    *,
    operator_image: str,
    operator_image_pull_policy: str = "IfNotPresent",
    monitors: bool,
    scrape_interval_seconds: int = 5,
) -> list[Manifest]:
    """Render a fleet.

    The Secret with its two tokens is not among the manifests: it is made once, from random bytes.

    Args:
        fleet: a fleet that `validate` has nothing against.
        operator_image: image that holds the exporter and the registrar.
        operator_image_pull_policy: how nodes fetch that image.
        monitors: whether the cluster knows PodMonitors.
        scrape_interval_seconds: seconds between two scrapes, where monitors are rendered.

    Returns:
        Identities first, then what uses them. Callers may change the dicts: nothing is shared.
    """
    engines = names.engines_name(fleet.name)
    manifests = [
        service_account(fleet, engines, names.COMPONENT_ENGINE),
        engine_service(fleet),
        engine_deployment(fleet, operator_image, operator_image_pull_policy),
        disruption_budget(fleet, engines, names.COMPONENT_ENGINE),
    ]
    if monitors:
        manifests.append(engine_monitor(fleet, scrape_interval_seconds))
    if fleet.spec.router.type is RouterType.SMG:
        router = names.router_name(fleet.name)
        manifests += [
            service_account(fleet, router, names.COMPONENT_ROUTER),
            registrar_role(fleet),
            registrar_role_binding(fleet),
            router_service(fleet),
            router_deployment(fleet, operator_image, operator_image_pull_policy),
            disruption_budget(fleet, router, names.COMPONENT_ROUTER),
        ]
        if monitors:
            manifests.append(router_monitor(fleet, scrape_interval_seconds))
    rendered: list[Manifest] = json.loads(json.dumps(manifests))  # parts that were rendered once are used twice
    return rendered
