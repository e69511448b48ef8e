"""Real vLLM engines on this machine's CPU, with the exporter installed as in a pod."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.tools.processes import free_ports

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_PYTHON = "/var/tmp/ridgeline-cluster/vllm/bin/python"
MODEL = "tiny"
TOKEN = "token-of-this-test-run"
BUDGET = 256
"""--max-num-batched-tokens: small, so that prompts are cut into chunks."""
BLOCK = 32
START_SECONDS = 900.0
ANSWER_SECONDS = 300.0
PREFIX = "ridgeline_engine_"
CORE, WORKER = b"VLLM::EngineCore", b"VLLM::Worker"

Metrics = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]


_COUNTED = ("tokens_total", "step_seconds_count", "requests_total", "exporter_errors_total")


def python() -> Path:
    """The interpreter of the engines' environment."""
    return Path(os.environ.get("RIDGELINE_VLLM", DEFAULT_PYTHON))


def eventually(condition: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    """Wait until a condition holds; the machine may be slow, so waits are generous and end early."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.2)


def request(
    method: str, url: str, body: Any = None, token: str | None = None, seconds: float = ANSWER_SECONDS
) -> tuple[int, str]:
    """Status and text of an answer, whatever the status."""
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, data, headers, method=method), timeout=seconds
        ) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(errors="replace")


def install_exporter(folder: Path) -> None:
    """Install the exporter as the init container of an engine pod does."""
    subprocess.run([sys.executable, "-m", "ridgeline_exporters.install", str(folder)], check=True, cwd=ROOT)


def install_test_plugin(folder: Path) -> None:
    """Install the tests' own plug-in beside the exporter."""
    package, information = folder / "ridgeline_engine_tests", folder / "ridgeline_engine_tests-0.dist-info"
    shutil.copytree(Path(__file__).with_name("inside"), package, ignore=shutil.ignore_patterns("__pycache__"))
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: ridgeline_engine_tests\nVersion: 0\n")
    entries = [f"{name} = ridgeline_engine_tests.{name}:register" for name in ("recording", "faults")]
    (information / "entry_points.txt").write_text("\n".join(["[vllm.general_plugins]", *entries, ""]))


def make_model(folder: Path, **sizes: int) -> None:
    """Make the small model with the engines' interpreter; `sizes` are options of `make_model.py`."""
    options = [part for name, size in sizes.items() for part in (f"--{name.replace('_', '-')}", str(size))]
    script = ROOT / "tests" / "models" / "make_model.py"
    subprocess.run([python(), script, folder, *options], check=True, capture_output=True)


class Rank:
    """The exporter of one rank of an engine."""

    def __init__(self, exporter_port: int) -> None:
        self.exporter_port = exporter_port

    @property
    def exporter(self) -> str:
        """URL of the exporter."""
        return f"http://127.0.0.1:{self.exporter_port}"

    def metrics(self) -> Metrics:
        """Every sample of the exporter, by name without the prefix and labels."""
        status, text = request("GET", f"{self.exporter}/metrics")
        assert status == 200
        return {
            (sample.name.removeprefix(PREFIX), tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def state(self) -> dict[str, Any]:
        """The exporter's state."""
        status, text = request("GET", f"{self.exporter}/v1/state", token=TOKEN)
        assert status == 200
        state: dict[str, Any] = json.loads(text)
        return state

    def put(self, what: str, body: Any) -> tuple[int, Any]:
        """Post limits or objectives."""
        status, text = request("PUT", f"{self.exporter}/v1/{what}", body, TOKEN)
        return status, json.loads(text)

    def settle(self) -> Metrics:
        """Wait until the engine holds nothing and all is accounted for; returns the metrics then."""
        eventually(lambda: not any(self.state()[name] for name in ("running", "waiting", "transferring")), "idle")
        before: Metrics = {}
        while (after := self.metrics()) and any(after[key] != before.get(key) for key in after if key[0] in _COUNTED):
            before = after
            time.sleep(0.2)
        return after


class Engine(Rank):
    """One engine process; `wait` until it answers, `stop` it in the end."""

    def __init__(
        self,
        name: str,
        model: Path,
        plugin: Path,
        folder: Path,
        arguments: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start it.

        Args:
            name: for the log.
            model: folder of the model.
            plugin: folder of the installed exporter.
            folder: where the log goes.
            arguments: of vLLM, beside or instead of the usual ones; None leaves one out, "" gives a flag alone.
            environment: variables beside the usual ones.
        """
        super().__init__(free_ports(1)[0])
        self.name = name
        self.port, side_channel = free_ports(2)
        self.folder = folder
        self.log = folder / f"{name}.log"
        variables = (
            os.environ
            | {
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "OMP_NUM_THREADS": "1",
                "HF_HUB_OFFLINE": "1",
                "VLLM_NO_USAGE_STATS": "1",
                "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
                "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_channel),
                "PYTHONPATH": str(plugin),
                "RIDGELINE_EXPORTER_HOST": "127.0.0.1",
                "RIDGELINE_EXPORTER_PORT": str(self.exporter_port),
                "RIDGELINE_CONTROL_TOKEN": TOKEN,
                "RIDGELINE_PEAK_TERAFLOPS": "0.1",
                "RIDGELINE_PEAK_GIGABYTES_PER_SECOND": "20",
            }
            | dict(environment or {})
        )
        transfer = {
            "kv_connector": "NixlConnector",
            "kv_role": "kv_both",
            "kv_buffer_device": "cpu",
            "kv_load_failure_policy": "recompute",
        }
        flags: dict[str, object] = {
            "--model": model, "--served-model-name": MODEL, "--host": "127.0.0.1", "--port": self.port,
            "--kv-cache-memory-bytes": 256 * 1024**2, "--block-size": BLOCK, "--max-model-len": 2048,
            "--max-num-seqs": 16, "--max-num-batched-tokens": BUDGET, "--kv-transfer-config": json.dumps(transfer),
        }  # fmt: skip
        command = [str(python()), "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
        for flag, value in (flags | dict(arguments or {})).items():
            command += [] if value is None else [flag] if value == "" else [flag, str(value)]
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *command],
                env=variables, stdout=output, stderr=output, cwd=folder, start_new_session=True,
            )  # fmt: skip

    @property
    def url(self) -> str:
        """Of the engine's own API."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        """Whether the engine answers."""
        try:
            return request("GET", f"{self.url}/health", seconds=30)[0] == 200
        except OSError:
            return False

    def wait(self) -> None:
        """Wait until the engine serves."""
        deadline = time.monotonic() + START_SECONDS
        while not self.alive:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"engine {self.name} did not start:\n{self.log.read_text(errors='replace')[-5000:]}")
            time.sleep(1.0)

    def cpu_seconds(self) -> tuple[float, float]:
        """CPU time so far of the EngineCore, which schedules, and of its workers, which compute."""
        seconds = {CORE: 0.0, WORKER: 0.0}
        for title, thread in self._threads():
            if title in seconds:
                with suppress(OSError):  # threads end meanwhile
                    seconds[title] += int((thread / "schedstat").read_text().split()[0]) * 1e-9
        assert seconds[CORE], f"engine {self.name} has no EngineCore"
        return seconds[CORE], seconds[WORKER]

    def give_workers_a_core(self) -> None:
        """Let the workers compute on the last core alone, as they would on a GPU, and all else, us too, on the others."""
        *others, last = sorted(os.sched_getaffinity(0))
        assert others, "one core is not enough for an engine and its worker"
        for title, thread in self._threads():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), {last} if title == WORKER else others)
        os.sched_setaffinity(0, others)

    def _threads(self) -> Generator[tuple[bytes, Path], None, None]:
        """Every thread of the engine's processes: the process' title and its folder below /proc."""
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # processes end meanwhile
                group = int((process / "stat").read_text().rpartition(")")[2].split()[2])
                title = (process / "cmdline").read_bytes().partition(b"\0")[0]
                if group == self._process.pid:
                    yield from ((title, thread) for thread in list((process / "task").iterdir()))

    def stop(self) -> None:
        """End the process and what it started."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(60)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(60)

    def complete(self, prompt: str | list[int], tokens: int, **fields: Any) -> dict[str, Any]:
        """Let the engine generate exactly so many tokens."""
        return complete(self.url, prompt, tokens, **fields)

    def rank(self, rank: int) -> Rank:
        """The exporter of a data-parallel rank."""
        return Rank(self.exporter_port + rank)


def complete(url: str, prompt: str | list[int], tokens: int, **fields: Any) -> dict[str, Any]:
    """A completion of exactly so many tokens from an engine or a router.

    Raises:
        AssertionError: the request failed.
    """
    body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0} | fields
    status, text = request("POST", f"{url}/v1/completions", body)
    assert status == 200, f"{status}: {text[:500]}"
    answer: dict[str, Any] = json.loads(text)
    return answer


def stream(url: str, prompt: str | list[int], tokens: int, **fields: Any) -> Generator[float, None, None]:
    """Monotonic times at which the tokens of a completion arrive; closing the iterator aborts the request."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    call = urllib.request.Request(
        f"{url}/v1/completions",
        json.dumps(body | {"stream": True} | fields).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(call, timeout=ANSWER_SECONDS) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                yield time.monotonic()


def delta(after: Metrics, before: Metrics, name: str, **labels: str) -> float:
    """How much a sample grew."""
    key = (name, tuple(sorted(labels.items())))
    return after[key] - before[key]


def hand_off() -> dict[str, Any]:
    """What a router adds to the request that it sends to the prefill engine."""
    nothing = dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))
    return {"do_remote_decode": True, "do_remote_prefill": False, **nothing}
