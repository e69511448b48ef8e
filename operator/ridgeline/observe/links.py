"""How fast one engine can read another's KV cache. Pure."""

from __future__ import annotations

from ridgeline.api.fleet import Hardware
from ridgeline_exporters.roofline import hardware as accelerators

GIGA = 1e9


def link_bytes_per_second(hardware: Hardware) -> float | None:
    """One-way speed between two engines, in bytes per second; None when nobody knows.

    Speeds are given per GPU. The GPUs of an engine hold a share of the KV cache each and move it at the same
    time, each over its own link, so an engine moves as many times that.
    """
    if hardware.peaks is not None and hardware.peaks.linkGigabytesPerSecond is not None:
        return hardware.peaks.linkGigabytesPerSecond * GIGA * hardware.perEngine
    try:
        return accelerators.find(hardware.accelerator).link_bytes_per_second * hardware.perEngine
    except accelerators.UnknownAccelerator:
        return None
