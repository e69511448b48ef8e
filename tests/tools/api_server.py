"""A real API server, alone: etcd and kube-apiserver on loopback, without controllers or nodes.

Schemas, CEL, defaults, server-side apply, Leases and RBAC are the real ones. Nothing acts on what is
stored: no garbage collection, no pod status, and a deleted namespace stays Terminating.
The programs are those of the test cluster (`tests/cluster/kube.py build`).
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tools.processes import free_ports, program

CLUSTER = Path(os.environ.get("RIDGELINE_CLUSTER", "/var/tmp/ridgeline-cluster"))
START_SECONDS = 60.0


class KubectlError(AssertionError):
    """kubectl ended with an error: its message is what a user would read."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API server said."""

    status: int
    body: Any

    @property
    def message(self) -> str:
        """The sentence of a refusal; empty for anything else."""
        return str(self.body.get("message", "")) if self.body.get("kind") == "Status" else ""


@dataclass(frozen=True, slots=True)
class ApiServer:
    """A running API server and how to reach it as a member of system:masters."""

    url: str
    token: str
    certificate: Path
    """CA of the server's certificate (PEM)."""
    kubeconfig: Path
    kubectl_path: Path

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl and return what it printed.

        Raises:
            KubectlError: kubectl ended with an error.
        """
        command = [str(self.kubectl_path), "--kubeconfig", str(self.kubeconfig), *arguments]
        done = subprocess.run(
            command, input=stdin, text=True, capture_output=True, timeout=60, env={**os.environ, "HOME": str(self.home)}
        )
        if done.returncode:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {done.stderr or done.stdout}")
        return done.stdout

    @property
    def home(self) -> Path:
        """Folder of this server's files; also where kubectl keeps its discovery cache."""
        return self.kubeconfig.parent

    def apply(
        self, *objects: dict[str, Any], namespace: str | None = None, dry_run: bool = False
    ) -> list[dict[str, Any]]:
        """Apply objects as `kubectl apply` does and return them as they are stored."""
        options = [f"--namespace={namespace}"] if namespace else []
        options += ["--dry-run=server"] if dry_run else []
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        answer = json.loads(self.kubectl("apply", *options, "-f", "-", "-o", "json", stdin=text))
        return list(answer["items"]) if answer.get("kind") == "List" else [answer]

    def get(self, *arguments: str) -> Any:
        """`kubectl get ARGUMENTS -o json`."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def request(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Answer:
        """One HTTP request as the administrator; `path` begins with a slash and may carry a query."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": content_type},
        )
        try:
            with urllib.request.urlopen(request, timeout=30, context=self._tls()) as response:
                return Answer(response.status, json.loads(response.read() or b"{}"))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, json.loads(error.read() or b"{}"))

    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificate))

    def install_crd(self, path: Path) -> None:
        """Apply a CustomResourceDefinition and wait until its kind is served and kubectl knows of it."""
        self.kubectl("apply", "--server-side", "-f", str(path))
        self.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(path))
        shutil.rmtree(self.home / ".kube", ignore_errors=True)  # kubectl's discovery cache, older than the kind
        name = self.kubectl("get", "-f", str(path), "-o", "jsonpath={.metadata.name}")
        deadline = time.monotonic() + 30
        while True:
            try:
                self.kubectl("get", name, "--all-namespaces")
                self.kubectl("explain", name)  # from the OpenAPI document, which is published a moment later
            except KubectlError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return

    def create_namespace(self, prefix: str = "test") -> str:
        """Make a namespace of a fresh name, so that tests do not meet."""
        name = f"{prefix}-{secrets.token_hex(4)}"
        self.kubectl("create", "namespace", name)
        return name


@contextmanager
def running() -> Iterator[ApiServer]:
    """Start etcd and the API server, and end both.

    Raises:
        FileNotFoundError: the programs are not built.
        RuntimeError: one of them ended or did not become ready; the message has its last lines.
    """
    programs = {name: CLUSTER / "bin" / name for name in ("server", "kube-apiserver", "kubectl")}
    for path in programs.values():
        if not path.exists():
            raise FileNotFoundError(f"{path} is missing: run `python3 tests/cluster/kube.py build` (needs Go and root)")
    home = Path(tempfile.mkdtemp(prefix="ridgeline-apiserver-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        etcd, peer, port = free_ports(3)
        stack.enter_context(program(_etcd_command(programs["server"], home, etcd, peer), home / "etcd.log"))
        server = _files(home, port, programs["kubectl"])
        command = _api_server_command(programs["kube-apiserver"], home, etcd, port)
        process = stack.enter_context(program(command, home / "apiserver.log"))
        _wait_ready(server, process, home / "apiserver.log")
        yield server


def _etcd_command(path: Path, home: Path, client: int, peer: int) -> list[str | Path]:
    client_url, peer_url = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
    return [
        path,
        f"--data-dir={home / 'etcd'}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={client_url}",
        f"--advertise-client-urls={client_url}",
        f"--listen-peer-urls={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster=default={peer_url}",
    ]


def _api_server_command(path: Path, home: Path, etcd: int, port: int) -> list[str | Path]:
    return [
        path,
        f"--etcd-servers=http://127.0.0.1:{etcd}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={home / 'certificates'}",
        f"--token-auth-file={home / 'tokens.csv'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={home / 'accounts.key'}",
        f"--service-account-signing-key-file={home / 'accounts.key'}",
        "--service-cluster-ip-range=198.19.0.0/24",
        "--authorization-mode=RBAC",
        # No controller makes the default ServiceAccount of a namespace, so pods could not be created with it on.
        "--disable-admission-plugins=ServiceAccount",
        # There is no node network and nothing to advertise.
        "--endpoint-reconciler-type=none",
    ]


def _files(home: Path, port: int, kubectl: Path) -> ApiServer:
    """Write the keys, the token and a kubeconfig."""
    token = secrets.token_hex(16)
    (home / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
    subprocess.run(["openssl", "genrsa", "-out", home / "accounts.key", "2048"], check=True, capture_output=True)
    server = ApiServer(
        url=f"https://127.0.0.1:{port}",
        token=token,
        certificate=home / "certificates" / "apiserver.crt",
        kubeconfig=home / "admin.kubeconfig",
        kubectl_path=kubectl,
    )
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [
            {"name": "test", "cluster": {"server": server.url, "certificate-authority": str(server.certificate)}}
        ],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
    }
    server.kubeconfig.write_text(json.dumps(config))
    return server


def _wait_ready(server: ApiServer, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            server.kubectl("get", "--raw", "/readyz", "--request-timeout=5s")
            server.kubectl("get", "namespace", "default")
        except KubectlError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
                raise RuntimeError(f"the API server did not become ready: {error}\n{tail}") from error
            time.sleep(0.3)
        else:
            return
