"""Small HTTP reads of pods: bounded in time and size, never an exception."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import aiohttp

TIMEOUT_SECONDS = 2.0
"""A pod that needs longer has no answer for this cycle."""

LARGEST_ANSWER_BYTES = 8 * 1024 * 1024

MOST_CONNECTIONS = 64
"""Requests under way at once. Waiting for a connection counts into the time-out, so this is ample."""


def new_session() -> aiohttp.ClientSession:
    """A session for reads of pods; the caller closes it.

    Proxies of the environment are not used: pods are reached directly.
    """
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
        connector=aiohttp.TCPConnector(limit=MOST_CONNECTIONS, limit_per_host=2),
        trust_env=False,
    )


def url(address: str, port: int, path: str) -> str:
    """Address of a path on a pod, for IPv4 and IPv6."""
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{port}{path}"


async def get_text(
    session: aiohttp.ClientSession, target: str, headers: Mapping[str, str] | None = None
) -> tuple[str | None, str | None]:
    """Body of a 200 answer, or None and why there is none."""
    try:
        async with session.get(
            target,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
            allow_redirects=False,
        ) as response:
            if response.status != 200:
                return None, f"GET {target} answers {response.status}"
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > LARGEST_ANSWER_BYTES:
                    return None, f"GET {target} answers with more than {LARGEST_ANSWER_BYTES} bytes"
            return body.decode(errors="replace"), None
    except TimeoutError:
        return None, f"GET {target} has no answer within {TIMEOUT_SECONDS:g} s"
    except (aiohttp.ClientError, OSError) as error:
        return None, f"GET {target} fails: {error}"


async def get_object(
    session: aiohttp.ClientSession, target: str, headers: Mapping[str, str] | None = None
) -> tuple[dict[str, Any] | None, str | None]:
    """JSON object of a 200 answer, or None and why there is none."""
    text, problem = await get_text(session, target, headers)
    if text is None:
        return None, problem
    try:
        answer = json.loads(text)
    except ValueError:
        return None, f"GET {target} does not answer with JSON"
    if not isinstance(answer, dict):
        return None, f"GET {target} does not answer with a JSON object"
    return answer, None
