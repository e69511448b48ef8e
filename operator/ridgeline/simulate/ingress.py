"""The link into one engine, shared evenly by all transfers that run over it (processor sharing).

With n transfers each gets a share of 1/n. The bytes that one transfer has got since the start of time are the same for
all that were there all the while, so a transfer ends when that number has grown by its size: joining and leaving cost
the logarithm of n, whatever the transfers' sizes.
"""

from __future__ import annotations

from heapq import heappop, heappush

from ridgeline.simulate.request import Request

_SLACK_BYTES = 1.0
"""Transfers that have less left than this end together."""


class Ingress:
    """Transfers into one engine.

    Args:
        bytes_per_second: one-way speed of the link.

    Raises:
        ValueError: the link has no speed.
    """

    def __init__(self, bytes_per_second: float) -> None:
        if not bytes_per_second > 0.0:
            raise ValueError(f"a link needs a speed, not {bytes_per_second} bytes/s")
        self._bytes_per_second = bytes_per_second
        self._each = 0.0
        """Bytes that a transfer which was always there would have got."""
        self._updated_at = 0.0
        self._transfers: list[tuple[float, int, Request]] = []
        self._started = 0

    def __len__(self) -> int:
        return len(self._transfers)

    def start(self, request: Request, size_bytes: float, now: float) -> None:
        """Begin a transfer."""
        self._update(now)
        heappush(self._transfers, (self._each + size_bytes, self._started, request))
        self._started += 1

    def next_end(self) -> float | None:
        """When the next transfer ends if none begins before."""
        if not self._transfers:
            return None
        left = max(0.0, self._transfers[0][0] - self._each)
        return self._updated_at + left * len(self._transfers) / self._bytes_per_second

    def ended(self, now: float) -> list[Request]:
        """Transfers that are over at `now`."""
        due = self.next_end()
        self._update(now)
        done: list[Request] = []
        if due is not None and now >= due:  # whatever rounding has left of it
            done.append(heappop(self._transfers)[2])
        while self._transfers and self._transfers[0][0] <= self._each + _SLACK_BYTES:
            done.append(heappop(self._transfers)[2])
        return done

    def clear(self) -> None:
        """Forget all transfers: the engine is gone."""
        self._transfers.clear()

    def remove(self, request: Request, now: float) -> None:
        """End a transfer before its time: its source is gone."""
        self._update(now)
        self._transfers = sorted(entry for entry in self._transfers if entry[2] is not request)

    def _update(self, now: float) -> None:
        if self._transfers:
            self._each += (now - self._updated_at) * self._bytes_per_second / len(self._transfers)
        else:
            self._each = 0.0
        self._updated_at = now
