"""Conditions of a fleet and the reasons they carry.

A reason is a constant here, its message a sentence that says what to do. Both travel unchanged
into the condition, the event, the log line and the metric.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ConditionType(StrEnum):
    """The conditions of a fleet, all present from the first status on."""

    READY = "Ready"
    AVAILABLE = "Available"
    METRICS_AVAILABLE = "MetricsAvailable"
    ROUTER_SYNCHRONIZED = "RouterSynchronized"
    TRANSITIONING = "Transitioning"
    DEGRADED = "Degraded"


@dataclass(frozen=True, slots=True)
class Verdict:
    """An answer with its reason: `status` is "True", "False" or "Unknown"."""

    status: str
    reason: str
    message: str = ""
