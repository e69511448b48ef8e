"""Fixtures of the chart's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools import programs


@pytest.fixture(params=["helm3", "helm4"], scope="session")
def helm_program(request: pytest.FixtureRequest) -> Path:
    """Helm of each major version."""
    return programs.helm3() if request.param == "helm3" else programs.helm4()


@pytest.fixture(scope="session")
def helm4_program() -> Path:
    """Helm 4, for what does not depend on the version."""
    return programs.helm4()
