"""What a pod object says: ready, ended, waiting, and its last words."""

from __future__ import annotations

from typing import Any

import pytest

from ridgeline.api.fleet import Role
from ridgeline.api.times import from_rfc3339
from ridgeline.decide.snapshot import EngineState
from ridgeline.observe import pods
from ridgeline.observe.engines import EngineProbe, engine_state, role_of


def pod(
    *,
    name: str = "chat-engines-1",
    labels: dict[str, str] | None = None,
    deleting: bool = False,
    conditions: dict[str, tuple[str, str, str]] | None = None,
    containers: list[dict[str, Any]] | None = None,
    init_containers: list[dict[str, Any]] | None = None,
    **status: Any,
) -> dict[str, Any]:
    """A pod as the API server has it; conditions are type → (status, reason, message)."""
    metadata: dict[str, Any] = {"name": name, "namespace": "default", "labels": labels or {}}
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {
        "metadata": metadata,
        "status": {
            "conditions": [
                {"type": kind, "status": status, "reason": reason, "message": message}
                for kind, (status, reason, message) in (conditions or {}).items()
            ],
            "containerStatuses": containers or [],
            "initContainerStatuses": init_containers or [],
            **status,
        },
    }


READY = {"Ready": ("True", "", "")}
NO_GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


def waiting(reason: str, message: str = "", **rest: Any) -> dict[str, Any]:
    return {"name": "engine", "state": {"waiting": {"reason": reason, "message": message}}, **rest}


def ended(reason: str, code: int, message: str = "", when: str = "state") -> dict[str, Any]:
    return {"name": "engine", when: {"terminated": {"reason": reason, "exitCode": code, "message": message}}}


@pytest.mark.parametrize(
    ("raw", "ready", "has_ended", "unschedulable", "reason", "message"),
    [
        pytest.param(pod(conditions=READY), True, False, False, None, None, id="ready"),
        pytest.param({"metadata": {"name": "x"}}, False, False, False, None, None, id="just made, without a status"),
        pytest.param(pod(conditions=READY, deleting=True), True, True, False, None, None, id="being deleted"),
        pytest.param(
            pod(phase="Failed", reason="Evicted", message="The node was low on memory."),
            False,
            True,
            False,
            None,
            "The node was low on memory.",
            id="evicted",
        ),
        pytest.param(
            pod(conditions={"PodScheduled": ("False", "Unschedulable", NO_GPU)}),
            False,
            False,
            True,
            None,
            NO_GPU,
            id="no node takes it",
        ),
        pytest.param(
            pod(containers=[waiting("ContainerCreating")]), False, False, False, None, None, id="starting is no trouble"
        ),
        pytest.param(
            pod(containers=[waiting("ImagePullBackOff", "Back-off pulling image x")]),
            False,
            False,
            False,
            "ImagePullBackOff",
            "Back-off pulling image x",
            id="an image that is not there",
        ),
        pytest.param(
            pod(init_containers=[waiting("ErrImagePull", "no such image")], containers=[waiting("PodInitializing")]),
            False,
            False,
            False,
            "ErrImagePull",
            "no such image",
            id="an init container that waits",
        ),
        pytest.param(
            pod(
                containers=[
                    waiting("CrashLoopBackOff", "back-off 40s")
                    | ended("Error", 1, "Traceback\n\nValueError: no KV cache", when="lastState")
                ]
            ),
            False,
            False,
            False,
            "CrashLoopBackOff",
            "engine ended with Error (exit code 1): Traceback\nValueError: no KV cache",
            id="a crash loop tells the engine's last words rather than the back-off",
        ),
        pytest.param(
            pod(containers=[ended("OOMKilled", 137, when="lastState")]),
            False,
            False,
            False,
            None,
            "engine ended with OOMKilled (exit code 137)",
            id="out of memory without a word",
        ),
        pytest.param(
            pod(conditions=READY, containers=[ended("Error", 1, "old news", when="lastState")]),
            True,
            False,
            False,
            None,
            None,
            id="a crash that is over",
        ),
        pytest.param(
            pod(init_containers=[ended("Completed", 0)]), False, False, False, None, None, id="an init container done"
        ),
    ],
)
def test_what_a_pod_says(
    raw: dict[str, Any], ready: bool, has_ended: bool, unschedulable: bool, reason: str | None, message: str | None
) -> None:
    assert pods.is_ready(raw) is ready
    assert pods.has_ended(raw) is has_ended
    assert pods.is_unschedulable(raw) is unschedulable
    assert pods.waiting_reason(raw) == reason
    assert pods.message(raw) == message


@pytest.mark.parametrize(
    ("since", "made", "status", "seconds"),
    [
        pytest.param("2026-01-01T00:01:00Z", "2026-01-01T00:00:00Z", "False", 60.0, id="it was ready, and died"),
        pytest.param("2026-01-01T00:01:00Z", "2026-01-01T00:00:00Z", "True", None, id="it is ready"),
        pytest.param(None, "2026-01-01T00:00:00Z", "False", 0.0, id="no node has taken it yet"),
        pytest.param(None, None, "False", None, id="nobody knows"),
    ],
)
def test_since_when_a_pod_is_not_ready(since: str | None, made: str | None, status: str, seconds: float | None) -> None:
    raw = pod(conditions={"Ready": (status, "", "")})
    raw["metadata"]["creationTimestamp"] = made
    raw["status"]["conditions"][0]["lastTransitionTime"] = since
    found = engine_state(raw, None).unready_since
    assert found == (None if seconds is None else from_rfc3339("2026-01-01T00:00:00Z") + seconds)


def test_of_a_long_traceback_the_end_is_kept() -> None:
    words = "\n".join(f"line {n} " + "x" * 150 for n in range(40)) + "\nRuntimeError: the cause"
    text = pods.message(pod(containers=[ended("Error", 1, words)]))
    assert text is not None
    assert text.startswith("engine ended with Error (exit code 1)")
    assert text.endswith("RuntimeError: the cause")
    assert len(text) <= 801


@pytest.mark.parametrize(
    ("labels", "role"),
    [
        pytest.param({}, Role.MIXED, id="no label"),
        pytest.param({"ridgeline.dev/role": "prefill"}, Role.PREFILL, id="prefill"),
        pytest.param({"ridgeline.dev/role": "decode"}, Role.DECODE, id="decode"),
        pytest.param({"ridgeline.dev/role": "encode"}, Role.MIXED, id="a role of another version"),
    ],
)
def test_role_by_label(labels: dict[str, str], role: Role) -> None:
    assert role_of(pod(labels=labels)) is role


def test_an_engine_is_its_pod_and_its_answers() -> None:
    raw = pod(
        labels={"ridgeline.dev/role": "decode"},
        conditions=READY,
        podIP="10.0.0.7",
        containers=[{"name": "engine", "restartCount": 2}],
        init_containers=[{"name": "exporter", "restartCount": 1}],
    )
    probe = EngineProbe(4, 1, 3, limit_tokens=512, maximum_tokens=2048, kv_bytes_received=1e6)
    assert engine_state(raw, probe) == EngineState(
        pod="chat-engines-1",
        address="10.0.0.7",
        role=Role.DECODE,
        ready=True,
        restarts=3,
        running_requests=4,
        waiting_requests=1,
        decoding_requests=3,
        limit_tokens=512,
        maximum_tokens=2048,
        kv_bytes_received=1e6,
    )


def test_an_engine_that_was_not_asked_has_no_numbers() -> None:
    state = engine_state(pod(), None)
    assert (state.running_requests, state.limit_tokens, state.kv_bytes_received, state.message) == (None,) * 4


def test_a_ready_engine_whose_exporter_is_silent_says_so() -> None:
    state = engine_state(pod(conditions=READY), EngineProbe(problem="GET /v1/state answers 401"))
    assert state.message == "GET /v1/state answers 401"
