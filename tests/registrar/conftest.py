from __future__ import annotations

import pytest

from ridgeline.api.fleet import Engine, FleetSpec, Hardware, InferenceFleet, ModelSpec
from tests.registrar.stand_in_engine import MODEL


@pytest.fixture
def smg_fleet() -> InferenceFleet:
    """A fleet whose router runs with the rendered arguments."""
    spec = FleetSpec(
        model=ModelSpec(id=MODEL, servedName=MODEL),
        hardware=Hardware(accelerator="H100-SXM5-80GB"),
        engine=Engine(image="stand-in"),
    )
    return InferenceFleet(namespace="default", name="chat", uid="uid", generation=1, spec=spec)
