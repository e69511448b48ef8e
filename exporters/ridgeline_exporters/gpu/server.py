"""The exporter's HTTP server: metrics and probes, for everyone who reaches the port."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

logger = logging.getLogger(__name__)

READ_TIMEOUT_SECONDS = 5.0
TEXT = "text/plain; charset=utf-8"

Probe = Callable[[], str]
"""Why not, or nothing if all is well."""


class GpuExporterServer(ThreadingHTTPServer):
    """Serves `/metrics`, `/healthz` and `/readyz`.

    Args:
        address: host and port to listen on; port 0 takes a free one.
        registry: what to publish.
        alive: why the process should be started again.
        ready: why its numbers are not worth a scrape yet.
    """

    daemon_threads = True

    def __init__(self, address: tuple[str, int], registry: CollectorRegistry, alive: Probe, ready: Probe) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.registry = registry
        self.probes = {"/healthz": alive, "/readyz": ready}
        super().__init__(address, _Handler)

    @property
    def port(self) -> int:
        """The port in use."""
        return int(self.server_address[1])

    def start(self) -> None:
        """Serve in a daemon thread of its own."""
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.25}, name="http", daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A broken connection is the client's business."""
        logger.debug("A connection broke.", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = READ_TIMEOUT_SECONDS
    server: GpuExporterServer
    server_version = "ridgeline"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(200, generate_latest(self.server.registry), CONTENT_TYPE_PLAIN_0_0_4)
        elif path in self.server.probes:
            problem = self.server.probes[path]()
            self._answer(503 if problem else 200, (problem or "ok").encode() + b"\n", TEXT)
        else:
            self._answer(404, b"there is /metrics, /healthz and /readyz\n", TEXT)

    def _answer(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name is the base class's
        """Say nothing: a line per scrape would drown the log."""
