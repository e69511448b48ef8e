"""The models of InferenceFleet: what they refuse, and how they come from and go to the API server."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from ridgeline.api.fleet import (
    Condition,
    FleetSpec,
    FleetStatus,
    InferenceFleet,
    Mode,
    Policy,
    Step,
    TopologyStatus,
    TransitionStatus,
)
from tests.api.specs import BOUNDED, FULL, MINIMAL, WITH_OTHER_FIELDS, changed, put, tries

NOW = "2026-01-02T03:04:05Z"

TRANSITION: dict[str, Any] = {
    "from": {"mode": "Mixed", "mixed": 2, "prefill": 0, "decode": 0},
    "to": {"mode": "Split", "mixed": 0, "prefill": 1, "decode": 1},
    "step": "Switch",
    "action": "Split",
    "reason": "DecodeStalled",
    "message": "why",
    "startTime": NOW,
    "stepTime": NOW,
}


@pytest.mark.parametrize(("path", "node"), BOUNDED, ids=[path for path, _ in BOUNDED])
def test_the_models_refuse_what_the_schema_refuses(path: str, node: dict[str, Any]) -> None:
    for value, accepted in tries(path, node):
        if node["type"] == "integer" and isinstance(value, str):
            continue  # Python reads "1" as a number, the API server never lets it come this far
        spec = changed(FULL, **WITH_OTHER_FIELDS.get(path, {}))
        put(spec, path, value)
        if accepted:
            FleetSpec.model_validate(spec)
        else:
            with pytest.raises(ValidationError):
                FleetSpec.model_validate(spec)


def test_a_minimal_spec_recommends_and_changes_nothing() -> None:
    spec = FleetSpec.model_validate(MINIMAL)
    assert spec.topology.policy is Policy.RECOMMEND
    assert spec.replicas == 1
    assert spec.engine.args == []


@pytest.mark.parametrize("path", ["", "model", "hardware", "engine", "topology", "rules", "router"])
def test_an_unknown_field_is_an_error_at_every_level(path: str) -> None:
    spec = changed(FULL, **{f"{path}__extra" if path else "extra": 1})
    with pytest.raises(ValidationError, match="extra"):
        FleetSpec.model_validate(spec)


def test_a_fleet_is_read_from_an_object_of_the_api_server() -> None:
    raw = {
        "metadata": {"namespace": "default", "name": "chat", "uid": "u", "generation": 3, "labels": {"any": "thing"}},
        "spec": MINIMAL,
        "status": {"observedGeneration": 2, "transition": TRANSITION},
    }
    fleet = InferenceFleet.from_object(raw)
    assert (fleet.namespace, fleet.name, fleet.generation, fleet.deleting) == ("default", "chat", 3, False)
    assert fleet.status.transition is not None
    assert fleet.status.transition.origin.mode is Mode.MIXED
    assert fleet.status.transition.step is Step.SWITCH


def test_a_fleet_without_status_or_on_its_way_out_is_read_too() -> None:
    metadata = {"namespace": "default", "name": "chat", "uid": "u", "deletionTimestamp": NOW}
    fleet = InferenceFleet.from_object({"metadata": metadata, "spec": MINIMAL})
    assert fleet.deleting
    assert fleet.status == FleetStatus()


def test_a_status_is_written_under_the_names_of_the_api_without_what_is_unset() -> None:
    status = FleetStatus(
        observedGeneration=1,
        topology=TopologyStatus(mode=Mode.MIXED, mixed=2, prefill=0, decode=0),
        transition=TransitionStatus.model_validate(TRANSITION),
        conditions=[Condition(type="Ready", status="Unknown", reason="Starting", lastTransitionTime=NOW)],
    )
    written = status.to_object()
    assert written["transition"] == TRANSITION
    assert written["topology"] == {"mode": "Mixed", "mixed": 2, "prefill": 0, "decode": 0}, "zero is a number"
    assert "lastDecision" not in written
    assert FleetStatus.model_validate(written) == status


@pytest.mark.parametrize("reason", ["", "not a word", "2Fast", "Ends_"])
def test_a_reason_is_one_word(reason: str) -> None:
    with pytest.raises(ValidationError):
        Condition(type="Ready", status="True", reason=reason, lastTransitionTime=NOW)


def test_values_never_change_in_place() -> None:
    spec = FleetSpec.model_validate(MINIMAL)
    with pytest.raises(ValidationError, match="frozen"):
        spec.replicas = 2  # type: ignore[misc]
