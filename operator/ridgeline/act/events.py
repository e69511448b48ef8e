"""Kubernetes Events of a fleet: the same reason and message as condition, log line and metric.

An event is told once. The same words again within the hour are kept back, so that `kubectl describe` shows a history
and not an echo.
"""

from __future__ import annotations

import logging
import secrets
from datetime import UTC, datetime

from ridgeline.act.api import EVENTS, ApiError, KubernetesApi
from ridgeline.act.conditions import shortened
from ridgeline.api.names import API_VERSION, KIND

NORMAL = "Normal"
WARNING = "Warning"
REPEAT_SECONDS = 3600.0
CONTROLLER = "ridgeline.dev/operator"

log = logging.getLogger(__name__)


class EventRecorder:
    """Writes events and remembers what was told."""

    def __init__(self, api: KubernetesApi, instance: str) -> None:
        self._api = api
        self._instance = instance[:128]
        self._told: dict[tuple[str, str], dict[tuple[str, str], float]] = {}

    async def record(
        self, namespace: str, fleet: str, uid: str, *, type_: str, action: str, reason: str, message: str, now: float
    ) -> None:
        """Tell of something that happened to a fleet. A refusal is logged and otherwise ignored.

        Args:
            namespace: of the fleet.
            fleet: its name.
            uid: its UID.
            type_: Normal or Warning.
            action: what was done or tried, in CamelCase.
            reason: why, in CamelCase.
            message: the sentence for people.
            now: Unix seconds.
        """
        told = self._told.setdefault((namespace, fleet), {})
        for words, when in list(told.items()):
            if now - when >= REPEAT_SECONDS:
                del told[words]
        if (reason, message) in told:
            return
        told[reason, message] = now
        moment = datetime.fromtimestamp(now, tz=UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        event = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": f"{fleet[:200]}.{secrets.token_hex(8)}", "namespace": namespace},
            "eventTime": moment,
            "type": type_,
            "action": action,
            "reason": reason,
            "note": shortened(message),
            "regarding": {"apiVersion": API_VERSION, "kind": KIND, "namespace": namespace, "name": fleet, "uid": uid},
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
        }
        try:
            await self._api.create(EVENTS, namespace, event)
        except ApiError as error:
            del told[reason, message]  # when it happens again, it is still news
            log.warning("event %s of %s/%s was not written: %s", reason, namespace, fleet, error)

    def forget(self, namespace: str, fleet: str) -> None:
        """Drop the memory of a deleted fleet."""
        self._told.pop((namespace, fleet), None)
