"""Generated load: requests of several classes whose rates move with time. Pure: dice are passed in.

Lengths are drawn between percentiles that were published of real traces, prompt and output of a request independently
of each other, which in real traces they are not quite.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import log

from ridgeline.simulate.traces import Arrival, Dice

Percentiles = tuple[tuple[float, int], ...]
"""Share of requests that are no longer, from 0 to 1, and tokens."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long the requests of a class are."""

    prompts: Percentiles
    outputs: Percentiles

    def draw(self, dice: Dice) -> tuple[int, int]:
        """Tokens of one request's prompt and output."""
        return _between(self.prompts, dice.random()), _between(self.outputs, dice.random())


CHAT = Lengths(
    prompts=((0.0, 4), (0.1, 207), (0.25, 396), (0.5, 1020), (0.75, 1189), (0.9, 2734), (0.95, 4080), (1.0, 4200)),
    outputs=(
        (0.0, 10), (0.1, 54), (0.25, 85), (0.5, 129), (0.75, 395), (0.9, 424), (0.95, 451), (0.99, 601), (1.0, 1000),
    ),
)  # fmt: skip
"""Azure's conversation trace of 2023 (`Azure/AzurePublicDataset`): 1,155 prompt and 211 output tokens on average."""
LONG_PROMPTS = Lengths(
    prompts=(
        (0.0, 890), (0.1, 964), (0.25, 2306), (0.5, 6909), (0.75, 15367), (0.9, 27367), (0.95, 39550), (0.99, 85400),
        (1.0, 126195),
    ),
    outputs=(
        (0.0, 1), (0.1, 24), (0.25, 156), (0.5, 350), (0.75, 472), (0.9, 597), (0.95, 698), (0.99, 1119), (1.0, 2000),
    ),
)  # fmt: skip
"""Mooncake's conversation trace (`kvcache-ai/Mooncake`): 12,035 prompt and 343 output tokens on average."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests of one class."""

    rate: Callable[[float], float]
    """Requests per second, by the second of the load."""
    draw: Callable[[Dice], tuple[int, int]]
    """Tokens of one request's prompt and output."""


def poisson(streams: Sequence[Stream], seconds: float, peak: float, dice: Dice) -> Iterator[Arrival]:
    """Arrivals that know nothing of each other, at rates that move (by thinning: Lewis and Shedler, 1979).

    Args:
        streams: the classes.
        seconds: how long.
        peak: at least the sum of all rates at any time, in requests per second; the nearer, the fewer draws.
        dice: the same dice give the same arrivals.

    Raises:
        ValueError: while iterating, where the rates add up to more than the peak.
    """
    now = 0.0
    while (now := now - log(1.0 - dice.random()) / peak) < seconds:
        share = dice.random() * peak
        total = 0.0
        for stream in streams:
            before, total = total, total + stream.rate(now)
            if before <= share < total:
                yield Arrival(now, *stream.draw(dice))
        if total > peak * (1.0 + 1e-9):
            raise ValueError(f"rates add up to {total:g}/s at {now:g} s, above the peak of {peak:g}/s")


def _between(percentiles: Percentiles, share: float) -> int:
    place = bisect_right([at for at, _ in percentiles], share)
    (low, few), (high, many) = percentiles[place - 1 : place + 1]
    return max(1, round(few + (many - few) * (share - low) / (high - low)))
