"""A measured figure, its goal, and a table of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One number that was measured."""

    name: str
    value: float | None
    """None: it was not measured, and the note says why."""
    unit: str
    below: float | None = None
    """Goal: the value must stay below. Without a goal, a figure only explains others."""
    note: str = ""
    """How it was measured, or how far it can be trusted."""
    between: tuple[float, float] | None = None
    """Where the true value lies with 95 % confidence, where the value alone would say more than was measured."""
    above: float | None = None
    """Goal: the value must stay above."""

    @property
    def verdict(self) -> str:
        """Whether the goal is met; "open" when what was measured cannot tell; empty where there is nothing to judge."""
        if self.value is None or (self.below is None and self.above is None):
            return ""
        low, high = self.between or (self.value, self.value)
        if (self.below is not None and low >= self.below) or (self.above is not None and high <= self.above):
            return "miss"
        met = (self.below is None or high < self.below) and (self.above is None or low > self.above)
        return "PASS" if met else "open"


def not_measured(name: str, why: str) -> Figure:
    """What takes the place of figures that cannot be had here; never a miss."""
    return Figure(name, None, "", note=f"not measured: {why}")


def as_table(figures: Iterable[Figure]) -> str:
    """The figures for a terminal."""
    figures = list(figures)
    rows = [("", "measured", "goal", "")]
    rows += [(figure.name, _measured(figure), _goal(figure), figure.verdict) for figure in figures]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    notes = [f"{figure.name}: {figure.note}" for figure in figures if figure.note]
    return "\n".join([*lines, "", *notes])


def _measured(figure: Figure) -> str:
    if figure.value is None:
        return "-"
    if figure.between is None:
        return f"{figure.value:.4g} {figure.unit}"
    low, high = figure.between
    return f"{figure.value:.2f} {figure.unit} ({low:.2f} to {high:.2f})"


def _goal(figure: Figure) -> str:
    if figure.below is not None and figure.above is not None:
        return f"{figure.above:g} to {figure.below:g} {figure.unit}"
    if figure.above is not None:
        return f"> {figure.above:g} {figure.unit}"
    return "" if figure.below is None else f"< {figure.below:g} {figure.unit}"


def as_json(figures: Iterable[Figure]) -> str:
    """The figures for a program."""
    return json.dumps([asdict(figure) | {"verdict": figure.verdict} for figure in figures], indent=2)
