"""SMG's worker API (1.13.0).

What it does not say and what was found by trying: a worker that does not answer yet is accepted and not
listed, and another POST for it is answered 409; `PATCH` never changes a role and `PUT` replaces everything,
so the whole entry is always sent; a removed worker is listed as draining for 5 s and then goes, even if it
was changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from ridgeline.api.fleet import Role
from ridgeline.registrar.backend import RouterError
from ridgeline.registrar.table import Engine, State, Worker

REQUEST_TIMEOUT_SECONDS = 5.0
LABEL_POD = "pod"

WORKER_TYPES: Mapping[Role, str] = {Role.MIXED: "regular", Role.PREFILL: "prefill", Role.DECODE: "decode"}
ROLES: Mapping[str, Role] = {worker_type: role for role, worker_type in WORKER_TYPES.items()}


class SmgBackend:
    """The worker table of one SMG.

    Args:
        session: connections; closed by its owner.
        url: of the router, such as http://127.0.0.1:30000.
        key: control-plane key with the role `admin`; None where the router asks for none.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, key: str | None) -> None:
        self._session = session
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def workers(self) -> Sequence[Worker]:
        """All listed workers; the ones that SMG has accepted but not reached yet are not among them."""
        answer = await self._request("GET", "/workers")
        try:
            return [read_worker(entry) for entry in answer["workers"]]
        except (KeyError, TypeError) as error:
            raise RouterError(f"GET /workers answered something else than a worker table: {error!r}") from error

    async def add(self, engine: Engine) -> None:
        """Register an engine. Known or pending already (409) is left to the next look at the table."""
        await self._request("POST", "/workers", json=worker_spec(engine), also=(409,))

    async def update(self, worker: Worker, engine: Engine) -> None:
        """Replace an entry; one that went meanwhile (404) is left to the next look at the table."""
        await self._request("PUT", f"/workers/{worker.id}", json=worker_spec(engine), also=(404,))

    async def remove(self, worker: Worker) -> None:
        """Drain and drop an entry."""
        await self._request("DELETE", f"/workers/{worker.id}", also=(404,))

    async def _request(
        self, method: str, path: str, *, json: Mapping[str, Any] | None = None, also: tuple[int, ...] = ()
    ) -> Any:
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_SECONDS)
        try:
            async with self._session.request(
                method, self._url + path, json=json, headers=self._headers, timeout=timeout
            ) as response:
                if response.status >= 300 and response.status not in also:
                    raise RouterError(f"{method} {path} answered {response.status}: {(await response.text())[:300]}")
                return await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise RouterError(f"{method} {path} failed: {error or type(error).__name__}") from error


def worker_spec(engine: Engine) -> dict[str, Any]:
    """The whole entry of an engine, as POST and PUT take it."""
    return {
        "url": engine.url,
        "worker_type": WORKER_TYPES[engine.role],
        "runtime_type": "vllm",
        "kv_connector": "NixlConnector",
        "labels": {LABEL_POD: engine.pod},
    }


def read_worker(entry: Mapping[str, Any]) -> Worker:
    """Read one entry of `GET /workers`.

    An entry without its connector cannot hand over KV: it counts as one of another kind, so it is replaced.
    """
    known = entry.get("runtime_type") == "vllm" and entry.get("kv_connector") == "NixlConnector"
    if entry.get("status") == "draining":
        state = State.DRAINING
    else:
        state = State.HEALTHY if entry.get("is_healthy") else State.UNHEALTHY
    return Worker(
        id=entry["id"],
        url=entry["url"],
        role=ROLES.get(entry["worker_type"]) if known else None,
        state=state,
        pod=(entry.get("labels") or {}).get(LABEL_POD, ""),
    )
