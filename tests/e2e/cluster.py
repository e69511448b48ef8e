"""The cluster that the tests run against, seen through kubectl and helm, and what is installed into it."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from tests.tools import programs

PROJECT = Path(__file__).resolve().parents[2]
STATE = Path(os.environ.get("RIDGELINE_CLUSTER", "/var/tmp/ridgeline-cluster"))
MODEL = STATE / "models" / "small"

RELEASE = "ridgeline"
SYSTEM_NAMESPACE = "ridgeline-system"
OUR_NAMESPACES = frozenset({"e2e", "e2e-wrong", "demo"})
"""Namespaces of the fleets that tests and demo make."""

T = TypeVar("T")


class WaitError(AssertionError):
    """Something did not come about in time; the message says what was seen last."""


@dataclass(frozen=True, slots=True)
class Images:
    """Images by part: those of the test cluster, or those that RIDGELINE_*_IMAGE name for another cluster."""

    product: str
    engine: str
    router: str
    prometheus: str

    @classmethod
    def chosen(cls) -> Images:
        def named(part: str, default: str) -> str:
            return os.environ.get(f"RIDGELINE_{part}_IMAGE", default)

        return cls(
            named("PRODUCT", "localhost/ridgeline:test"),
            named("ENGINE", "localhost/vllm-cpu:test"),
            named("ROUTER", "localhost/smg:test"),
            named("PROMETHEUS", "localhost/prometheus:test"),
        )


class Cluster:
    """kubectl and helm against one kubeconfig."""

    def __init__(self, kubeconfig: Path, *, ours: bool) -> None:
        self.kubeconfig = kubeconfig
        self.ours = ours
        """Whether this machine is the node, so that Services are reachable by their cluster IP."""
        self.images = Images.chosen()
        self._proxy_url: str | None = None

    @classmethod
    def found(cls) -> Cluster:
        """The cluster of RIDGELINE_KUBECONFIG, or the test cluster."""
        if given := os.environ.get("RIDGELINE_KUBECONFIG"):
            return cls(Path(given), ours=False)
        kubeconfig = STATE / "run" / "admin.kubeconfig"
        if not kubeconfig.exists():
            raise RuntimeError(
                "No cluster: start the test cluster with `make cluster-up`, or name one: make e2e KUBECONFIG=…"
            )
        return cls(kubeconfig, ours=True)

    # ------------------------------------------------------------ programs

    def _run(
        self, argv: Sequence[str], data: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        done = subprocess.run(
            argv, input=data, text=True, capture_output=True, env=environment, timeout=600, check=False
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(argv)}\n{done.stdout}{done.stderr}")
        return done

    def kubectl(self, *argv: str, data: str | None = None) -> str:
        """Standard output of a kubectl call that must succeed."""
        return self._run([str(programs.kubectl()), *argv], data).stdout

    def try_kubectl(self, *argv: str, data: str | None = None) -> subprocess.CompletedProcess[str]:
        """A kubectl call that may fail."""
        return self._run([str(programs.kubectl()), *argv], data, check=False)

    def helm(self, *argv: str) -> str:
        """Standard output of a helm call that must succeed."""
        return self._run([str(programs.helm4()), *argv]).stdout

    def get(self, kind: str, name: str | None = None, namespace: str | None = None, selector: str | None = None) -> Any:
        """An object, or the items of a list."""
        argv = ["get", kind, *([name] if name else []), "-o", "json"]
        argv += ["-n", namespace] if namespace else []
        argv += ["-l", selector] if selector else []
        answer = json.loads(self.kubectl(*argv))
        return answer if name else answer["items"]

    def apply(self, *manifests: dict[str, Any]) -> None:
        """Apply manifests as a user does."""
        self.kubectl("apply", "-f", "-", data=yaml.safe_dump_all(manifests))

    # ------------------------------------------------------------ the release

    def refuse_if_in_use(self) -> None:
        """Stop before anything is touched where somebody has fleets: a test replaces the release, and deletes fleets."""
        answer = self.try_kubectl("get", "fleets", "--all-namespaces", "-o", "json")
        if self.ours or answer.returncode:  # without the CRD there is no fleet
            return
        owners = {fleet["metadata"]["namespace"] for fleet in json.loads(answer.stdout)["items"]} - OUR_NAMESPACES
        if owners:
            raise RuntimeError(
                f"This cluster has fleets in {', '.join(sorted(owners))}. Tests and demo replace the release "
                f"{RELEASE} in {SYSTEM_NAMESPACE} and delete fleets: name a cluster that nobody uses."
            )

    def install(self, **values: Any) -> None:
        """`helm install` the chart, or upgrade to these values."""
        image, _, tag = self.images.product.rpartition(":")
        settings = {
            "image": {"repository": image, "tag": tag},
            "rules": {"window": "20s"},
            "intervalSeconds": 2,
            "prometheus": {"image": self.images.prometheus, "scrapeInterval": "2s"},
            **values,
        }
        file = STATE / "values.json"
        file.write_text(json.dumps(settings))
        self.helm("upgrade", "--install", RELEASE, str(PROJECT / "helm" / "ridgeline"), "-n", SYSTEM_NAMESPACE, "--create-namespace",
                  "-f", str(file), "--wait", "--timeout", "5m")  # fmt: skip

    def uninstall(self) -> None:
        """`helm uninstall` and the namespace it was in."""
        self.helm("uninstall", RELEASE, "-n", SYSTEM_NAMESPACE, "--ignore-not-found", "--wait")

    # ------------------------------------------------------------ addresses

    def address(self, service: str, namespace: str, port: int) -> str:
        """URL of a Service, as a client of the node sees it; of another cluster, through its API server."""
        if not self.ours:
            return f"{self._proxy()}/api/v1/namespaces/{namespace}/services/{service}:{port}/proxy"
        ip = self.get("service", service, namespace)["spec"]["clusterIP"]
        return f"http://{ip}:{port}"

    def _proxy(self) -> str:
        """URL of a `kubectl proxy` that ends with this process. Event streams pass through it token by token."""
        if self._proxy_url is None:
            process = subprocess.Popen(
                [str(programs.kubectl()), "proxy", "--port=0"],
                env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
                stdout=subprocess.PIPE,
                text=True,
            )
            atexit.register(process.terminate)
            assert process.stdout is not None
            self._proxy_url = f"http://{process.stdout.readline().split()[-1]}"
        return self._proxy_url


def fleet(name: str, namespace: str, images: Images, **spec: Any) -> dict[str, Any]:
    """An InferenceFleet of CPU engines, one thread each, that imitates a GPU's ratio of prefill to decode."""
    engine_args = [
        "--enforce-eager", "--dtype", "float32", "--block-size", "32",
        "--kv-cache-memory-bytes", str(512 << 20), "--max-model-len", "4096",
        "--max-num-seqs", "32", "--max-num-batched-tokens", "2048",
        "--kv-transfer-config", json.dumps({
            "kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu", "kv_load_failure_policy": "recompute",
        }),
    ]  # fmt: skip
    environment = {
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "UCX_TLS": "tcp,shm,self",
    }
    default: dict[str, Any] = {
        "model": {"id": "/cache/small", "servedName": "small", "cache": {"hostPath": str(MODEL.parent)}},
        "hardware": {
            "accelerator": "H100-SXM5-80GB",
            "perEngine": 1,
            "peaks": {"computeTeraflops": 1, "memoryBandwidthGigabytesPerSecond": 40, "linkGigabytesPerSecond": 1},
        },
        "engine": {
            "image": images.engine,
            "args": engine_args,
            "env": [{"name": key, "value": value} for key, value in environment.items()],
        },
        "replicas": 2,
        "topology": {"policy": "Recommend"},
        "rules": {"stabilizationWindowSeconds": 10, "cooldownSeconds": 10},
        "transition": {
            "soakSeconds": 25
        },  # longer than the window of the rules, so that the soak judges the new topology
        "router": {"image": images.router},
    }
    return {
        "apiVersion": "ridgeline.dev/v1alpha1",
        "kind": "InferenceFleet",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {**default, **spec},
    }


def wait_for(what: str, probe: Callable[[], T | None], seconds: float = 300, interval: float = 0.5) -> T:
    """Wait until the probe answers something true; a failed probe counts as not yet."""
    deadline, last = time.monotonic() + seconds, "nothing"
    while time.monotonic() < deadline:
        try:
            if answer := probe():
                return answer
            last = f"{answer!r}"
        except (RuntimeError, KeyError, IndexError, OSError) as error:
            last = f"{type(error).__name__}: {error}"
        time.sleep(interval)
    raise WaitError(f"{what}: not within {seconds:.0f} s; last seen: {last[:2000]}")


async def wait_for_async(what: str, probe: Callable[[], T | None], seconds: float = 300, interval: float = 0.5) -> T:
    """The same beside a running load."""
    return await asyncio.to_thread(wait_for, what, probe, seconds, interval)


def make_model() -> None:
    """The small random model of the engines, made once."""
    if (MODEL / "config.json").exists():
        return
    python = STATE / "vllm" / "bin" / "python"
    MODEL.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [python, PROJECT / "tests" / "models" / "make_model.py", MODEL, "--hidden", "512", "--layers", "8", "--heads", "8", "--kv-heads", "4", "--feed-forward", "1408"],
        check=True, stdout=sys.stderr,
    )  # fmt: skip
