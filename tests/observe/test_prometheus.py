"""From the engine's own collector through a real Prometheus and the chart's rules to Signals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from ridgeline.api.fleet import Role
from ridgeline.decide.snapshot import MetricsProblem, Signals, StepsTaken
from ridgeline.metrics import FleetView, OperatorMetrics
from ridgeline.observe.metrics import MetricsReader
from ridgeline.observe.signals import FleetSignals
from ridgeline_exporters.engine.metrics import OUTPUT_TOKENS, EngineCollector, Totals
from tests.observe.exposition_server import exposition_server
from tests.observe.prometheus_process import running_prometheus
from tests.tools.programs import prometheus

CHAT, IDLE = ("default", "chat"), ("default", "idle")
STEP_TERMS = {"fixed": 0.004, "decode_sequence": 1e-5, "kv_token": 1e-8, "prefill_token": 2e-5}


class MadeUpEngine:
    """An engine whose counters grow evenly with time: behind the real collector, so every name is the real one."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._started = time.monotonic()

    @property
    def totals(self) -> Totals:
        done = (time.monotonic() - self._started) * self._speed
        totals = Totals()
        totals.requests = {"met": int(done * 6), "first_token_late": 0, "gaps_late": int(done * 6) // 3}
        totals.tokens = {"prefill": int(done * 1000), "decode": int(done * 100)}
        totals.flops = {"prefill": done * 3000.0, "decode": done * 40.0}
        totals.bytes["prefill"]["weights"] = done * 10.0
        totals.bytes["decode"]["weights"] = done * 1.0
        totals.decode_seconds, totals.stall_seconds = done, done * 0.25
        totals.prompt_tokens.observe(800, int(done * 6))
        totals.output_tokens.observe(100, int(done * 6))
        totals.first_tokens.observe(0.45, int(done * 6))
        totals.gaps.observe(0.018, int(done * 100))
        totals.steps["decode"].observe(0.02, int(done * 10))
        totals.step_terms["decode"] = {
            "decode_sequence": int(done * 10) * 4, "kv_token": int(done * 10) * 3000, "prefill_token": 0, "prefill_pair": 0
        }  # fmt: skip
        return totals

    def outputs_longer(self) -> list[int]:
        """Of as many outputs again, which run, all have become longer than 1,024 tokens."""
        ended = int((time.monotonic() - self._started) * self._speed * 6)
        return [ended * ((tokens < 100) + (tokens <= 1024)) for tokens in OUTPUT_TOKENS]

    def gauges(self) -> Mapping[str, Iterable[tuple[tuple[str, ...], float]]]:
        return {
            "exporter_up": [((), 1.0)],
            "peak_flops": [((), 6000.0)],
            "peak_memory_bytes_per_second": [((), 20.0)],
            "ridge_flops_per_byte": [((), 300.0)],
            "kv_capacity_tokens": [((), 5000.0)],
            "step_model_seconds": [((term,), seconds) for term, seconds in STEP_TERMS.items()],
        }

    def text(self) -> str:
        registry = CollectorRegistry()
        registry.register(EngineCollector(self))
        return generate_latest(registry).decode()


def operator_text() -> str:
    metrics = OperatorMetrics()
    metrics.show(CHAT, FleetView(roles={"chat-1": Role.PREFILL, "chat-2": Role.DECODE}))
    return generate_latest(metrics.registry).decode()


def scrapes(port: int) -> list[dict[str, Any]]:
    def target(path: str, **labels: str) -> dict[str, Any]:
        return {"targets": [f"127.0.0.1:{port}"], "labels": {"__metrics_path__": path, **labels}}

    engines = [
        target("/busy", namespace="default", fleet="chat", pod="chat-1"),
        target("/busy2", namespace="default", fleet="chat", pod="chat-2"),
        target("/idle", namespace="default", fleet="idle", pod="idle-1"),
        target("/vllm", namespace="default", fleet="chat", pod="chat-2"),
    ]
    operator = [target("/operator", namespace="ridgeline", pod="operator-1")]
    return [
        {"job_name": "ridgeline-engine", "static_configs": engines},
        {"job_name": "ridgeline-operator", "honor_labels": True, "static_configs": operator},
    ]


async def until(reader: MetricsReader, wanted: Callable[[FleetSignals], bool], seconds: float = 45) -> FleetSignals:
    """Read until the answer is as wanted; the last answer in any case."""
    deadline = time.monotonic() + seconds
    while True:
        answer = await reader.read(time.time())
        if wanted(answer) or time.monotonic() > deadline:
            return answer
        await asyncio.sleep(0.3)


def check_steps(chat: Signals) -> None:
    taken = chat.decode_steps
    assert taken is not None
    assert taken.steps == pytest.approx(40, rel=0.3)
    assert taken.seconds == pytest.approx(0.02 * taken.steps)
    assert taken.decode_sequences == pytest.approx(4 * taken.steps)
    assert taken.kv_tokens == pytest.approx(3000 * taken.steps)
    assert chat.prefill_steps == StepsTaken(0, 0, 0, 0, 0, 0)


def check_chat(chat: Signals) -> None:
    assert chat.engines_reporting == 2
    assert chat.sampled_at == pytest.approx(time.time(), abs=10)
    assert chat.requests_per_second == pytest.approx(24, rel=0.3)
    assert chat.missed_ratio == pytest.approx(0.25, abs=0.05)
    assert chat.gaps_late_ratio == chat.missed_ratio
    assert chat.first_token_late_ratio == 0
    assert chat.decode_stall_ratio == pytest.approx(0.25)
    assert chat.prefill.arithmetic_intensity_flops_per_byte == pytest.approx(300)
    assert chat.decode.arithmetic_intensity_flops_per_byte == pytest.approx(40)
    assert chat.prefill.compute_utilization_ratio == pytest.approx(0.75, rel=0.3)
    assert chat.decode.memory_bandwidth_utilization_ratio == pytest.approx(0.075, rel=0.3)
    assert chat.time_to_first_token_p95_seconds == pytest.approx(0.5, abs=0.1)
    assert chat.inter_token_p99_seconds == pytest.approx(0.02, abs=0.005)
    assert chat.prompt_tokens is not None
    assert list(chat.prompt_tokens) == [pytest.approx((800, 1.0), rel=0.01)]
    assert chat.output_tokens is not None
    assert [tokens for tokens, _ in chat.output_tokens] == pytest.approx([100, 1088], rel=0.01)
    assert [weight for _, weight in chat.output_tokens] == pytest.approx([0.5, 0.5], abs=0.1)
    assert chat.measured_steps is not None
    assert chat.measured_steps.seconds_per_prefill_token == 2e-5
    check_steps(chat)
    assert (chat.peak_flops, chat.kv_capacity_tokens, chat.weight_bytes) == (6000, 5000, None)
    assert chat.kv_transfer_bytes_per_second == pytest.approx(1000, rel=0.3)
    assert chat.kv_transfer_failures_per_second is None


def check_idle(idle: Signals) -> None:
    assert (idle.requests_per_second, idle.missed_ratio, idle.decode_stall_ratio) == (0, 0, 0)
    assert idle.time_to_first_token_p95_seconds is None
    assert idle.prompt_tokens is None
    assert idle.prefill.arithmetic_intensity_flops_per_byte is None
    assert idle.prefill.compute_utilization_ratio == 0
    assert idle.kv_transfer_bytes_per_second is None


def check(answer: FleetSignals) -> None:
    chat, idle = answer[CHAT], answer[IDLE]
    assert set(answer) == {CHAT, IDLE}
    assert isinstance(chat, Signals)
    assert isinstance(idle, Signals)
    check_chat(chat)
    check_idle(idle)


def settled(answer: FleetSignals) -> bool:
    """Whether the first windows are full: until then a rate may be missing or low."""
    try:
        check(answer)
    except AssertionError:
        return False
    return True


async def roles_at_work(reader: MetricsReader, seconds: float = 20) -> set[str]:
    """Roles whose engines compute tokens, as soon as there are two."""
    deadline = time.monotonic() + seconds
    while True:
        roles = {sample.labels["role"] for sample in await reader.query("role:ridgeline_tokens:rate > 0")}
        if len(roles) > 1 or time.monotonic() > deadline:
            return roles
        await asyncio.sleep(0.3)


async def test_signals_of_a_real_prometheus(tmp_path: Path) -> None:
    busy, other, idle = MadeUpEngine(1), MadeUpEngine(2), MadeUpEngine(0)
    started = time.monotonic()
    with ExitStack() as engines, ExitStack() as server:
        port = engines.enter_context(
            exposition_server(
                {
                    "/busy": busy.text,
                    "/busy2": other.text,
                    "/idle": idle.text,
                    "/vllm": lambda: f"vllm:nixl_bytes_transferred_sum {(time.monotonic() - started) * 1000}\n",
                    "/operator": operator_text,
                }
            )
        )
        url = server.enter_context(running_prometheus(prometheus(), tmp_path, scrapes(port), window="5s"))
        async with MetricsReader(url + "/", stale_after_seconds=10) as reader:
            check(await until(reader, settled))
            assert await roles_at_work(reader) == {"prefill", "decode"}

            late = (await reader.read(time.time() + 100))[CHAT]
            assert isinstance(late, MetricsProblem)
            assert late.reason == "StaleSamples"

            engines.close()  # the engines are gone
            answer = await until(reader, lambda found: CHAT not in found)
            gone = answer[CHAT]
            assert isinstance(gone, MetricsProblem)
            assert gone.reason == "NoSamples"

            server.close()  # and Prometheus too
            away = (await reader.read(time.time()))[CHAT]
            assert isinstance(away, MetricsProblem)
            assert away.reason == "PrometheusUnreachable"
