"""Prometheus over HTTP: one instant query per cycle for all fleets.

Nothing here raises for a Prometheus that is away, slow, locked or not a Prometheus: the answer is then a
problem for every fleet, with what to do about it, and the operator holds.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from ridgeline.decide.snapshot import MetricsProblem
from ridgeline.observe.signals import PROMETHEUS_UNREACHABLE, RULES_QUERY, FleetSignals, Sample, parse

DEFAULT_TIMEOUT_SECONDS = 5.0

_LONGEST_EXCERPT = 200
"""Characters of a foreign answer that a message may carry."""


class PrometheusError(Exception):
    """The query has no answer; the text says why and what to do."""


class MetricsReader:
    """Reads the recording rules of all fleets from one Prometheus.

    Use as an async context manager, or call `close` at the end.
    """

    def __init__(
        self,
        url: str,
        *,
        stale_after_seconds: float,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        token_file: Path | None = None,
        ca_file: Path | None = None,
    ) -> None:
        """Set up without connecting.

        Args:
            url: base address of Prometheus, with a path prefix where it has one.
            stale_after_seconds: age at which samples are refused; five scrape intervals are sensible.
            timeout_seconds: for the whole of one query.
            token_file: file with a bearer token, read before each query since mounted tokens rotate.
            ca_file: certificate authority of an https address that the system does not know.
        """
        self._url = url.rstrip("/")
        self._stale_after_seconds = stale_after_seconds
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._token_file = token_file
        self._ca_file = ca_file
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; a later read opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def read(self, now: float) -> FleetSignals:
        """Signals of every fleet, or why there are none.

        Args:
            now: Unix seconds of this cycle; samples are aged against it.
        """
        try:
            samples = await self.query(RULES_QUERY)
        except PrometheusError as error:
            return FleetSignals({}, otherwise=MetricsProblem(PROMETHEUS_UNREACHABLE, str(error)))
        return parse(samples, now, self._stale_after_seconds)

    async def query(self, expression: str) -> list[Sample]:
        """Result of an instant query that yields a vector.

        Raises:
            PrometheusError: there is no such result.
        """
        try:
            async with self._connected().post(
                f"{self._url}/api/v1/query",
                data={"query": expression},
                headers=self._headers(),
                timeout=self._timeout,
                allow_redirects=False,  # a redirect is a login page; a POST would not survive it
            ) as response:
                return _vector(self._url, response.status, await response.read())
        except TimeoutError as error:
            raise PrometheusError(
                f"Prometheus at {self._url} did not answer within {self._timeout.total:g} s;"
                " check its load and the network"
            ) from error
        except (aiohttp.ClientError, aiohttp.InvalidURL, OSError, ssl.SSLError) as error:
            raise PrometheusError(
                f"Prometheus at {self._url} cannot be reached ({error}); check --prometheus-url and network policies"
            ) from error

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            context = ssl.create_default_context(cafile=self._ca_file) if self._ca_file else True
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, limit=4))
        return self._session

    def _headers(self) -> Mapping[str, str]:
        if self._token_file is None:
            return {}
        try:
            token = self._token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise PrometheusError(
                f"the token for Prometheus cannot be read from {self._token_file} ({error})"
            ) from error
        return {"Authorization": f"Bearer {token}"}


def _vector(url: str, status: int, body: bytes) -> list[Sample]:
    """Samples in an HTTP answer of the query API."""
    if status in (401, 403):
        raise PrometheusError(f"Prometheus at {url} refuses the operator (HTTP {status}); check its bearer token")
    try:
        answer = json.loads(body)
    except ValueError as error:
        excerpt = body[:_LONGEST_EXCERPT].decode(errors="replace").strip()
        raise PrometheusError(
            f"{url} does not answer like Prometheus (HTTP {status}: {excerpt!r}); check --prometheus-url"
        ) from error
    if not isinstance(answer, dict) or answer.get("status") != "success":
        reason = answer.get("error", "no reason given") if isinstance(answer, dict) else "not an object"
        raise PrometheusError(f"Prometheus at {url} refuses the query (HTTP {status}): {reason}")
    try:
        return [_sample(element) for element in answer["data"]["result"]]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise PrometheusError(f"{url} answers with something that is not a vector; check --prometheus-url") from error


def _sample(element: dict[str, Any]) -> Sample:
    _, value = element["value"]
    return Sample(labels={str(k): str(v) for k, v in element["metric"].items()}, value=float(value))
