"""One plot: an SVG that stretches to any width, and around it labels of plain HTML, which keep their size.

Lines, grid and areas are drawn in a box of 1000 x 300 units whose strokes do not scale; every number beside it is an
element placed by per cents. So a plot is as legible on a telephone as on a screen, and needs no script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, log10

from ridgeline.replay_report.text import html

WIDTH, HEIGHT = 1000.0, 300.0
MOST_TICKS = 6


@dataclass(frozen=True, slots=True)
class Axis:
    """From values to shares of an edge, 0 at its low end."""

    low: float
    high: float
    logarithmic: bool
    ticks: Sequence[float]

    def __call__(self, value: float) -> float:
        """Where a value lies; what is outside is moved to the edge."""
        if self.logarithmic:
            share = log10(max(value, self.low) / self.low) / log10(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, share))


def linear(most: float, least_step: float = 0.0) -> Axis:
    """From 0 to a round number that is `most` or more."""
    step = max(least_step, _round_step(most / 4.0)) if most > 0.0 else 0.25
    high = step * max(1, ceil(most / step - 1e-9))
    return Axis(0.0, high, False, [step * i for i in range(round(high / step) + 1)])


def logarithmic(values: Sequence[float], with_halves: bool = True) -> Axis:
    """Around the values, by powers of ten; from 1 to 10 where none is above 0."""
    above = [value for value in values if value > 0.0] or [1.0, 10.0]
    low, high = floor(log10(min(above)) + 1e-9), ceil(log10(max(above)) - 1e-9)
    low -= 10.0**low > min(above)  # a logarithm next to a whole number may lie on either side of it
    high = max(high + (10.0**high < max(above)), low + 1)
    every = -(-(high - low) // MOST_TICKS)
    ticks = [10.0**power for power in range(low, high + 1, every)]
    if with_halves and high - low <= 2:
        ticks = sorted([*ticks, *(m * 10.0**power for power in range(low, high) for m in (2.0, 5.0))])
    return Axis(10.0**low, 10.0**high, True, ticks)


def time_axis(end_seconds: float) -> Axis:
    """From the start to the end, with ticks at round times."""
    end = max(end_seconds, 1.0)
    steps = (1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
    step = next((step for step in steps if end / step <= MOST_TICKS), 86400 * ceil(end / 86400 / MOST_TICKS))
    return Axis(0.0, end, False, [float(at) for at in range(0, floor(end) + 1, step)])


@dataclass(slots=True)
class Plot:
    """A plot that is being drawn."""

    identifier: str
    title: str
    description: str
    """What the plot shows, for those who do not see it."""
    x: Axis
    y: Axis
    x_label: Callable[[float], str]
    y_label: Callable[[float], str]
    note: str = ""
    """Under the title: the unit, and how to read it."""
    keys: Sequence[str] = ()
    """Styles of lines and areas that are named under the title; their names are what readers see."""
    shapes: list[str] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """A point in the box."""
        return WIDTH * self.x(x), HEIGHT * (1.0 - self.y(y))

    def line(self, points: Sequence[tuple[float, float | None]], style: str, series: int | None = None) -> None:
        """A line through points; it is broken where a value is missing."""
        path, pen = [], False
        for x, y in points:
            if y is None:
                pen = False
                continue
            across, down = self.at(x, y)
            path.append(f"{'L' if pen else 'M'}{across:.1f} {down:.1f}" + ("" if pen else "h0"))
            pen = True
        if path:
            self._path("".join(path), f"line {style}", series)

    def steps(self, spans: Sequence[tuple[float, float, float | None]], style: str) -> None:
        """A line that keeps its value from a start to an end."""
        self.line([(x, value) for start, end, value in spans for x in (start, end)], style)

    def area(self, spans: Sequence[tuple[float, float, float, float]], style: str) -> None:
        """Filled between two values over each (start, end, low, high); neighbours that are alike become one."""
        path, open_span = [], None
        for start, end, low, high in spans:
            if open_span is not None and open_span[1:] == (start, low, high):
                open_span = (open_span[0], end, low, high)
                continue
            path.append(self._box(open_span))
            open_span = (start, end, low, high)
        path.append(self._box(open_span))
        if any(path):
            self._path("".join(path), f"area {style}")

    def dots(self, points: Sequence[tuple[float, float]], style: str) -> None:
        """A dot at each point."""
        if points:
            places = (self.at(x, y) for x, y in points)
            self._path("".join(f"M{across:.1f} {down:.1f}h0" for across, down in places), f"dots {style}")

    def level(self, y: float, label: str, below: bool = False) -> None:
        """A dashed line across, with its name on it, or below it."""
        down = HEIGHT * (1.0 - self.y(y))
        self._path(f"M0 {down:.1f}H{WIDTH:.0f}", "line limit")
        low = " below" if below or self.y(y) > 0.9 else ""
        self.beside.append(f'<span class="level{low}" style="top:{100 * (1 - self.y(y)):.2f}%">{html(label)}</span>')

    def html(self) -> str:
        """The figure."""
        keys = "".join(f'<i class="key {html(key)}"></i>{html(key)} ' for key in self.keys)
        note = f"<small>{keys and keys + '– '}{html(self.note)}</small>" if self.note else ""  # noqa: RUF001
        return (
            f'<figure class="plot"><figcaption>{html(self.title)}{note}</figcaption>'
            f'<div class="frame" id="{self.identifier}" tabindex="0">'
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" preserveAspectRatio="none" '
            f'role="img" aria-labelledby="{self.identifier}-title {self.identifier}-desc">'
            f'<title id="{self.identifier}-title">{html(self.title)}</title>'
            f'<desc id="{self.identifier}-desc">{html(self.description)}</desc>'
            f"{''.join(self._grid())}{''.join(self.shapes)}</svg>{''.join(self._labels())}{''.join(self.beside)}"
            "</div></figure>"
        )

    def _path(self, path: str, style: str, series: int | None = None) -> None:
        which = f' data-series="{series}"' if series is not None else ""
        self.shapes.append(f'<path class="{style}"{which} d="{path}"/>')

    def _box(self, span: tuple[float, float, float, float] | None) -> str:
        if span is None or span[2] == span[3]:
            return ""
        (left, bottom), (right, top) = self.at(span[0], span[2]), self.at(span[1], span[3])
        return f"M{left:.1f} {bottom:.1f}V{top:.1f}H{right:.1f}V{bottom:.1f}Z"

    def _grid(self) -> Iterator[str]:
        down = "".join(f"M0 {HEIGHT * (1 - self.y(tick)):.1f}H{WIDTH:.0f}" for tick in self.y.ticks)
        across = "".join(f"M{WIDTH * self.x(tick):.1f} 0V{HEIGHT:.0f}" for tick in self.x.ticks)
        yield f'<path class="grid" d="{down}{across}"/>'

    def _labels(self) -> Iterator[str]:
        for tick in self.y.ticks:
            yield f'<span class="y" style="top:{100 * (1 - self.y(tick)):.2f}%">{html(self.y_label(tick))}</span>'
        for tick in self.x.ticks:
            share = self.x(tick)
            edge = " first" if share < 0.03 else " last" if share > 0.97 else ""
            yield f'<span class="x{edge}" style="left:{100 * share:.2f}%">{html(self.x_label(tick))}</span>'


def _round_step(least: float) -> float:
    power = 10.0 ** floor(log10(least))
    return next(m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= least * (1 - 1e-9))
