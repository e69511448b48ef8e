"""What is measured as one, what can be known of it, and who holds it. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import StrEnum

WINDOW_SECONDS = 10.0
"""Length of the past that the ratios are means of: that of the engine exporter's gauges, which they stand beside."""


class State(StrEnum):
    """What a GPU, or a GPU instance, can tell."""

    MEASURED = "measured"
    """Its counters are read."""
    NO_GPM = "no_gpm"
    """The GPU is older than Hopper, or its driver too old: neither is measured."""
    NO_PERMISSION = "no_permission"
    """The driver gives its counters to administrators only."""
    MIG_PARENT = "mig_parent"
    """It is divided by MIG; its GPU instances are reported instead."""
    LOST = "lost"
    """It fell off the bus, or waits for a reset."""
    DRIVER_ERROR = "driver_error"
    """The driver answers with another error; the log says which."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What is measured as one: a whole GPU, or one GPU instance of a GPU that is divided by MIG."""

    gpu: int
    """Index of the GPU in NVML's order."""
    gpu_instance: int | None
    """Id of the GPU instance; None for a whole GPU."""
    device_ids: tuple[str, ...]
    """Its own id, `GPU-…` or `MIG-…`, and then other names by which the kubelet may know it; empty if unknown.

    A GPU instance has an id for each of its compute instances.
    """
    model: str = ""

    @property
    def uuid(self) -> str:
        """Its own id, or nothing while the driver has never told it."""
        return self.device_ids[0] if self.device_ids else ""


@dataclass(frozen=True, slots=True)
class Activity:
    """Means between two samples of one unit's counters. What the driver did not tell is None."""

    seconds: float
    """Time between the samples."""
    dram: float | None
    """Memory bandwidth used, as a share of what the memory can do at most."""
    tensor: float | None
    """Share of time in which the tensor cores worked, mean over the SMs."""
    sm: float | None
    """Share of the SMs that were busy."""


@dataclass(frozen=True, slots=True)
class NvLink:
    """Payload that went over all NVLinks of a GPU since its driver was loaded."""

    received_bytes: int
    transmitted_bytes: int


class Window:
    """The activities of the last ten seconds of one unit. One thread adds, others may read."""

    def __init__(self) -> None:
        self._past: tuple[tuple[float, Activity], ...] = ()

    def add(self, now: float, activity: Activity) -> None:
        """Remember an activity that ended now, and forget those that ended a window ago."""
        self._past = (*(past for past in self._past if now - past[0] < WINDOW_SECONDS), (now, activity))

    def clear(self) -> None:
        """Forget everything: the unit cannot be measured."""
        self._past = ()

    def mean(self, now: float, name: str) -> float | None:
        """Mean of `dram`, `tensor` or `sm`, weighted by time; None when nothing is known of the last ten seconds."""
        known = [
            (activity.seconds, value)
            for ended, activity in self._past
            if now - ended < WINDOW_SECONDS and (value := getattr(activity, name)) is not None
        ]
        seconds = sum(length for length, _ in known)
        return sum(length * value for length, value in known) / seconds if seconds > 0 else None


@dataclass(frozen=True, slots=True, order=True)
class Pod:
    """A pod."""

    namespace: str
    name: str


Holders = Mapping[str, Set[Pod]]
"""Device id as the kubelet writes it, without what `plain_device_id` takes away → pods that hold the device."""


def plain_device_id(device_id: str) -> str:
    """The device behind an id: device plug-ins number the shares of a shared GPU (`GPU-…::2`, `nvidia0/vgpu2`)."""
    return re.sub(r"(::\d+|/vgpu\d+)$", "", device_id)


def holder(unit: Unit, holders: Holders) -> Pod | None:
    """The pod that holds a unit, or None where nobody does, or several share it: what they use cannot be told apart."""
    pods = {pod for device_id in unit.device_ids for pod in holders.get(device_id, ())}
    return pods.pop() if len(pods) == 1 else None
