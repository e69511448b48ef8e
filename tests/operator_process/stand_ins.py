"""Stand-ins for engines and registrars, on loopback addresses of their own, and the pods that point at them.

The API server of these tests has no nodes, so a pod is written here as a kubelet would report it, with a loopback
address as its IP. A stand-in engine answers what the operator asks of an exporter and of vLLM; it computes nothing.
A stand-in registrar shows the role labels of the pods, as a registrar beside a router does once it has followed them.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ridgeline.api.names import ENGINE_PORT, EXPORTER_PORT, REGISTRAR_PORT
from tests.tools.api_server import ApiServer

_addresses = (f"127.83.{a}.{b}" for a in range(1, 250) for b in range(2, 250))
Answer = Callable[[str, str, dict[str, Any]], Any]


@dataclass(slots=True)
class StandInEngine:
    """What an engine would say, and what it was told."""

    pod: str
    address: str
    limit: int = 8192
    maximum: int = 8192
    running: int = 0
    prefills: int = 0
    kv_bytes: float = 0
    objectives: dict[str, int] = field(default_factory=dict)
    orders: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def exporter(self, method: str, path: str, body: dict[str, Any]) -> Any:
        """The exporter's control endpoint."""
        if method == "PUT":
            self.orders.append((path, body))
            if path == "/v1/limits":
                self.limit = body.get("max_num_scheduled_tokens", self.limit)
            else:
                self.objectives = body
            return {"accepted": body}
        return {
            "running": self.running,
            "waiting": 0,
            "transferring": 0,
            "decoding": self.running,
            "limits": {"max_num_scheduled_tokens": self.limit},
            "maximum": {"max_num_scheduled_tokens": self.maximum},
            "objectives": self.objectives,
            "prefills_finished": self.prefills,
            "external_prompt_tokens": 0,
        }

    def vllm(self, method: str, path: str, body: dict[str, Any]) -> Any:
        """Its /metrics."""
        return f"vllm:nixl_bytes_transferred_sum {self.kv_bytes}\nvllm:nixl_num_failed_transfers_total 0.0\n"


@contextmanager
def _serving(address: str, port: int, answer: Answer) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer("GET")

        def do_PUT(self) -> None:
            self._answer("PUT")

        def do_POST(self) -> None:
            self._answer("POST")

        def _answer(self, method: str) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            sent = self.rfile.read(length)
            body = json.loads(sent) if method == "PUT" else {}
            found = answer(method, self.path, body)
            data = found.encode() if isinstance(found, str) else json.dumps(found).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer((address, port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def stand_in_engine(server: ApiServer, namespace: str, fleet: str, pod: str) -> Iterator[StandInEngine]:
    """A ready engine pod of a fleet."""
    engine = StandInEngine(pod, next(_addresses))
    with _serving(engine.address, EXPORTER_PORT, engine.exporter), _serving(engine.address, ENGINE_PORT, engine.vllm):
        labels = {"ridgeline.dev/component": "engine", "ridgeline.dev/role": "mixed"}
        ready_pod(server, namespace, fleet, pod, "engine", engine.address, labels)
        yield engine


@contextmanager
def stand_in_registrar(server: ApiServer, namespace: str, fleet: str, pod: str) -> Iterator[None]:
    """A ready router pod whose registrar shows the labels of the engine pods."""
    address = next(_addresses)

    def workers(method: str, path: str, body: dict[str, Any]) -> Any:
        return {"synchronized": True, "message": "", "workers": engine_roles(server, namespace, fleet)}

    with _serving(address, REGISTRAR_PORT, workers):
        ready_pod(server, namespace, fleet, pod, "router", address, {"ridgeline.dev/component": "router"})
        yield


def engine_roles(server: ApiServer, namespace: str, fleet: str) -> dict[str, str]:
    """Role labels of the engine pods, read without kubectl: a registrar answers within milliseconds."""
    selector = f"ridgeline.dev%2Ffleet%3D{fleet},ridgeline.dev%2Fcomponent%3Dengine"
    request = urllib.request.Request(
        f"{server.url}/api/v1/namespaces/{namespace}/pods?labelSelector={selector}",
        headers={"Authorization": f"Bearer {server.token}"},
    )
    context = ssl.create_default_context(cafile=str(server.certificate))
    with urllib.request.urlopen(request, context=context, timeout=5) as answer:
        pods = json.load(answer)["items"]
    return {pod["metadata"]["name"]: pod["metadata"]["labels"]["ridgeline.dev/role"] for pod in pods}


def ready_pod(
    server: ApiServer, namespace: str, fleet: str, pod: str, container: str, address: str, labels: dict[str, str]
) -> None:
    """Write a pod as a kubelet reports it once it is ready."""
    write_pod(
        server, namespace, fleet, pod, container, labels,
        {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}],
            "containerStatuses": [
                {"name": container, "ready": True, "restartCount": 0, "image": "i", "imageID": "i",
                 "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
            ],
        },
    )  # fmt: skip


def write_pod(
    server: ApiServer,
    namespace: str,
    fleet: str,
    pod: str,
    container: str,
    labels: dict[str, str],
    status: dict[str, Any],
) -> None:
    """Write a pod with a status of choice."""
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": pod, "labels": {"ridgeline.dev/fleet": fleet, **labels}},
        "spec": {"containers": [{"name": container, "image": "registry.example/i"}]},
    }
    server.apply(manifest, namespace=namespace)
    patch = json.dumps({"status": status})
    server.kubectl("patch", "pod", pod, "-n", namespace, "--subresource=status", "--type=merge", "-p", patch)


@dataclass(slots=True)
class StandInPrometheus:
    """Answers every query with the same recorded series of one fleet."""

    namespace: str
    fleet: str
    url: str = ""
    series: dict[tuple[str, str, str], float] = field(default_factory=dict)
    """Rule, label and the label's value → sample."""
    silent: bool = False
    """Whether the series have ended."""

    def query(self, method: str, path: str, body: dict[str, Any]) -> Any:
        """The query API."""
        now = time.time()
        recorded = {} if self.silent else {("fleet:ridgeline_sample_timestamp_seconds", "", ""): now, **self.series}
        own = {"namespace": self.namespace, "fleet": self.fleet}
        result = [
            {"metric": {"__name__": rule} | own | ({label: of} if label else {}), "value": [now, str(value)]}
            for (rule, label, of), value in recorded.items()
        ]
        return {"status": "success", "data": {"resultType": "vector", "result": result}}


@contextmanager
def stand_in_prometheus(namespace: str, fleet: str) -> Iterator[StandInPrometheus]:
    """A Prometheus whose answers the test writes."""
    made = StandInPrometheus(namespace, fleet)
    address = next(_addresses)
    made.url = f"http://{address}:9090"
    with _serving(address, 9090, made.query):
        yield made
