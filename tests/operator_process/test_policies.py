from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.operator_process.fleets import fleet
from tests.operator_process.operators import condition, eventually, operator
from tests.operator_process.stand_ins import (
    StandInEngine,
    StandInPrometheus,
    engine_roles,
    stand_in_engine,
    stand_in_prometheus,
    stand_in_registrar,
)
from tests.tools.api_server import ApiServer

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(300)]

RULES = {"stabilizationWindowSeconds": 6}
OBJECTIVES = {"timeToFirstTokenMilliseconds": 8000, "interTokenLatencyMilliseconds": 200}
"""A prefill of 256 tokens fits into a gap, one of 1,000 does not."""

STALLED = {
    ("requests_arriving:rate", "", ""): 1.7,
    ("requests_missed:ratio", "", ""): 0.4,
    ("requests_gaps_late:ratio", "", ""): 0.4,
    ("requests_first_token_late:ratio", "", ""): 0.0,
    ("decode_stall:ratio", "", ""): 0.45,
    ("time_to_first_token_seconds:p95", "", ""): 1.0,
    ("decode_gap_seconds:p95", "", ""): 0.4,
    ("decode_gap_seconds:p99", "", ""): 0.8,
    ("engines_reporting:count", "", ""): 2,
    ("step_model:seconds", "term", "fixed"): 0.015,
    ("step_model:seconds", "term", "decode_sequence"): 0.001,
    ("step_model:seconds", "term", "kv_token"): 2e-7,
    ("step_model:seconds", "term", "prefill_token"): 0.00065,
    ("weight_bytes", "", ""): 40e6,
    ("kv_bytes_per_token", "", ""): 1024,
    ("kv_capacity_tokens", "", ""): 262_144,
    ("request_prompt_tokens_bucket:rate", "le", "32"): 0.5,
    ("request_prompt_tokens_bucket:rate", "le", "64"): 1.0,
    ("request_prompt_tokens_bucket:rate", "le", "512"): 1.0,
    ("request_prompt_tokens_bucket:rate", "le", "1024"): 1.5,
    ("request_prompt_tokens_bucket:rate", "le", "+Inf"): 1.7,
    ("request_output_tokens_bucket:rate", "le", "16"): 0.7,
    ("request_output_tokens_bucket:rate", "le", "128"): 1.2,
    ("request_output_tokens_bucket:rate", "le", "+Inf"): 1.7,
}
"""Steady decodes with bursts of long prompts on engines of one CPU thread."""


@pytest.fixture
def engines(api_server: ApiServer, api_namespace: str) -> Iterator[list[StandInEngine]]:
    """Two ready engines, whose budget is 2,048 tokens, and a router."""
    with ExitStack() as stack:
        made = [stack.enter_context(stand_in_engine(api_server, api_namespace, "chat", f"chat-{n}")) for n in range(2)]
        for engine in made:
            engine.limit = engine.maximum = 2048
        stack.enter_context(stand_in_registrar(api_server, api_namespace, "chat", "chat-router-0"))
        yield made


@pytest.fixture
def prometheus(api_namespace: str) -> Iterator[StandInPrometheus]:
    """Tells of a fleet whose decodes are stalled by long prompts."""
    with stand_in_prometheus(api_namespace, "chat") as made:
        made.series = {(f"fleet:ridgeline_{rule}", label, of): value for (rule, label, of), value in STALLED.items()}
        yield made


def status(server: ApiServer, namespace: str) -> dict[str, Any]:
    found: dict[str, Any] = server.get("fleet", "chat", "-n", namespace)["status"]
    return found


def test_auto_tunes_live_and_records_why(
    api_server: ApiServer,
    api_namespace: str,
    tmp_path: Path,
    engines: list[StandInEngine],
    prometheus: StandInPrometheus,
) -> None:
    wanted = fleet(topology={"policy": "Auto"}, objectives=OBJECTIVES, rules=RULES)
    api_server.apply(wanted, namespace=api_namespace)
    with operator(api_server, api_namespace, tmp_path, f"--prometheus-url={prometheus.url}") as running:
        eventually(lambda: all(engine.limit < 2048 for engine in engines), "smaller budgets")
        assert len({engine.limit for engine in engines}) == 1
        found = eventually(
            lambda: (s := status(api_server, api_namespace))["topology"]["tokenBudget"] == engines[0].limit and s,
            "the budget in the status",
        )
        assert found["lastDecision"]["action"] == "Tune"
        assert condition({"status": found}, "MetricsAvailable")["status"] == "True"
        assert set(engine_roles(api_server, api_namespace, "chat").values()) == {"mixed"}
        assert any('action="Tune"' in name for name in running.metrics())

        tuned = engines[0].limit
        engines[0].limit = 2048  # the engine was started again
        eventually(lambda: engines[0].limit == tuned, "the budget again")


def test_recommend_changes_nothing_and_says_what_it_would_do(
    api_server: ApiServer,
    api_namespace: str,
    tmp_path: Path,
    engines: list[StandInEngine],
    prometheus: StandInPrometheus,
) -> None:
    api_server.apply(fleet(objectives=OBJECTIVES, rules=RULES), namespace=api_namespace)
    with operator(api_server, api_namespace, tmp_path, f"--prometheus-url={prometheus.url}") as running:

        def recommended() -> Any:
            best = status(api_server, api_namespace).get("recommendation", {})
            return best.get("tokenBudget", 2048) < 2048 and best

        best = eventually(recommended, "a recommendation")
        assert best["message"]
        assert any(name.startswith("ridgeline_fleet_recommendation{") for name in running.metrics())
        events = api_server.get("events.events.k8s.io", "-n", api_namespace)["items"]
        assert [e for e in events if e["action"] == "Recommend" and e["reason"] == best["reason"]]
        assert not [order for engine in engines for order in engine.orders if order[0] == "/v1/limits"]
        assert set(engine_roles(api_server, api_namespace, "chat").values()) == {"mixed"}


def test_metrics_that_end_stop_every_change_until_they_are_back(
    api_server: ApiServer,
    api_namespace: str,
    tmp_path: Path,
    engines: list[StandInEngine],
    prometheus: StandInPrometheus,
) -> None:
    api_server.apply(fleet(topology={"policy": "Auto"}, objectives=OBJECTIVES, rules=RULES), namespace=api_namespace)
    prometheus.silent = True
    with operator(api_server, api_namespace, tmp_path, f"--prometheus-url={prometheus.url}"):

        def told(answer: str) -> bool:
            found = condition({"status": status(api_server, api_namespace)}, "MetricsAvailable")
            return bool(found["status"] == answer)

        eventually(lambda: told("False"), "no metrics")
        assert all(engine.limit == 2048 for engine in engines)
        prometheus.silent = False
        eventually(lambda: told("True"), "metrics again")
        eventually(lambda: all(engine.limit < 2048 for engine in engines), "smaller budgets")
