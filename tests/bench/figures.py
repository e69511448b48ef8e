"""A measured figure, its goal, and a table of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One number that was measured."""

    name: str
    value: float
    unit: str
    below: float | None = None
    """Goal: the value must stay below; None for a figure that only explains others."""
    note: str = ""
    """How it was measured, or how far it can be trusted."""

    @property
    def verdict(self) -> str:
        """Whether the goal is met."""
        return "" if self.below is None else "PASS" if self.value < self.below else "miss"


def as_table(figures: Iterable[Figure]) -> str:
    """The figures for a terminal."""
    rows = [("", "measured", "goal", "")]
    rows += [
        (f.name, f"{f.value:.4g} {f.unit}", "" if f.below is None else f"< {f.below:g} {f.unit}", f.verdict)
        for f in figures
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    notes = [f"{figure.name}: {figure.note}" for figure in figures if figure.note]
    return "\n".join([*lines, "", *notes])


def as_json(figures: Iterable[Figure]) -> str:
    """The figures for a program."""
    return json.dumps([asdict(figure) | {"verdict": figure.verdict} for figure in figures], indent=2)
