"""What the registrar needs of a router, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ridgeline.registrar.table import Engine, Worker


class RouterError(Exception):
    """The router is away or refused a request; the next pass tries again."""


class RouterBackend(Protocol):
    """A router with a worker table. Every call may raise `RouterError`.

    Calls may return before they are in force: the caller reads the table again.
    """

    async def workers(self) -> Sequence[Worker]:
        """All entries of the table."""
        ...

    async def add(self, engine: Engine) -> None:
        """Ask for an entry; harmless for an engine that is there already or on its way."""
        ...

    async def update(self, worker: Worker, engine: Engine) -> None:
        """Replace an entry by what the engine is now."""
        ...

    async def remove(self, worker: Worker) -> None:
        """Take an entry out; requests in flight end where they are."""
        ...
