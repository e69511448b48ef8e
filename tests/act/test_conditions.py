from __future__ import annotations

from typing import Any

import pytest

from ridgeline.act.conditions import Facts, assess, conditions, cure, shortened
from ridgeline.api.conditions import ConditionType, Verdict
from ridgeline.api.fleet import Condition, FleetSpec, Role
from ridgeline.api.names import CONTAINER_ENGINE
from ridgeline.decide.snapshot import EngineState, MetricsProblem, RouterState, Signals, Snapshot

NOW = 1_790_000_000.0


def spec(**changes: Any) -> FleetSpec:
    return FleetSpec.model_validate(
        {
            "model": {"id": "example/tiny", "servedName": "tiny"},
            "hardware": {"accelerator": "H100-SXM5-80GB", "perEngine": 4},
            "engine": {"image": "registry.example/vllm:1"},
            "replicas": 2,
            **changes,
        }
    )


def engine(pod: str = "e1", **changes: Any) -> EngineState:
    values: dict[str, Any] = {"pod": pod, "address": "10.0.0.1", "role": Role.MIXED, "ready": True}
    return EngineState(**{**values, **changes})


def starting(pod: str = "e1", **changes: Any) -> EngineState:
    return engine(pod, ready=False, **changes)


def router(*roles: Role, **changes: Any) -> RouterState:
    values: dict[str, Any] = {
        "pod": "r1",
        "ready": True,
        "workers": {f"e{n}": role for n, role in enumerate(roles, 1)},
        "synchronized": True,
    }
    return RouterState(**{**values, **changes})


BOTH = (engine("e1"), engine("e2"))
ROUTER = router(Role.MIXED, Role.MIXED)
FRESH = Signals(sampled_at=NOW, requests_per_second=0.0, missed_ratio=0.0)


def answers(
    snapshot: Snapshot,
    fleet: FleetSpec | None = None,
    refusal: Verdict | None = None,
    replica_failure: str | None = None,
) -> dict[ConditionType, Verdict]:
    return assess(Facts(fleet or spec(), snapshot, NOW, refusal, replica_failure))


@pytest.mark.parametrize(
    ("snapshot", "ready", "reason"),
    [
        pytest.param(Snapshot(BOTH, (ROUTER,), FRESH), "True", "AllReady", id="all engines ready and routed"),
        pytest.param(Snapshot(BOTH, (ROUTER,)), "True", "AllReady", id="without metrics a fleet serves all the same"),
        pytest.param(Snapshot((), ()), "False", "NoEngineReady", id="nothing exists yet"),
        pytest.param(
            Snapshot((starting(),), (ROUTER,)), "False", "NoEngineReady", id="the first engine loads its model"
        ),
        pytest.param(Snapshot(BOTH, ()), "False", "NoRouterReady", id="no router pod"),
        pytest.param(
            Snapshot(BOTH, (router(Role.MIXED, ready=False),)), "False", "NoRouterReady", id="no ready router"
        ),
        pytest.param(Snapshot(BOTH, (router(),)), "False", "NoServingPair", id="the router knows no engine"),
        pytest.param(
            Snapshot(BOTH, (router(Role.DECODE, Role.DECODE),)),
            "False",
            "NoServingPair",
            id="decode engines alone serve nobody",
        ),
        pytest.param(
            Snapshot(BOTH, (router(Role.PREFILL, Role.DECODE),)), "True", "AllReady", id="a complete pair serves"
        ),
        pytest.param(
            Snapshot((engine("e1"), starting("e2")), (router(Role.MIXED),)),
            "False",
            "EnginesStarting",
            id="one of two ready",
        ),
        pytest.param(
            Snapshot(BOTH, (router(Role.MIXED, synchronized=False, message="e2 is missing"),)),
            "False",
            "TableDiffers",
            id="a table differs",
        ),
        pytest.param(
            Snapshot(BOTH, (ROUTER, router(pod="r2", workers=None, ready=False))),
            "False",
            "RouterUnreachable",
            id="one of two routers does not answer",
        ),
        pytest.param(
            Snapshot((starting(waiting_reason="ImagePullBackOff"),), (ROUTER,)),
            "False",
            "ImageCannotBePulled",
            id="what is broken is told first",
        ),
        pytest.param(
            Snapshot((*BOTH, engine("e3", ready=True, terminating=True)), (ROUTER,)),
            "True",
            "AllReady",
            id="an engine on its way out does not count",
        ),
    ],
)
def test_ready_sums_up(snapshot: Snapshot, ready: str, reason: str) -> None:
    answer = answers(snapshot)[ConditionType.READY]
    assert (answer.status, answer.reason) == (ready, reason)
    assert answer.message


def test_an_external_router_is_not_looked_for() -> None:
    told = answers(Snapshot(BOTH, ()), spec(router={"type": "External"}))
    assert told[ConditionType.READY].status == "True"
    assert told[ConditionType.ROUTER_SYNCHRONIZED].reason == "ExternalRouter"


@pytest.mark.parametrize(
    ("engines", "reason", "words"),
    [
        pytest.param(
            (starting(waiting_reason="ErrImagePull", message="manifest unknown"),),
            "ImageCannotBePulled",
            ["manifest unknown", "spec.engine.image", "registry.example/vllm:1"],
            id="image",
        ),
        pytest.param(
            (
                starting(
                    waiting_reason="ImagePullBackOff", message='Back-off pulling image "registry.example/ridgeline:0"'
                ),
            ),
            "ImageCannotBePulled",
            ["--operator-image"],
            id="the operator's own image",
        ),
        pytest.param(
            (starting(waiting_reason="CrashLoopBackOff", restarts=3, message="OSError: no such file: config.json"),),
            "EngineFailing",
            ["restarted 3 times", "config.json", "spec.model.id"],
            id="unloadable model",
        ),
        pytest.param(
            (starting(restarts=1, message="CUDA out of memory"),),
            "EngineFailing",
            ["restarted once", "perEngine"],
            id="between two crashes the container runs",
        ),
        pytest.param(
            (starting(waiting_reason="CrashLoopBackOff", message="unheard-of failure"),),
            "EngineFailing",
            ["unheard-of failure", f"kubectl logs e1 -c {CONTAINER_ENGINE}"],
            id="unknown failure",
        ),
        pytest.param(
            (engine("e1"), starting("e2", unschedulable=True, message="0/1 nodes: Insufficient nvidia.com/gpu.")),
            "InsufficientGPUs",
            ["1 of 2 engines", "4 H100-SXM5-80GB missing", "`spec.replicas` to 1"],
            id="too few GPUs",
        ),
        pytest.param(
            (starting(unschedulable=True, message="node(s) didn't match Pod's node affinity/selector"),),
            "Unschedulable",
            ["affinity", "label"],
            id="no such node",
        ),
        pytest.param((engine("e1", restarts=5), engine("e2")), "AsExpected", [], id="an engine that recovered is fine"),
        pytest.param((starting(), starting("e2")), "AsExpected", [], id="loading is not degraded"),
        pytest.param(
            (starting(waiting_reason="CrashLoopBackOff", restarts=2, terminating=True),),
            "AsExpected",
            [],
            id="on its way out",
        ),
    ],
)
def test_degraded_says_what_to_do(engines: tuple[EngineState, ...], reason: str, words: list[str]) -> None:
    answer = answers(Snapshot(engines, (ROUTER,)))[ConditionType.DEGRADED]
    assert answer.reason == reason
    assert answer.status == ("False" if reason == "AsExpected" else "True")
    for word in words:
        assert word in answer.message


def test_a_refused_spec_is_told_whatever_the_engines_do() -> None:
    told = answers(Snapshot(BOTH, (ROUTER,)), refusal=Verdict("True", "UnknownAccelerator", "use another"))
    assert told[ConditionType.DEGRADED].reason == "UnknownAccelerator"
    assert told[ConditionType.READY].status == "False"
    assert told[ConditionType.AVAILABLE].status == "True", "it serves on"


def test_a_spec_that_cannot_be_read_still_has_every_condition() -> None:
    told = assess(Facts(None, refusal=Verdict("True", "InvalidSpec", "correct it")))
    assert set(told) == set(ConditionType)
    assert told[ConditionType.READY].reason == "InvalidSpec"


def test_a_quota_that_refuses_pods_is_told() -> None:
    told = answers(Snapshot(), replica_failure="exceeded quota: gpus")
    assert told[ConditionType.DEGRADED].reason == "EnginesNotCreated"
    assert "exceeded quota" in told[ConditionType.READY].message


def test_missing_metrics_are_told_with_their_reason() -> None:
    problem = MetricsProblem("StaleSamples", "the oldest sample is 40 s old")
    told = answers(Snapshot(BOTH, (ROUTER,), problem))[ConditionType.METRICS_AVAILABLE]
    assert told == Verdict("False", "StaleSamples", "the oldest sample is 40 s old")


@pytest.mark.parametrize(
    ("signals", "status", "reason"),
    [
        pytest.param(FRESH, "True", "SamplesFresh", id="fresh"),
        pytest.param(Signals(sampled_at=NOW - 300), "False", "MetricsStale", id="stale"),
        pytest.param(
            Signals(sampled_at=NOW, requests_per_second=1.0, missed_ratio=float("nan")),
            "False",
            "MetricsNotANumber",
            id="not a number",
        ),
        pytest.param(Signals(sampled_at=NOW), "False", "MetricsIncomplete", id="a gap"),
    ],
)
def test_metrics_are_judged_as_decide_judges_them(signals: Signals, status: str, reason: str) -> None:
    answer = answers(Snapshot(BOTH, (ROUTER,), signals))[ConditionType.METRICS_AVAILABLE]
    assert (answer.status, answer.reason) == (status, reason)


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        pytest.param("You are trying to access a gated repo.", "tokenSecretRef", id="gated"),
        pytest.param("Repository Not Found for url", "spec.model.id", id="unknown repository"),
        pytest.param("torch.OutOfMemoryError: CUDA out of memory", "perEngine", id="memory"),
        pytest.param("error: unrecognized arguments: --foo", "spec.engine.args", id="arguments"),
        pytest.param("Model architectures ['X'] are not supported for now", "image", id="architecture"),
        pytest.param("Max retries exceeded: Connection error", "hub", id="network"),
        pytest.param(None, "kubectl logs", id="nothing said"),
    ],
)
def test_the_engines_last_lines_lead_to_a_cure(message: str | None, advice: str) -> None:
    assert advice in cure(message, "e1")


def test_a_conditions_time_moves_only_with_its_status() -> None:
    first = conditions(answers(Snapshot()), (), 1, NOW)
    again = conditions(answers(Snapshot(BOTH, (ROUTER,))), first, 2, NOW + 60)
    before, after = ({c.type: c for c in found} for found in (first, again))
    assert after["Ready"].lastTransitionTime != before["Ready"].lastTransitionTime
    assert after["Degraded"].lastTransitionTime == before["Degraded"].lastTransitionTime
    assert all(c.observedGeneration == 2 for c in again)
    assert [c.type for c in again] == [str(kind) for kind in ConditionType]


def test_every_condition_fits_the_api() -> None:
    told = answers(Snapshot((starting(waiting_reason="CrashLoopBackOff", message="x" * 5000),), ()))
    for each in conditions(told, (), 1, NOW):
        assert isinstance(each, Condition)
        assert len(each.message) <= 1024


def test_a_long_message_keeps_its_beginning_and_its_end() -> None:
    text = "begin " + "x" * 3000 + " end"
    assert len(shortened(text)) <= 1024
    assert shortened(text).startswith("begin")
    assert shortened(text).endswith("end")
