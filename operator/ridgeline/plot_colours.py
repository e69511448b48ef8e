"""Colours of the plots and pages that Ridgeline writes, for readers in light and in dark."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Colours:
    """One theme."""

    page: str
    text: str
    faint: str
    grid: str
    prefill: str
    decode: str


LIGHT = Colours("#ffffff", "#1f2328", "#59636e", "#d1d9e0", "#b35900", "#0969da")
DARK = Colours("#0d1117", "#e6edf3", "#9198a1", "#2f353d", "#f0883e", "#58a6ff")
