"""Numbers and names as a reader of the report sees them, always with their unit."""

from __future__ import annotations

import re
from html import escape

SPACE = "\u00a0"
"""Between a number and its unit: no line ends there."""
MISSING = "–"  # noqa: RUF001  a dash in a table, not a minus


def html(text: object) -> str:
    """Text for HTML and SVG, in elements and in attributes; control characters that neither allows are left out."""
    return escape(re.sub(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "", str(text)), quote=True)


def policy_name(name: str, engines: int) -> str:
    """A policy as a person calls it."""
    if name == "ridgeline":
        return "Ridgeline"
    if found := re.fullmatch(r"mixed:(\d+)", name):
        return f"Mixed, budget {int(found[1]):,}"
    if found := re.fullmatch(r"split:(\d+)", name):
        return f"Split {found[1]}P:{engines - int(found[1])}D"
    return name


def count(number: int, noun: str) -> str:
    """Such as `1 engine` and `8 engines`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def percent(share: float | None) -> str:
    """Such as `98.3 %`."""
    return MISSING if share is None else f"{100 * share:.1f}{SPACE}%"


def seconds(value: float | None) -> str:
    """Such as `34 ms` and `2.5 s`."""
    if value is None:
        return MISSING
    if value < 0.01:
        return f"{1000 * value:.1f}{SPACE}ms"
    if value < 1.0:
        return f"{1000 * value:,.0f}{SPACE}ms"
    return f"{value:.2f}{SPACE}s" if value < 10.0 else f"{value:,.0f}{SPACE}s"


def duration(value: float) -> str:
    """Such as `45 s`, `58 minutes` and `23.5 hours`."""
    if value < 120.0:
        return f"{value:.0f}{SPACE}s"
    return f"{value / 60:.0f}{SPACE}minutes" if value < 2 * 3600.0 else f"{value / 3600:.1f}{SPACE}hours"


def clock(value: float) -> str:
    """Time since the start: `1:05` is minutes and seconds, `2:01:05` has hours, too."""
    whole = round(value)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def number(value: float | None, unit: str = "") -> str:
    """Three digits that matter."""
    if value is None:
        return MISSING
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
    return f"{text}{SPACE}{unit}" if unit else text


def tick(value: float) -> str:
    """A number beside an axis."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"


def seconds_tick(value: float) -> str:
    """The same for seconds, such as `20 ms`."""
    return f"{tick(1000 * value)}{SPACE}ms" if value < 1.0 else f"{tick(value)}{SPACE}s"


def percent_tick(value: float) -> str:
    """The same for shares, such as `25 %`."""
    return f"{tick(round(100 * value, 6))}{SPACE}%"
