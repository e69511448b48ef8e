"""Fixtures of the GPU exporter's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.stand_in import VARIABLE, StandIn, compile_stand_in, load


@pytest.fixture(scope="session")
def stand_in_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for libnvidia-ml.so.1, compiled."""
    return compile_stand_in(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def stand_in(stand_in_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """NVML of this process, played by the stand-in. Sample buffers must all have been given back in the end."""
    load(stand_in_library)
    player = StandIn(stand_in_library, tmp_path / "nvml")
    monkeypatch.setenv(VARIABLE, str(player.file))
    yield player
    assert player.live_samples == 0
