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
    between: tuple[float, float] | None = None
    """Where the true value lies with 95 % confidence, where the value alone would say more than was measured."""

    @property
    def verdict(self) -> str:
        """Whether the goal is met; "open" when what was measured cannot tell."""
        if self.below is None:
            return ""
        low, high = self.between or (self.value, self.value)
        return "PASS" if high < self.below else "miss" if low >= self.below else "open"


def as_table(figures: Iterable[Figure]) -> str:
    """The figures for a terminal."""
    rows = [("", "measured", "goal", "")]
    rows += [
        (f.name, _measured(f), "" if f.below is None else f"< {f.below:g} {f.unit}", f.verdict)
        for f in figures
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    notes = [f"{figure.name}: {figure.note}" for figure in figures if figure.note]
    return "\n".join([*lines, "", *notes])


def _measured(figure: Figure) -> str:
    if figure.between is None:
        return f"{figure.value:.4g} {figure.unit}"
    low, high = figure.between
    return f"{figure.value:.2f} {figure.unit} ({low:.2f} to {high:.2f})"


def as_json(figures: Iterable[Figure]) -> str:
    """The figures for a program."""
    return json.dumps([asdict(figure) | {"verdict": figure.verdict} for figure in figures], indent=2)
