"""Watching with kopf: every handler does nothing but wake the fleet that an object belongs to.

kopf keeps no state on the objects here (no finalizers, no annotations, no Events): `on.event` handlers leave nothing
behind, and an event that is lost is made good by the next pass, which comes every few seconds anyway.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import kopf

from ridgeline.api.names import GROUP, LABEL_FLEET, PLURAL, VERSION

Key = tuple[str, str]
"""Namespace and name of a fleet."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Watch:
    """What the watch has shown so far."""

    wake: Callable[[Key], None]
    fleets: dict[Key, int] = field(default_factory=dict)
    """Fleets that exist → generation last seen."""
    heard_at: dict[Key, float] = field(default_factory=dict)
    """When a fleet's own event was last heard, monotonic seconds."""

    def fleet_event(self, key: Key, generation: int, *, gone: bool, deleting: bool) -> None:
        """A fleet appeared, changed or went; a change of its status alone is our own echo and wakes nobody."""
        self.heard_at[key] = time.monotonic()
        known = self.fleets.get(key)
        if gone:
            self.fleets.pop(key, None)
            self.heard_at.pop(key, None)
            self.wake(key)
        elif deleting or known != generation:
            self.fleets[key] = generation
            self.wake(key)

    def child_event(self, namespace: str, labels: Any) -> None:
        """A pod or Deployment of a fleet changed."""
        fleet = labels.get(LABEL_FLEET)
        if fleet and (namespace, fleet) in self.fleets:
            self.wake((namespace, fleet))


def registry(watch: Watch) -> kopf.OperatorRegistry:
    """The handlers, in a registry of their own."""
    made = kopf.OperatorRegistry()

    @kopf.on.login(registry=made)
    def login(**kwargs: Any) -> Any:
        return kopf.login_via_client(**kwargs)

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=made)
    async def fleet(**event: Any) -> None:
        watch.fleet_event(
            (event["namespace"], event["name"]),
            int(event["meta"].get("generation") or 0),
            gone=event["type"] == "DELETED",
            deleting=bool(event["meta"].get("deletionTimestamp")),
        )

    @kopf.on.event("", "v1", "pods", labels={LABEL_FLEET: kopf.PRESENT}, registry=made)
    @kopf.on.event("apps", "v1", "deployments", labels={LABEL_FLEET: kopf.PRESENT}, registry=made)
    async def child(**event: Any) -> None:
        watch.child_event(event["namespace"], event["labels"])

    return made


def settings() -> kopf.OperatorSettings:
    """Settings under which kopf only watches."""
    made = kopf.OperatorSettings()
    made.posting.enabled = False
    made.peering.standalone = True
    made.scanning.disabled = True  # no rights on CRDs and namespaces are needed; the CRD is waited for before
    made.persistence.finalizer = f"{GROUP}/finalizer"
    made.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    made.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP)
    # A watch that has gone silent is the known weakness of long-lived streams: end each one within minutes.
    made.watching.server_timeout = 240
    made.watching.client_timeout = 300
    made.watching.connect_timeout = 10
    made.watching.label_selectors["", "v1", "pods"] = LABEL_FLEET
    made.watching.label_selectors["apps", "v1", "deployments"] = LABEL_FLEET
    made.networking.request_timeout = 30
    made.networking.connect_timeout = 10
    made.queueing.error_delays = (1, 2, 5, 10, 30)
    made.process.ultimate_exiting_timeout = 60
    return made


async def watch_forever(watch: Watch, namespaces: Sequence[str], stop: asyncio.Event, started: asyncio.Event) -> None:
    """Run kopf until `stop` is set.

    Args:
        watch: told of every event.
        namespaces: none means the whole cluster.
        stop: ends the watching.
        started: set when kopf has taken its hands off the process's signals, so that the caller may set its own.
    """
    others = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(
        registry=registry(watch),
        settings=settings(),
        clusterwide=not namespaces,
        namespaces=list(namespaces),
        # Unused without peering, but unset kopf looks up the user, who has no name in a container.
        identity="ridgeline",  # type: ignore[arg-type]
        stop_flag=stop,
    )
    started.set()
    await kopf.run_tasks(tasks, ignored=others)
