"""Orders to engines, over the control endpoint of their exporters.

Both orders say what should be, not what to change, so they may be repeated at will. An engine that does not answer
is left for the next pass: the caller learns which ones took the order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from ridgeline.api.fleet import Objectives
from ridgeline.api.names import EXPORTER_PORT

TIMEOUT_SECONDS = 2.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Engine:
    """Where an engine is told what to do."""

    pod: str
    address: str
    """Pod IP."""


class EngineControl:
    """Gives orders to the engines of one fleet."""

    def __init__(self, session: aiohttp.ClientSession, token: str, port: int = EXPORTER_PORT) -> None:
        self._session = session
        self._token = token
        self._port = port

    async def set_limits(self, limits: Mapping[Engine, int]) -> dict[str, str]:
        """Set the token budget of each engine.

        Returns:
            Pod → what went wrong, for the engines that did not take it.
        """
        return await self._each(
            {engine: {"max_num_scheduled_tokens": tokens} for engine, tokens in limits.items()}, "limits"
        )

    async def set_objectives(self, engines: list[Engine], objectives: Objectives) -> dict[str, str]:
        """Tell engines what a request is promised, so that they count the requests that miss it.

        Returns:
            Pod → what went wrong, for the engines that did not take it.
        """
        body = {
            "time_to_first_token_milliseconds": objectives.timeToFirstTokenMilliseconds,
            "inter_token_latency_milliseconds": objectives.interTokenLatencyMilliseconds,
        }
        return await self._each(dict.fromkeys(engines, body), "objectives")

    async def _each(self, bodies: Mapping[Engine, Mapping[str, int]], what: str) -> dict[str, str]:
        engines = list(bodies)
        answers = await asyncio.gather(*(self._put(engine, what, bodies[engine]) for engine in engines))
        return {engine.pod: problem for engine, problem in zip(engines, answers, strict=True) if problem}

    async def _put(self, engine: Engine, what: str, body: Mapping[str, int]) -> str | None:
        host = f"[{engine.address}]" if ":" in engine.address else engine.address
        try:
            async with self._session.put(
                f"http://{host}:{self._port}/v1/{what}",
                json=dict(body),
                headers={"Authorization": f"Bearer {self._token}"},
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
            ) as response:
                if response.status == 200:
                    return None
                return f"HTTP {response.status}: {(await response.text())[:200]}"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return str(error) or f"no answer within {TIMEOUT_SECONDS:g} s"
