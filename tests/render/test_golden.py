"""Whole manifests, as they are applied: what a reviewer reads when the renderer changes.

RIDGELINE_UPDATE_GOLDENS=1 pytest tests/render/test_golden.py     # then read the diff
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from ridgeline.api.fleet import InferenceFleet
from ridgeline.render import render_fleet
from tests.render.fleets import EXTERNAL, FULL, MINIMAL

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize(
    ("name", "fleet", "monitors"),
    [
        pytest.param("minimal", MINIMAL, False, id="minimal"),
        pytest.param("full", FULL, True, id="full"),
        pytest.param("external", EXTERNAL, False, id="external"),
    ],
)
def test_manifests_are_those_of_the_golden_file(name: str, fleet: InferenceFleet, monitors: bool) -> None:
    rendered = render_fleet(fleet, operator_image="ghcr.io/example/ridgeline:0.1.0", monitors=monitors)
    text = yaml.safe_dump_all(rendered, sort_keys=False, width=120)
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("RIDGELINE_UPDATE_GOLDENS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def test_the_same_fleet_renders_the_same_and_shares_nothing() -> None:
    first = render_fleet(FULL, operator_image="image", monitors=True)
    second = render_fleet(FULL, operator_image="image", monitors=True)
    assert yaml.safe_dump_all(first) == yaml.safe_dump_all(second)
    assert "&id" not in yaml.safe_dump_all(first)
    first[0]["metadata"]["labels"].clear()
    assert second[0]["metadata"]["labels"]
