"""The Kubernetes API as plain dictionaries.

The models of the `kubernetes` client refuse or drop fields that they do not know, so what is read through them
must never be written back, and reading 2,000 pods through them takes seconds. This client therefore uses only the
lower half of that library (configuration, credentials, connection pool) and exchanges JSON as it is.

Every write first asks the fence: a process that may no longer be the leader writes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from ridgeline.api.names import API_VERSION, FIELD_MANAGER, KIND, PLURAL

REQUEST_TIMEOUT_SECONDS = 10.0
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"

Object = dict[str, Any]


class ApiError(Exception):
    """The API server refused a request, or could not be reached (`status` 0)."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}" if status else message)
        self.status = status
        self.reason = reason
        self.message = message


class NotLeader(Exception):  # noqa: N818 - a state that ends the process, named as operators speak of it
    """A write was stopped because this process may no longer be the leader."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Where objects of one kind live."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path of the collection, of one object or of its subresource; no namespace means all of them."""
        root = f"/api/{self.api_version}" if "/" not in self.api_version else f"/apis/{self.api_version}"
        parts = [root]
        if self.namespaced and namespace is not None:
            parts.append(f"namespaces/{namespace}")
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/".join(parts)


FLEETS = Kind(API_VERSION, KIND, PLURAL)
PODS = Kind("v1", "Pod", "pods")
SECRETS = Kind("v1", "Secret", "secrets")
SERVICES = Kind("v1", "Service", "services")
SERVICE_ACCOUNTS = Kind("v1", "ServiceAccount", "serviceaccounts")
DEPLOYMENTS = Kind("apps/v1", "Deployment", "deployments")
ROLES = Kind("rbac.authorization.k8s.io/v1", "Role", "roles")
ROLE_BINDINGS = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
DISRUPTION_BUDGETS = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
POD_MONITORS = Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors")
EVENTS = Kind("events.k8s.io/v1", "Event", "events")
LEASES = Kind("coordination.k8s.io/v1", "Lease", "leases")

RENDERED_KINDS = (DEPLOYMENTS, DISRUPTION_BUDGETS, SERVICES, SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS, POD_MONITORS)
"""Every kind that a fleet may consist of, the Secret aside."""

_BY_KIND = {(kind.api_version, kind.kind): kind for kind in (*RENDERED_KINDS, SECRETS)}


def kind_of(manifest: Mapping[str, Any]) -> Kind:
    """The kind of a rendered manifest.

    Raises:
        KeyError: the manifest is of a kind that a fleet does not consist of.
    """
    return _BY_KIND[manifest["apiVersion"], manifest["kind"]]


class KubernetesApi:
    """Requests to one API server, with a time-out on each and a fence before each write."""

    def __init__(self, client: ApiClient, fence: Callable[[], bool] = lambda: True) -> None:
        self._client = client
        self._fence = fence

    async def close(self) -> None:
        """Close the connection pool."""
        await self._client.close()

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object | None:
        """One object, or None where there is none."""
        try:
            return await self._request("GET", kind.path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def select(self, kind: Kind, namespace: str | None, labels: Mapping[str, str] | None = None) -> list[Object]:
        """All objects that carry the labels."""
        selector = ",".join(f"{key}={value}" for key, value in (labels or {}).items())
        answer = await self._request("GET", kind.path(namespace), {"labelSelector": selector} if selector else {})
        return list(answer.get("items") or [])

    async def named(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """One object by the right to list, for kinds whose objects are not otherwise read."""
        answer = await self._request("GET", kind.path(namespace), {"fieldSelector": f"metadata.name={name}"})
        return next(iter(answer.get("items") or []), None)

    async def serves(self, kind: Kind) -> bool:
        """Whether the API server knows the kind."""
        group = "/api/v1" if "/" not in kind.api_version else f"/apis/{kind.api_version}"
        try:
            answer = await self._request("GET", group)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return any(resource.get("name") == kind.plural for resource in answer.get("resources", ()))

    async def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        """Create an object; a name already taken is an ApiError 409."""
        return await self._write("POST", kind.path(namespace), body)

    async def apply(
        self, kind: Kind, namespace: str, name: str, body: Object, subresource: str | None = None
    ) -> Object:
        """Server-side apply: fields that an earlier apply of ours held and this one leaves out are removed."""
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._write("PATCH", kind.path(namespace, name, subresource), body, query, APPLY)

    async def merge(self, kind: Kind, namespace: str, name: str, body: Object) -> Object:
        """Change the named fields and leave the rest, whoever owns it; unknown fields are refused, not dropped."""
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        return await self._write("PATCH", kind.path(namespace, name), body, query, MERGE)

    async def patch(self, kind: Kind, namespace: str, name: str, operations: list[Object]) -> Object:
        """JSON patch: all operations or none, so that a `test` guards the rest."""
        query = {"fieldManager": FIELD_MANAGER}
        return await self._write("PATCH", kind.path(namespace, name), operations, query, JSON_PATCH)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str | None = None) -> None:
        """Delete an object (with `uid`, only that very one); its absence is no error."""
        body: Object = {"propagationPolicy": "Background"}
        if uid:
            body["preconditions"] = {"uid": uid}
        try:
            await self._write("DELETE", kind.path(namespace, name), body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def _write(
        self,
        method: str,
        path: str,
        body: Object | list[Object],
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        if not self._fence():
            raise NotLeader(f"{method} {path} was not sent: the lease is no longer sure to be held")
        return await self._request(method, path, query, body, content_type)

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Object | list[Object] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        headers = {"Accept": "application/json", "Content-Type": content_type}
        call = await self._client.param_serialize(
            method, path, query_params=list((query or {}).items()), header_params=headers, body=body,
            auth_settings=["BearerToken"],
        )  # fmt: skip
        try:
            response = await self._client.call_api(
                *call, _request_timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_SECONDS)
            )
            data = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            what = str(error) or f"no answer within {REQUEST_TIMEOUT_SECONDS:.0f} s"
            raise ApiError(0, "Unreachable", f"the API server cannot be reached: {what}") from error
        answer = _decoded(data)
        if not 200 <= response.status < 300:
            message = str(answer.get("message") or data[:300].decode(errors="replace"))
            raise ApiError(response.status, str(answer.get("reason") or response.reason or ""), message)
        return answer


def _decoded(data: bytes) -> Object:
    """The JSON object in an answer; a proxy's error page becomes an empty one."""
    try:
        answer = json.loads(data) if data else {}
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


class NoClusterError(Exception):
    """There is neither a service account nor a usable kubeconfig."""


async def connect() -> ApiClient:
    """A client from the pod's service account, else from KUBECONFIG.

    Raises:
        NoClusterError: neither can be read.
    """
    configuration = Configuration()
    try:
        load_incluster_config(client_configuration=configuration)
    except ConfigException:
        try:
            await load_kube_config(client_configuration=configuration)
        except (ConfigException, OSError, ValueError) as error:
            raise NoClusterError(
                f"no cluster to work on: not in a pod with a service account, and no usable kubeconfig ({error}); "
                "set KUBECONFIG"
            ) from error
    return ApiClient(configuration)
