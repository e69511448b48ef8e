"""Router pods and what their registrars tell → RouterState."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from ridgeline.api.fleet import Role
from ridgeline.api.names import REGISTRAR_PORT
from ridgeline.decide.snapshot import RouterState
from ridgeline.observe import fetch, pods
from ridgeline.observe.pods import Pod


async def read_routers(session: aiohttp.ClientSession, router_pods: Sequence[Pod]) -> tuple[RouterState, ...]:
    """States of all router pods that live, asked at once."""
    live = sorted((pod for pod in router_pods if not pods.has_ended(pod)), key=pods.name)
    return tuple(await asyncio.gather(*(read_router(session, pod) for pod in live)))


async def read_router(session: aiohttp.ClientSession, pod: Pod, *, port: int = REGISTRAR_PORT) -> RouterState:
    """State of one router pod. Never raises for a registrar that is away."""
    address = pods.address(pod)
    if address is None:
        return router_state(pod, None, "the router pod has no address yet")
    return router_state(pod, *await fetch.get_object(session, fetch.url(address, port, "/v1/workers")))


def router_state(pod: Pod, answer: Mapping[str, Any] | None, problem: str | None = None) -> RouterState:
    """State of a router from its pod and its registrar's answer.

    Args:
        pod: the pod as the API server has it.
        answer: of `GET /v1/workers`; None when there is none.
        problem: why there is none.
    """
    name, ready = pods.name(pod), pods.is_ready(pod)
    if answer is None:
        message = pods.message(pod) or problem or "the registrar does not answer"
        return RouterState(pod=name, ready=ready, workers=None, message=message)
    workers = _workers(answer.get("workers"))
    if workers is None:
        return RouterState(pod=name, ready=ready, workers=None, message="the registrar's worker table is unreadable")
    return RouterState(
        pod=name,
        ready=ready,
        workers=workers,
        synchronized=answer.get("synchronized") is True,
        message=str(answer.get("message") or ""),
    )


def _workers(table: Any) -> dict[str, Role] | None:
    """Engine pod → role; None for a table that this version does not understand."""
    if not isinstance(table, Mapping):
        return None
    try:
        return {str(pod): Role(role) for pod, role in table.items()}
    except ValueError:
        return None
