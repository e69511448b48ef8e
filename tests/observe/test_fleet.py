"""One Snapshot of everything, and the link speed in it."""

from __future__ import annotations

import pytest

from ridgeline.api.fleet import FleetSpec, Hardware, Peaks
from ridgeline.decide.snapshot import Signals
from ridgeline.observe.engines import EngineProbe
from ridgeline.observe.fleet import assemble
from ridgeline.observe.links import link_bytes_per_second

SPEC = FleetSpec.model_validate(
    {
        "model": {"id": "m", "servedName": "m"},
        "hardware": {"accelerator": "H100-SXM5-80GB", "perEngine": 4},
        "engine": {"image": "vllm"},
        "replicas": 2,
    }
)


def peaks(link: int | None) -> Peaks:
    return Peaks(computeTeraflops=1, memoryBandwidthGigabytesPerSecond=1, linkGigabytesPerSecond=link)


@pytest.mark.parametrize(
    ("hardware", "expected"),
    [
        pytest.param(Hardware(accelerator="H100-SXM5-80GB"), 50e9, id="a known accelerator"),
        pytest.param(Hardware(accelerator="H100-SXM5-80GB", perEngine=4), 200e9, id="four GPUs move at once"),
        pytest.param(Hardware(accelerator="H100-SXM5-80GB", peaks=peaks(12)), 12e9, id="what the user says counts"),
        pytest.param(Hardware(accelerator="H100-SXM5-80GB", peaks=peaks(None)), 50e9, id="peaks without a link"),
        pytest.param(Hardware(accelerator="TPU-v9", peaks=peaks(None)), None, id="nobody knows"),
        pytest.param(Hardware(accelerator="TPU-v9", perEngine=2, peaks=peaks(10)), 20e9, id="only the user knows"),
    ],
)
def test_link_between_engines(hardware: Hardware, expected: float | None) -> None:
    assert link_bytes_per_second(hardware) == expected


def pod(name: str) -> dict[str, object]:
    return {"metadata": {"name": name}, "status": {}}


def test_equal_worlds_give_equal_snapshots() -> None:
    signals = Signals(sampled_at=1.0, engines_reporting=1)
    probes = {"b": EngineProbe(running_requests=5)}

    def of(names: str) -> object:
        engine_pods = [pod(name) for name in names]
        return assemble(
            SPEC, engine_pods=engine_pods, probes=probes, routers=(), signals=signals, rules_window_seconds=30.0
        )

    assert of("ab") == of("ba")
    snapshot = assemble(
        SPEC, engine_pods=[pod("b"), pod("a")], probes=probes, routers=(), signals=signals, rules_window_seconds=30.0
    )
    assert [(e.pod, e.running_requests) for e in snapshot.engines] == [("a", None), ("b", 5)]
    assert snapshot.signals is signals
    assert snapshot.link_bytes_per_second == 200e9
    assert snapshot.rules_window_seconds == 30.0
