"""Tables in Markdown, and their places in the pages of docs/: between a marker and its `<!-- end -->`."""

from __future__ import annotations

import re
from collections.abc import Iterable


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table; pipes in cells stay text."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |\n" for line in lines)


def filled(page: str, marker: str, text: str, name: str) -> str:
    """A page with the text at the place that `<!-- marker -->` begins, instead of what is there.

    Args:
        page: as it is.
        marker: what stands there, in words.
        text: whole lines.
        name: of the page, for the error.

    Raises:
        ValueError: the page has no such place.
    """
    place = re.search(rf"(?<=<!-- {marker} -->\n).*?(?=<!-- end -->)", page, re.DOTALL)
    if place is None:
        raise ValueError(f"{name} has no place for the table of the {marker}: <!-- {marker} -->")
    return page[: place.start()] + text + page[place.end() :]
