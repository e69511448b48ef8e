"""A generated day of requests: a calm night, a morning ramp, hours heavy with prompts, hours heavy with chat."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator

from ridgeline.simulate.load import CHAT, LONG_PROMPTS, Stream, poisson
from ridgeline.simulate.traces import Arrival, Dice

HOURS = 24
PARTS = (
    (0, "night"),
    (6, "morning ramp"),
    (9, "prompt-heavy hours"),
    (13, "chat-heavy hours"),
    (20, "evening"),
)
"""The hour from which each part of the day lasts."""
_CURVE = (
    (0.0, 6.0, 0.8),
    (6.0, 6.0, 0.8),
    (9.0, 30.0, 2.5),
    (9.5, 14.0, 5.2),
    (12.5, 14.0, 5.2),
    (13.5, 62.0, 0.6),
    (19.0, 62.0, 0.6),
    (22.0, 14.0, 0.8),
    (24.0, 6.0, 0.8),
)
"""Hour, chat requests per second, long prompts per second; straight lines between."""


def day(seconds: float, dice: Dice) -> Iterator[Arrival]:
    """The requests of a day that takes so many seconds, at the rates of a whole one.

    Args:
        seconds: from midnight to midnight; 86,400 is a real day, and less a day whose load moves faster.
        dice: the same dice give the same day.
    """

    def rate(column: int) -> Callable[[float], float]:
        return lambda now: _at(column, HOURS * now / seconds)

    streams = [Stream(rate(1), CHAT.draw), Stream(rate(2), LONG_PROMPTS.draw)]
    return poisson(streams, seconds, max(chat + prompts for _, chat, prompts in _CURVE), dice)


def clock(share: float) -> str:
    """What a clock shows when so much of the day is over: 0.5 is `12:00`."""
    minutes = int(share * HOURS * 60.0)
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def part(share: float) -> str:
    """The part of the day in which that is."""
    return PARTS[bisect_right([hour for hour, _ in PARTS], HOURS * share) - 1][1]


def _at(column: int, hour: float) -> float:
    place = min(bisect_right([row[0] for row in _CURVE], hour), len(_CURVE) - 1)
    before, after = _CURVE[place - 1], _CURVE[place]
    return before[column] + (after[column] - before[column]) * (hour - before[0]) / (after[0] - before[0])
