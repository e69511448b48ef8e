"""Tables of text in columns, as the commands print them."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(table: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """The lines of a table, columns two spaces apart.

    Args:
        table: its head and its rows, all of one length.
        left: columns, from the first, that are aligned to the left; the others, of numbers, to the right.
    """
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in table
    ]
