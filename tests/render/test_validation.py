"""What is refused before anything is applied, and what is let through."""

from __future__ import annotations

from typing import Any

import pytest

from ridgeline.api.fleet import InferenceFleet
from ridgeline.render import validate
from tests.render.fleets import EXTERNAL, FULL, MINIMAL, fleet


def engine(**fields: Any) -> InferenceFleet:
    return fleet({"engine": {"image": "i", **fields}})


NIXL = '{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_buffer_device":"cpu"}'


@pytest.mark.parametrize(
    "good",
    [
        pytest.param(MINIMAL, id="minimal"),
        pytest.param(FULL, id="full"),
        pytest.param(EXTERNAL, id="external"),
        pytest.param(fleet(name="a" * 55), id="longest name"),
        pytest.param(fleet({"hardware": {"accelerator": "nvidia-h100-80gb-hbm3"}}), id="accelerator by product label"),
        pytest.param(engine(args=["--kv-transfer-config", NIXL]), id="own transfer config"),
        pytest.param(engine(args=["--shutdown-timeout=0"]), id="no drain"),
        pytest.param(
            engine(podTemplate={"metadata": {"labels": {"env": "prod", "ports": "x"}}}), id="labels named as lists"
        ),
    ],
)
def test_nothing_is_held_against(good: InferenceFleet) -> None:
    assert validate(good) is None


@pytest.mark.parametrize(
    ("bad", "reason", "words"),
    [
        pytest.param(fleet(name="a" * 56), "InvalidName", "at most 55 characters", id="long name"),
        pytest.param(fleet(name="a.b"), "InvalidName", "'a.b'", id="dotted name"),
        pytest.param(fleet(name="1a"), "InvalidName", "starting with a letter", id="name that starts with a digit"),
        pytest.param(
            fleet({"hardware": {"accelerator": "RTX"}}),
            "UnknownAccelerator",
            "set `spec.hardware.peaks`",
            id="accelerator",
        ),
        pytest.param(
            fleet({"hardware": {"accelerator": "RTX"}}),
            "UnknownAccelerator",
            "H100-SXM5-80GB",
            id="known ones are named",
        ),
        pytest.param(
            engine(args=["--model", "x"]), "InvalidEngineArguments", "set `spec.model.id` instead", id="model by flag"
        ),
        pytest.param(
            engine(args=["--tensor_parallel_size=2"]), "InvalidEngineArguments", "`spec.hardware.perEngine`", id="TP"
        ),
        pytest.param(engine(args=["-tp", "2"]), "InvalidEngineArguments", "`spec.hardware.perEngine`", id="short TP"),
        pytest.param(engine(args=["--port=1"]), "InvalidEngineArguments", "8000", id="port"),
        pytest.param(engine(args=["--host", "127.0.0.1"]), "InvalidEngineArguments", "pod's address", id="host"),
        pytest.param(engine(args=["--uds=/tmp/s"]), "InvalidEngineArguments", "pod's address", id="socket"),
        pytest.param(engine(args=["--ssl_keyfile", "k"]), "InvalidEngineArguments", "plain HTTP", id="TLS key"),
        pytest.param(engine(args=["--ssl-certfile=c"]), "InvalidEngineArguments", "plain HTTP", id="TLS certificate"),
        pytest.param(engine(args=["--headless"]), "InvalidEngineArguments", "API server", id="headless"),
        pytest.param(engine(args=["-pp", "2"]), "InvalidEngineArguments", "pipeline", id="pipeline stages"),
        pytest.param(engine(args=["--api-key", "k"]), "InvalidEngineArguments", "no key", id="API key"),
        pytest.param(
            engine(args=["--shutdown-timeout", "soon"]),
            "InvalidEngineArguments",
            "whole seconds",
            id="shutdown timeout",
        ),
        pytest.param(engine(args=["--shutdown-timeout"]), "InvalidEngineArguments", "whole seconds", id="no value"),
        pytest.param(
            engine(args=["--kv-transfer-config", "nixl"]), "InvalidEngineArguments", "one JSON object", id="no JSON"
        ),
        pytest.param(
            engine(args=["--kv-transfer-config.kv_role", "kv_both"]),
            "InvalidEngineArguments",
            "one JSON object",
            id="dotted",
        ),
        pytest.param(
            engine(args=["--kv-transfer-config", NIXL.replace("both", "producer")]),
            "InvalidEngineArguments",
            '"kv_role":"kv_both"',
            id="one-way engine",
        ),
        pytest.param(
            engine(args=["--kv-transfer-config", NIXL.replace("Nixl", "Mooncake")]),
            "InvalidEngineArguments",
            "NixlConnector",
            id="connector that the router does not speak",
        ),
        pytest.param(fleet({"router": {"args": ["--port", "1"]}}), "InvalidRouterArguments", "30000", id="router port"),
        pytest.param(
            fleet({"router": {"args": ["--pd-disaggregation"]}}),
            "InvalidRouterArguments",
            "one table",
            id="router mode",
        ),
        pytest.param(
            fleet({"router": {"args": ["--shutdown-grace-period-secs", "x"]}}),
            "InvalidRouterArguments",
            "whole seconds",
            id="router drain",
        ),
        pytest.param(
            engine(podTemplate={"containers": []}), "InvalidPodTemplate", "'containers'", id="no pod template"
        ),
        pytest.param(engine(podTemplate={"spec": []}), "InvalidPodTemplate", "must be an object", id="spec is a list"),
        pytest.param(
            engine(podTemplate={"spec": {"containers": [{"image": "x"}]}}),
            "InvalidPodTemplate",
            "`spec.engine.podTemplate.spec.containers[0]` must have `name`",
            id="nameless container",
        ),
        pytest.param(
            engine(podTemplate={"spec": {"containers": [{"name": "engine", "env": {"A": "1"}}]}}),
            "InvalidPodTemplate",
            "`spec.engine.podTemplate.spec.containers[0].env` must be a list",
            id="env as a dict",
        ),
        pytest.param(
            engine(podTemplate={"spec": {"affinity": "gpu-nodes"}}),
            "InvalidPodTemplate",
            "another shape than in Kubernetes",
            id="affinity as a word",
        ),
    ],
)
def test_refused_with_a_reason_and_what_to_do(bad: InferenceFleet, reason: str, words: str) -> None:
    verdict = validate(bad)
    assert verdict is not None
    assert (verdict.status, verdict.reason) == ("False", reason)
    assert words in verdict.message
