"""Role labels of live engine pods: what a transition asks for is written here, and nothing else of a pod."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ridgeline.act.api import PODS, ApiError, KubernetesApi
from ridgeline.api.fleet import Role
from ridgeline.api.names import LABEL_ROLE


async def set_roles(api: KubernetesApi, namespace: str, roles: Mapping[str, Role]) -> dict[str, str]:
    """Write role labels, all at once: the plan that names them is safe in any order.

    Returns:
        Pod → why it was not changed. A pod that is gone by now is no problem: the next pass sees the world without it.
    """
    pods = list(roles)
    answers = await asyncio.gather(*(_set_role(api, namespace, pod, roles[pod]) for pod in pods))
    return {pod: problem for pod, problem in zip(pods, answers, strict=True) if problem}


async def _set_role(api: KubernetesApi, namespace: str, pod: str, role: Role) -> str | None:
    try:
        await api.merge(PODS, namespace, pod, {"metadata": {"labels": {LABEL_ROLE: str(role)}}})
    except ApiError as error:
        return None if error.status == 404 else str(error)
    return None
