"""Keeps who holds which device current."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Event
from typing import Protocol

from ridgeline_exporters.gpu.units import Holders

logger = logging.getLogger(__name__)

ASK_SECONDS = 5.0
KEEP_SECONDS = 60.0
"""Time for which the last answer is believed while the kubelet does not answer, as when it starts again."""


class Source(Protocol):
    """Who is asked; `pod_resources.PodResources` is it."""

    def holders(self) -> Holders:
        """Who holds which device now; raises an exception that says why not."""


class Ownership:
    """The last answer, kept by one thread and read by others.

    Args:
        source: who is asked.
        monotonic: a clock that never steps, in seconds.
    """

    def __init__(self, source: Source, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._monotonic = monotonic
        self._holders: Holders = {}
        self._answered_at = float("-inf")
        self._complaint = ""
        self.up = False
        """Whether the last question was answered."""
        self.errors = 0
        """Questions without an answer."""

    def holders(self) -> Holders:
        """Who holds which device; nothing is known once the last answer is too old."""
        return self._holders if self._monotonic() - self._answered_at < KEEP_SECONDS else {}

    def run(self, stop: Event) -> None:
        """Ask until told to stop."""
        while not stop.is_set():
            self.ask()
            stop.wait(ASK_SECONDS)

    def ask(self) -> None:
        """Ask once."""
        try:
            self._holders = self._source.holders()
        except Exception as error:
            self.errors += 1
            self.up = False
            if str(error) != self._complaint:
                logger.warning("The kubelet does not say who holds the GPUs, so pods are left out. %s", error)
            self._complaint = str(error)
            return
        self._answered_at = self._monotonic()
        if self._complaint:
            logger.info("The kubelet says again who holds the GPUs.")
        self.up, self._complaint = True, ""
