"""Engine pods of one fleet, as the API server has them: list, watch, list again.

Pods are raw JSON: the client's models take seconds to import and to fill, and refuse fields they do not know.
Every few seconds the watch ends and the list is read anew, so a lost event costs seconds and nothing more.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import aiohttp
from kubernetes.aio.client import ApiClient

from ridgeline.api import names
from ridgeline.api.fleet import Role
from ridgeline.registrar.table import Engine, serves

log = logging.getLogger(__name__)

Pod = Mapping[str, Any]

WATCH_SECONDS = 10
"""How long one watch lasts, and so the longest time a lost event can matter."""
REQUEST_TIMEOUT_SECONDS = 10.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 10.0


def engines(pods: Iterable[Pod]) -> dict[str, Engine]:
    """Engines that should take requests: Ready, not on their way out, with a role; by URL.

    A pod without a role, or with one that nobody knows, takes no requests: someone took it out on purpose. While the
    others cannot serve without them, engines on their way out stay: the last prefill engine of a rollout answers
    through its preStop sleep, until its partner has become mixed.
    """
    found: dict[str, Engine] = {}
    leaving: dict[str, Engine] = {}
    for pod in pods:
        role = _role(pod)
        address = (pod.get("status") or {}).get("podIP")
        if role is None or not address or not is_ready(pod):
            continue
        host = f"[{address}]" if ":" in address else address
        engine = Engine(pod=pod["metadata"]["name"], url=f"http://{host}:{names.ENGINE_PORT}", role=role)
        (leaving if "deletionTimestamp" in pod["metadata"] else found)[engine.url] = engine
    every = {**leaving, **found}
    needed = not serves(e.role for e in found.values()) and serves(e.role for e in every.values())
    return every if needed else found


def is_ready(pod: Pod) -> bool:
    """Whether the pod is Ready."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _role(pod: Pod) -> Role | None:
    value = (pod["metadata"].get("labels") or {}).get(names.LABEL_ROLE)
    return Role(value) if value in set(Role) else None


class ApiServerError(Exception):
    """The API server is away or refused a request."""


class PodWatch:
    """Keeps the last known pods of one fleet.

    Args:
        api: a client with credentials.
        namespace: of the fleet.
        fleet: its name.
        changed: called after each change of what is known.
    """

    def __init__(self, api: ApiClient, namespace: str, fleet: str, changed: Callable[[], None]) -> None:
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._selector = f"{names.LABEL_FLEET}={fleet},{names.LABEL_COMPONENT}={names.COMPONENT_ENGINE}"
        self._changed = changed
        self._pods: dict[str, Pod] = {}
        self.known = False
        """Whether the pods were listed at least once: before that nothing is known, which is not "no pods"."""
        self.problem: str | None = None
        """Why the API server cannot be read now; None while it can."""

    @property
    def engines(self) -> dict[str, Engine]:
        """Engines that should take requests, by URL."""
        return engines(self._pods.values())

    async def run(self) -> None:
        """List and watch until cancelled. An API server that is away is asked again, ever less often."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                version = await self._list()
                pause, self.problem = FIRST_PAUSE_SECONDS, None
                await self._watch(version)
            except (ApiServerError, aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                self.problem = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                log.warning("the API server cannot be read, the last known pods stand: %s", self.problem)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _list(self) -> str:
        """Read all pods, and the version from which to watch on.

        A consistent read, not `resourceVersion=0`: an older answer would flip roles back and forth.
        """
        response = await self._get({}, REQUEST_TIMEOUT_SECONDS)
        try:
            body = json.loads(await response.read())
            _raise_for_status(response.status, body)
        finally:
            response.release()
        self._pods = {pod["metadata"]["name"]: pod for pod in body["items"]}
        self.known = True
        self._changed()
        return str(body["metadata"]["resourceVersion"])

    async def _watch(self, version: str) -> None:
        """Follow changes until the watch ends: by its time, or because the version is too old (410)."""
        query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": str(WATCH_SECONDS)}
        response = await self._get(query, WATCH_SECONDS + REQUEST_TIMEOUT_SECONDS)
        try:
            if response.status == 410:
                return
            if response.status != 200:
                _raise_for_status(response.status, json.loads(await response.read()))
            async for event in _events(response):
                if event["type"] == "ERROR":
                    if event["object"].get("code") == 410:
                        return
                    raise ApiServerError(event["object"].get("message", "the watch failed"))
                self._apply(event)
        finally:
            response.close()

    async def _get(self, query: Mapping[str, str], timeout_seconds: float) -> aiohttp.ClientResponse:
        call = await self._api.param_serialize(
            "GET",
            self._path,
            query_params=[("labelSelector", self._selector), *query.items()],
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        response: aiohttp.ClientResponse = (await self._api.call_api(*call, _request_timeout=timeout)).response
        return response

    def _apply(self, event: Mapping[str, Any]) -> None:
        pod = event["object"]
        if event["type"] == "DELETED":
            self._pods.pop(pod["metadata"]["name"], None)
        else:
            self._pods[pod["metadata"]["name"]] = pod
        self._changed()


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[Mapping[str, Any]]:
    """Watch events, one JSON document a line, however long the line is."""
    rest = b""
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield json.loads(line)


def _raise_for_status(status: int, body: Mapping[str, Any]) -> None:
    if status != 200:
        raise ApiServerError(f"{status} {body.get('reason', '')}: {body.get('message', '')}")
