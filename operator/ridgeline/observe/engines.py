"""Engine pods and what their exporter and vLLM tell about themselves → EngineState."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from ridgeline.api.fleet import Role
from ridgeline.api.names import ENGINE_PORT, EXPORTER_PORT, LABEL_ROLE
from ridgeline.decide.snapshot import EngineState
from ridgeline.observe import fetch, pods
from ridgeline.observe.pods import Pod

KV_BYTES = "vllm:nixl_bytes_transferred_sum"
KV_FAILURES = "vllm:nixl_num_failed_transfers_total"
PROMPT_TOKENS = "vllm:prompt_tokens_by_source_total"
EXTERNAL_SOURCE = "external_kv_transfer"

_WANTED = (KV_BYTES, KV_FAILURES, PROMPT_TOKENS)
_COUNTERS = ("kv_bytes_received", "kv_failures", "external_prompt_tokens", "prompt_requests")


@dataclass(frozen=True, slots=True)
class EngineProbe:
    """Answers of one engine. None: it did not say.

    A counter of vLLM is None for one of two reasons: vLLM did not answer (`metrics_problem` says why), or it answered
    and has no such counter, because nothing of the kind happened yet or its connector does not count it.
    """

    running_requests: int | None = None
    """Requests it holds: running, waiting and fetching their KV cache."""
    waiting_requests: int | None = None
    """Those among them that wait to be scheduled."""
    decoding_requests: int | None = None
    """Those among them that decode; an older exporter does not say."""
    limit_tokens: int | None = None
    maximum_tokens: int | None = None
    kv_bytes_received: float | None = None
    kv_failures: float | None = None
    external_prompt_tokens: float | None = None
    prompt_requests: float | None = None
    problem: str | None = None
    """Why its exporter did not answer."""
    metrics_problem: str | None = None
    """Why vLLM's own metrics could not be read; None when they were."""


def with_counters_of(before: EngineProbe, probe: EngineProbe) -> EngineProbe:
    """A probe that keeps the counters which this time the engine did not tell, from an earlier answer of the same run.

    Counters only grow, so an old value is a lower bound. A missing one would read as zero, and its return as growth:
    one answer that came too late would look like KV that moved.
    """
    kept = {name: getattr(before, name) for name in _COUNTERS if getattr(probe, name) is None}
    return replace(probe, **kept)


def role_of(pod: Pod) -> Role:
    """Role of an engine pod by its label; without one, or with one of another version, it serves as a mixed engine."""
    label = (pod["metadata"].get("labels") or {}).get(LABEL_ROLE, Role.MIXED)
    return Role(label) if label in set(Role) else Role.MIXED


def engine_state(pod: Pod, probe: EngineProbe | None) -> EngineState:
    """State of one engine from its pod and its own answers.

    Args:
        pod: the pod as the API server has it.
        probe: None for an engine that was not asked.
    """
    probe = probe or EngineProbe()
    return EngineState(
        pod=pods.name(pod),
        address=pods.address(pod),
        role=role_of(pod),
        ready=pods.is_ready(pod),
        terminating=pods.has_ended(pod),
        waiting_reason=pods.waiting_reason(pod),
        message=pods.message(pod) or probe.problem or probe.metrics_problem,
        unschedulable=pods.is_unschedulable(pod),
        restarts=pods.restarts(pod),
        unready_since=pods.unready_since(pod),
        running_requests=probe.running_requests,
        waiting_requests=probe.waiting_requests,
        decoding_requests=probe.decoding_requests,
        limit_tokens=probe.limit_tokens,
        maximum_tokens=probe.maximum_tokens,
        kv_bytes_received=probe.kv_bytes_received,
        kv_failures=probe.kv_failures,
        external_prompt_tokens=probe.external_prompt_tokens,
        prompt_requests=probe.prompt_requests,
    )


async def probe_engines(
    session: aiohttp.ClientSession, engine_pods: Sequence[Pod], token: str | None
) -> dict[str, EngineProbe]:
    """Ask every ready engine at once, within the session's limit of connections: pod name → its answers."""
    asked = [(pods.name(pod), address) for pod in engine_pods if pods.is_ready(pod) and (address := pods.address(pod))]
    probes = await asyncio.gather(*(probe_engine(session, address, token) for _, address in asked))
    return {name: probe for (name, _), probe in zip(asked, probes, strict=True)}


async def probe_engine(
    session: aiohttp.ClientSession,
    address: str,
    token: str | None,
    *,
    exporter_port: int = EXPORTER_PORT,
    engine_port: int = ENGINE_PORT,
) -> EngineProbe:
    """Ask one engine for its state and for what it received from others. Never raises for an engine that is away.

    Args:
        session: from `fetch.new_session`.
        address: IP of the pod.
        token: control token of the fleet.
        exporter_port: port of the exporter, of rank 0.
        engine_port: port of vLLM's API.
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    (state, problem), (metrics, metrics_problem) = await asyncio.gather(
        fetch.get_object(session, fetch.url(address, exporter_port, "/v1/state"), headers),
        fetch.get_text(session, fetch.url(address, engine_port, "/metrics")),
    )
    return parse_probe(state, metrics, problem, metrics_problem)


def parse_probe(
    state: Mapping[str, Any] | None,
    metrics: str | None,
    problem: str | None = None,
    metrics_problem: str | None = None,
) -> EngineProbe:
    """Answers of one engine from the exporter's state and vLLM's exposition text, and why one of them is missing."""
    state = state or {}
    held = [_count(state.get(key)) for key in ("running", "waiting", "transferring")]
    counters = _counters(metrics or "")
    if counters is None:
        counters, metrics_problem = {}, "vLLM's metrics are no Prometheus exposition"
    external = counters.get(f"{PROMPT_TOKENS}:{EXTERNAL_SOURCE}")
    return EngineProbe(
        running_requests=sum(n or 0 for n in held) if held[0] is not None else None,
        waiting_requests=held[1],
        decoding_requests=_count(state.get("decoding")),
        limit_tokens=_count(_part(state, "limits").get("max_num_scheduled_tokens")),
        maximum_tokens=_count(_part(state, "maximum").get("max_num_scheduled_tokens")),
        kv_bytes_received=counters.get(KV_BYTES),
        kv_failures=counters.get(KV_FAILURES),
        external_prompt_tokens=_number(state.get("external_prompt_tokens")) if external is None else external,
        prompt_requests=_number(state.get("prefills_finished")),
        problem=problem,
        metrics_problem=metrics_problem,
    )


def _part(state: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = state.get(key)
    return part if isinstance(part, Mapping) else {}


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _count(value: Any) -> int | None:
    number = _number(value)
    return None if number is None or number < 0 else int(number)


def _counters(text: str) -> dict[str, float] | None:
    """Sums over an engine's ranks of the wanted counters; prompt tokens by `name:source`. None: a broken exposition.

    Only the wanted lines are parsed: the whole text is thousands of lines, and this runs in the event loop.
    """
    lines = "\n".join(line for line in text.splitlines() if line.startswith(_WANTED))
    sums: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(lines + "\n"):
            for sample in family.samples:
                key = sample.name
                if key == PROMPT_TOKENS:
                    key = f"{key}:{sample.labels.get('source', '')}"
                if math.isfinite(sample.value):
                    sums[key] = sums.get(key, 0.0) + sample.value
    except (ValueError, KeyError, IndexError):
        return None  # a broken exposition says nothing, not half of something
    return sums
