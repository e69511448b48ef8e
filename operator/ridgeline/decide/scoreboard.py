"""How every candidate would have done on the loads of the last minutes.

Load moves to and fro: chats give way to long prompts and come back. Whoever looks at this minute alone picks the
topology that is best for it, and pays with a minute of misses each time the load turns. So each window of the rules
leaves a board behind, what every candidate was forecast to miss on the load of then, and candidates are compared by
the load of now and by the boards together. On a steady load the boards say what the forecast says.

Boards are kept in memory: a restarted operator decides by the present alone until it has new ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum

from ridgeline.api.fleet import Mode, TopologyStatus

REMEMBERED_WINDOWS = 12
"""Boards that count, one for each window of the rules: nine minutes with windows of 45 s."""
CALM_WINDOWS = 4
"""Windows for which it must have been calm."""

Key = tuple[int, int, int, int | None]
"""Mixed, prefill and decode engines, and the token budget."""


@dataclass(frozen=True, slots=True)
class Board:
    """What the candidates would have missed at one moment."""

    time: float
    """Unix seconds."""
    missed: Mapping[Key, float]
    """Share of requests, by candidate."""
    mixed_when_busier: float
    """Least share of misses of mixed engines with room for the load to grow."""
    requests: int | None = None
    """What the engines held, waiting or running; None where one did not tell."""


def key_of(topology: TopologyStatus) -> Key:
    """What tells two candidates apart: in a split, no token budget."""
    budget = topology.tokenBudget if topology.mode is Mode.MIXED else None
    return topology.mixed, topology.prefill, topology.decode, budget


def remembered(boards: tuple[Board, ...], key: Key) -> float | None:
    """Mean share of misses of a candidate over the boards that know it; None when none does."""
    known = [board.missed[key] for board in boards if key in board.missed]
    return fsum(known) / len(known) if known else None


def is_due(last: float, now: float, window_seconds: float) -> bool:
    """Whether the last board, or what stands for it, is a window old."""
    return not 0.0 <= now - last < window_seconds


def kept(boards: tuple[Board, ...], new: Board, window_seconds: float) -> tuple[Board, ...]:
    """The boards with a new one, without those that are too old."""
    oldest = new.time - REMEMBERED_WINDOWS * window_seconds
    return (*(board for board in boards if oldest <= board.time <= new.time), new)


def calm_lately(boards: tuple[Board, ...], margin: float, now: float, window_seconds: float) -> bool:
    """Whether mixed engines would have done at every board of the last windows; true without any board."""
    since = now - CALM_WINDOWS * window_seconds
    return all(board.mixed_when_busier <= margin for board in boards if board.time >= since)
