"""The roofline as a picture: what the roof allows at each intensity, and where prompts and decodes lie under it.

Both axes are logarithmic. A point stands on the roof at its intensity: the best that its work can do there. The file
is one SVG without a script or a font of its own, follows the reader's light or dark theme, and is the same bytes for
the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from xml.sax.saxutils import escape

from ridgeline.plot_colours import DARK, LIGHT
from ridgeline.roofline_report import Machine, Row
from ridgeline_exporters.roofline.bounds import Roof
from ridgeline_exporters.roofline.hardware import TERA

WIDTH, HEIGHT = 880, 520
LEFT, RIGHT, TOP, BOTTOM = 78.0, 36.0, 56.0, 64.0
LABEL_STEP = 19.0
"""Vertical distance of labels that would cover each other."""
CHARACTER = 7.2
"""Width of a character, about: labels that would leave the picture end at their point instead of beginning there."""
STYLE = f"""
.page{{fill:{LIGHT.page}}}.text{{fill:{LIGHT.text}}}.faint{{fill:{LIGHT.faint}}}.grid{{stroke:{LIGHT.grid}}}
.roof{{stroke:{LIGHT.text}}}.ridge{{stroke:{LIGHT.faint}}}.prefill{{fill:{LIGHT.prefill};stroke:{LIGHT.prefill}}}.decode{{fill:{LIGHT.decode};stroke:{LIGHT.decode}}}
@media (prefers-color-scheme:dark){{.page{{fill:{DARK.page}}}.text{{fill:{DARK.text}}}.faint{{fill:{DARK.faint}}}.grid{{stroke:{DARK.grid}}}
.roof{{stroke:{DARK.text}}}.ridge{{stroke:{DARK.faint}}}.prefill{{fill:{DARK.prefill};stroke:{DARK.prefill}}}
.decode{{fill:{DARK.decode};stroke:{DARK.decode}}}}}
text{{font-family:system-ui,sans-serif;font-size:13px;stroke:none}}.label{{paint-order:stroke;stroke-width:5px;stroke:{LIGHT.page}}}
@media (prefers-color-scheme:dark){{.label{{stroke:{DARK.page}}}}}
""".strip()


@dataclass(frozen=True, slots=True)
class Scale:
    """A logarithmic axis from one power of ten to another."""

    low: int
    high: int
    start: float
    """Pixels at the low end."""
    end: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> Scale:
        """The whole powers of ten around the values."""
        return cls(floor(log10(min(values))), ceil(log10(max(values)) + 1e-9), start, end)

    def __call__(self, value: float) -> float:
        """Pixels of a value."""
        return self.start + (log10(value) - self.low) / (self.high - self.low) * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        """The powers of ten."""
        return [10.0**power for power in range(self.low, self.high + 1)]


def plot_svg(title: str, machine: Machine, rows: Sequence[Row]) -> str:
    """The picture.

    Args:
        title: of the model, as a reader knows it.
        machine: the GPUs, with their roof.
        rows: prompts and decodes; rows without work are left out.
    """
    roof = machine.roof
    rows = [row for row in rows if row.work.intensity > 0]
    x = Scale.over([roof.ridge, *(row.work.intensity for row in rows), 1.0], LEFT, WIDTH - RIGHT)
    lowest = min(_attainable(roof, 10.0**x.low), *(_attainable(roof, row.work.intensity) for row in rows))
    y = Scale.over([lowest, roof.flops_per_second], HEIGHT - BOTTOM, TOP)
    summary = "; ".join(f"{_name(row)}: {row.work.intensity:,.0f} FLOP/byte, {row.bound.limit}-bound" for row in rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-labelledby="title description">',
        f'<title id="title">{escape(f"Roofline of {title} on {machine.gpus} x {machine.name}")}</title>',
        f'<desc id="description">{escape(f"Ridge at {roof.ridge:,.0f} FLOP/byte. {summary}.")}</desc>',
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text class="text" x="{LEFT}" y="26" style="font-size:16px;font-weight:600">'
        f"{escape(f'{title} on {machine.gpus} x {machine.name}')}</text>",
        *_axes(x, y),
        *_roof(roof, x, y),
        *_points(roof, rows, x, y),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _attainable(roof: Roof, intensity: float) -> float:
    """FLOP/s that the roof allows at an intensity (Williams, Waterman and Patterson, 2009)."""
    return min(roof.flops_per_second, intensity * roof.memory_bytes_per_second)


def _name(row: Row) -> str:
    if row.phase == "prefill":
        return f"prefill of {row.context_tokens:,}"
    return f"decode of {row.sequences:,} x {row.context_tokens:,}"


def _axes(x: Scale, y: Scale) -> Iterator[str]:
    for value in x.ticks:
        at = x(value)
        yield f'<line class="grid" x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{HEIGHT - BOTTOM}"/>'
        yield _text(f"{value:,g}" if value < 1 else f"{value:,.0f}", at, HEIGHT - BOTTOM + 20, "faint", "middle")
    for value in y.ticks:
        at = y(value)
        yield f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"/>'
        yield _text(f"{value / TERA:,g}", LEFT - 8, at + 4, "faint", "end")
    yield _text("arithmetic intensity, FLOP/byte", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 18, "text", "middle")
    middle = (TOP + HEIGHT - BOTTOM) / 2
    yield (
        f'<text class="text" text-anchor="middle" transform="translate(20 {middle:.1f}) rotate(-90)">'
        "attainable TFLOPS</text>"
    )


def _roof(roof: Roof, x: Scale, y: Scale) -> Iterator[str]:
    low, high = 10.0**x.low, 10.0**x.high
    line = [(low, _attainable(roof, low)), (roof.ridge, roof.flops_per_second), (high, roof.flops_per_second)]
    points = " ".join(f"{x(intensity):.1f},{y(flops):.1f}" for intensity, flops in line)
    ridge, top = x(roof.ridge), y(roof.flops_per_second)
    yield (
        f'<line class="ridge" x1="{ridge:.1f}" y1="{top:.1f}" x2="{ridge:.1f}" y2="{HEIGHT - BOTTOM}" '
        'stroke-dasharray="4 4"/>'
    )
    yield f'<polyline class="roof" points="{points}" fill="none" stroke-width="2.5"/>'
    yield _text(f"ridge {roof.ridge:,.0f}", ridge - 8, HEIGHT - BOTTOM - 10, "faint", "end")
    beside = low * 10.0**0.55
    bandwidth = f"{roof.memory_bytes_per_second / TERA:.2f} TB/s"
    yield _text(f"{roof.flops_per_second / TERA:,.0f} TFLOPS", x(high) - 6, top - 9, "faint", "end")
    yield _text(bandwidth, x(beside) - 8, y(_attainable(roof, beside)) - 6, "faint", "end")


def _points(roof: Roof, rows: Sequence[Row], x: Scale, y: Scale) -> Iterator[str]:
    """A dot for each row; labels go down from the dots, each below the one before where they are close.

    A label that would run over the axis is left out. Its dot still names itself, under the pointer and to screen readers.
    """
    taken: dict[str, list[tuple[float, float]]] = {"prefill": [], "decode": []}
    labels = []  # over all lines, on a ground of their own
    for row in sorted(rows, key=lambda row: row.work.intensity):
        at, height = x(row.work.intensity), y(_attainable(roof, row.work.intensity))
        label = f"{_name(row)}: {row.work.intensity:,.0f}"
        yield (
            f'<circle class="{row.phase}" cx="{at:.1f}" cy="{height:.1f}" r="5.5">'
            f"<title>{escape(label)}</title></circle>"
        )
        low = min(height + 22, HEIGHT - BOTTOM - 6)  # a dot just above the axis has its label beside it
        while any(abs(low - other) < LABEL_STEP and abs(at - where) < 190 for where, other in taken[row.phase]):
            low += LABEL_STEP
        if low > HEIGHT - BOTTOM:
            continue
        taken[row.phase].append((at, low))
        right = at + 6 + CHARACTER * len(label) > WIDTH - RIGHT
        yield f'<line class="{row.phase}" x1="{at:.1f}" y1="{height + 6:.1f}" x2="{at:.1f}" y2="{max(low - 11, height + 6):.1f}"/>'
        labels.append(_text(label, at - 6 if right else at + 6, low, f"{row.phase} label", "end" if right else "start"))
    yield from labels


def _text(content: str, at: float, height: float, style: str, anchor: str) -> str:
    return f'<text class="{style}" x="{at:.1f}" y="{height:.1f}" text-anchor="{anchor}">{escape(content)}</text>'
