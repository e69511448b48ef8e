from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.operator_process.fleets import fleet
from tests.operator_process.operators import Operator, eventually, operator
from tests.operator_process.stand_ins import StandInEngine, engine_roles, stand_in_engine, stand_in_registrar
from tests.tools.api_server import ApiServer

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(300)]

SPLIT = {"policy": "Static", "prefillReplicas": 1}


@pytest.fixture
def engines(api_server: ApiServer, api_namespace: str) -> Iterator[list[StandInEngine]]:
    """Two ready engines and a router of the fleet `chat`."""
    with ExitStack() as stack:
        made = [stack.enter_context(stand_in_engine(api_server, api_namespace, "chat", f"chat-{n}")) for n in range(2)]
        stack.enter_context(stand_in_registrar(api_server, api_namespace, "chat", "chat-router-0"))
        yield made


def roles(server: ApiServer, namespace: str) -> list[str]:
    return sorted(engine_roles(server, namespace, "chat").values())


def serve_some_requests(engines: list[StandInEngine]) -> None:
    """What counters show when requests are prefilled on one engine and decoded on the other."""
    for engine in engines:
        engine.prefills += 5
        engine.kv_bytes += 1_000_000


def routed_seconds(running: Operator) -> float:
    """The time that the operator measured from its one decision until the routers showed it."""
    samples = running.metrics()
    name = "ridgeline_fleet_transition_routed_seconds"
    assert sum(value for sample, value in samples.items() if sample.startswith(f"{name}_count")) == 1
    return sum(value for sample, value in samples.items() if sample.startswith(f"{name}_sum"))


def test_a_static_split_is_reached_and_routed_within_a_second(
    api_server: ApiServer, api_namespace: str, tmp_path: Path, engines: list[StandInEngine]
) -> None:
    api_server.apply(fleet(), namespace=api_namespace)
    with operator(api_server, api_namespace, tmp_path) as running:
        eventually(lambda: all(e.objectives for e in engines), "the objectives told to the engines")
        api_server.apply(fleet(topology=SPLIT), namespace=api_namespace)
        eventually(lambda: roles(api_server, api_namespace) == ["decode", "prefill"], "a prefill and a decode engine")
        eventually(lambda: routed_seconds(running) < 1.0, "roles routed within a second of the decision")
        prefill = next(e for e in engines if engine_roles(api_server, api_namespace, "chat")[e.pod] == "prefill")
        decode = next(e for e in engines if e is not prefill)
        eventually(lambda: decode.limit < decode.maximum == prefill.limit, "a small budget on the decode engine")
        serve_some_requests(engines)
        stored = eventually(
            lambda: (
                (f := api_server.get("fleet", "chat", "-n", api_namespace))["status"].get("transition") is None
                and f["status"]["topology"]["mode"] == "Split"
                and f
            ),
            "the end of the transition",
        )
        assert stored["status"]["lastDecision"]["action"] == "Split"
        assert [k for k in running.metrics() if re.match(r'ridgeline_fleet_transitions_total\{.*outcome="done"', k)]
        events = api_server.get("events", "-n", api_namespace)["items"]
        assert {e["reason"] for e in events} >= {"StaticTopology"}
        assert running.stop() == 0


def test_an_operator_killed_in_a_transition_finishes_it_after_its_restart(
    api_server: ApiServer, api_namespace: str, tmp_path: Path, engines: list[StandInEngine]
) -> None:
    api_server.apply(fleet(topology=SPLIT), namespace=api_namespace)
    with operator(api_server, api_namespace, tmp_path / "first") as first:
        eventually(
            lambda: api_server.get("fleet", "chat", "-n", api_namespace)["status"]["transition"],
            "a transition under way",
        )
        first.kill()
    serve_some_requests(engines)
    with operator(api_server, api_namespace, tmp_path / "second") as second:
        eventually(lambda: roles(api_server, api_namespace) == ["decode", "prefill"], "the roles", seconds=60)

        def over() -> bool:
            serve_some_requests(engines)
            return "transition" not in api_server.get("fleet", "chat", "-n", api_namespace)["status"]

        eventually(over, "the end of the transition", seconds=60)
        assert second.healthy()


def test_a_pod_that_comes_back_mixed_is_given_its_role_again(
    api_server: ApiServer, api_namespace: str, tmp_path: Path, engines: list[StandInEngine]
) -> None:
    api_server.apply(fleet(topology=SPLIT), namespace=api_namespace)
    with operator(api_server, api_namespace, tmp_path):

        def settled() -> bool:
            serve_some_requests(engines)
            found = api_server.get("fleet", "chat", "-n", api_namespace)["status"]
            return "transition" not in found and roles(api_server, api_namespace) == ["decode", "prefill"]

        eventually(settled, "the split", seconds=60)
        api_server.kubectl("label", "pod", "chat-0", "-n", api_namespace, "ridgeline.dev/role=mixed", "--overwrite")
        eventually(lambda: "mixed" in roles(api_server, api_namespace), "the role is gone")
        eventually(settled, "the split again", seconds=60)
