"""Reading what is stored: a fleet of any version, and what else its objects say. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from ridgeline.act.api import Object
from ridgeline.api.conditions import Verdict
from ridgeline.api.fleet import FleetStatus, InferenceFleet


def read_fleet(raw: Object) -> tuple[InferenceFleet | None, Verdict | None]:
    """A stored fleet, or why it cannot be understood. A status of another version is dropped: it is seen anew."""
    try:
        return InferenceFleet.from_object(raw), None
    except ValidationError:
        pass
    try:
        return InferenceFleet.from_object({**raw, "status": {}}), None
    except (ValidationError, KeyError) as error:
        return None, invalid_spec(error)


def stored_status(raw: Object) -> FleetStatus:
    """The status of a fleet whose spec may not be understood; one that is not understood either is empty."""
    try:
        return FleetStatus.model_validate(raw.get("status") or {})
    except ValidationError:
        return FleetStatus()


def invalid_spec(error: ValidationError | KeyError) -> Verdict:
    """The fields of a stored spec that this version does not understand."""
    if isinstance(error, KeyError):
        return Verdict("True", "InvalidSpec", f"the stored object lacks {error}")
    fields = "; ".join(f"`{'.'.join(('spec', *map(str, e['loc'])))}`: {e['msg']}" for e in error.errors()[:5])
    return Verdict(
        "True", "InvalidSpec", f"{fields}; correct the spec, or upgrade the operator if it is older than its CRD"
    )


def as_refusal(verdict: Verdict | None) -> Verdict | None:
    """What `validate` has against a spec, as the answer of Degraded."""
    return None if verdict is None else Verdict("True", verdict.reason, verdict.message)


def replica_failure(deployments: Sequence[Object]) -> str | None:
    """Why a Deployment of the fleet cannot create pods."""
    for deployment in deployments:
        for condition in (deployment.get("status") or {}).get("conditions") or ():
            if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
                return str(condition.get("message") or condition.get("reason") or "")
    return None
