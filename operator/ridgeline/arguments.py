"""Numbers on the command line, as people write them: 2048, 2,048 or 2_048."""

from __future__ import annotations

import argparse


def whole_number(text: str) -> int:
    """A whole number above 0.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        value = int(_plain(text))
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number above 0")
    return value


def number(text: str) -> float:
    """A number above 0.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        value = float(_plain(text))
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0")
    return value


def _plain(text: str) -> str:
    return text.replace(",", "").replace("_", "")
