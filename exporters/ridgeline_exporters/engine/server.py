"""The exporter's HTTP server: metrics for everyone, state and limits for who has the token.

It runs in threads of the engine's own process, so everything is bounded: connections at a time, seconds a connection,
bytes a body. One request a connection.
"""

from __future__ import annotations

import hmac
import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from ridgeline_exporters.engine.control import BadRequest

logger = logging.getLogger("vllm.plugins.ridgeline")

LARGEST_BODY_BYTES = 4096
MOST_CONNECTIONS = 8
READ_TIMEOUT_SECONDS = 5.0
CONNECTION_SECONDS = 15.0


class Unavailable(RuntimeError):  # noqa: N818  named as HTTP does
    """The exporter cannot do this now."""


class Backend(Protocol):
    """What the server serves."""

    @property
    def registry(self) -> CollectorRegistry:
        """The exporter's own registry."""

    def state(self) -> dict[str, Any]:
        """Body of `GET /v1/state`."""

    def put_limits(self, body: Any) -> dict[str, Any]:
        """Body of the answer to `PUT /v1/limits`; raises BadRequest or Unavailable."""

    def put_objectives(self, body: Any) -> dict[str, Any]:
        """Body of the answer to `PUT /v1/objectives`; raises BadRequest or Unavailable."""


class ExporterServer(ThreadingHTTPServer):
    """Serves one engine's exporter.

    Args:
        address: host and port to listen on; port 0 takes a free one.
        backend: what to serve.
        token: bearer token of the control endpoint; None refuses everything but metrics and health.
    """

    daemon_threads = True
    request_queue_size = 16

    def __init__(self, address: tuple[str, int], backend: Backend, token: str | None) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.backend = backend
        self._token = None if token is None else token.encode()
        self._slots = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._open: dict[socket.socket, float] = {}
        super().__init__(address, _Handler)

    @property
    def port(self) -> int:
        """The port in use."""
        return int(self.server_address[1])

    def start(self) -> None:
        """Serve in a daemon thread of its own."""
        threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.25}, name="ridgeline-exporter", daemon=True
        ).start()

    def token_is(self, header: str | None) -> bool:
        """Whether an Authorization header carries the token. Takes equally long for every wrong one."""
        scheme, _, value = (header or "").partition(" ")
        given = value.strip().encode("utf-8", "surrogateescape")
        equal = hmac.compare_digest(given, self._token or b"")
        return equal and bool(self._token) and scheme.lower() == "bearer"

    @property
    def has_token(self) -> bool:
        """Whether a token is configured."""
        return self._token is not None

    def process_request(self, request: Any, client_address: Any) -> None:
        """Hand a connection to a thread, or close it when all are taken."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._open[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be had: nobody else gives the place back
            self._open.pop(request, None)
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.pop(request, None)
            self._slots.release()

    def service_actions(self) -> None:
        """End connections that take too long: a client that sends a byte now and then never times out by itself."""
        limit = time.monotonic() - CONNECTION_SECONDS
        for request, since in list(self._open.items()):
            if since < limit:
                try:
                    request.shutdown(socket.SHUT_RDWR)
                except OSError:
                    self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A broken connection is the client's business, not a line on the engine's standard error."""
        logger.debug("The exporter's connection to a client broke.", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = READ_TIMEOUT_SECONDS
    server: ExporterServer
    server_version = "ridgeline"
    sys_version = ""

    def do_GET(self) -> None:
        if self.path == "/healthz":
            self._answer(200, b"ok\n", "text/plain; charset=utf-8")
        elif self.path.partition("?")[0] == "/metrics":
            self._metrics()
        else:
            self._controlled({"/v1/state": lambda: self.server.backend.state()})

    def _metrics(self) -> None:
        try:
            text = generate_latest(self.server.backend.registry)
        except Exception:
            logger.debug("The exporter could not write its metrics.", exc_info=True)
            self._problem(500, "the metrics could not be written")
        else:
            self._answer(200, text, CONTENT_TYPE_PLAIN_0_0_4)

    def do_PUT(self) -> None:
        backend = self.server.backend
        self._controlled(
            {
                "/v1/limits": lambda: backend.put_limits(self._body()),
                "/v1/objectives": lambda: backend.put_objectives(self._body()),
            }
        )

    def _controlled(self, routes: dict[str, Callable[[], dict[str, Any]]]) -> None:
        if not self.server.has_token:
            self._problem(403, "no token configured")
        elif not self.server.token_is(self.headers.get("Authorization")):
            self._problem(401, "a valid bearer token is needed")
        elif self.path not in routes:
            self._problem(404, "there is no such resource")
        else:
            try:
                self._json(200, routes[self.path]())
            except BadRequest as error:
                self._problem(400, str(error))
            except Unavailable as error:
                self._problem(503, str(error))
            except OSError:
                raise  # the client is gone
            except Exception:
                logger.debug("The exporter could not answer.", exc_info=True)
                self._problem(500, "the exporter could not answer")

    def _body(self) -> Any:
        try:
            length = int(self.headers.get("Content-Length") or "")
        except ValueError:
            raise BadRequest("Content-Length must be given") from None
        if not 0 <= length <= LARGEST_BODY_BYTES:
            raise BadRequest(f"the body must have at most {LARGEST_BODY_BYTES} bytes")
        try:
            return json.loads(self.rfile.read(length))
        except (ValueError, RecursionError):
            raise BadRequest("the body must be JSON") from None

    def _json(self, status: int, body: dict[str, Any]) -> None:
        self._answer(status, json.dumps(body).encode() + b"\n", "application/json")

    def _problem(self, status: int, message: str) -> None:
        self._json(status, {"error": message})

    def _answer(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name is the base class's
        """Say nothing: a line per scrape would drown the engine's log."""
