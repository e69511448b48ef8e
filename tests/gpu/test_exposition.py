from __future__ import annotations

import subprocess
from collections.abc import Iterator
from threading import Event

import pynvml
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ridgeline_exporters.gpu.metrics import FAMILIES, PREFIX, GpuCollector
from ridgeline_exporters.gpu.monitor import Monitor
from ridgeline_exporters.gpu.nvml import Driver
from ridgeline_exporters.gpu.ownership import Ownership
from ridgeline_exporters.gpu.units import Holders, Pod, State
from tests.gpu.stand_in import StandIn
from tests.tools.programs import promtool

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Node:
    """A node with GPUs that the stand-in plays, and a kubelet that always answers the same."""

    def __init__(self, stand_in: StandIn, holders: Holders) -> None:
        self.stand_in = stand_in
        self.now = 0.0
        self.monitor = Monitor(Driver(), lambda: self.now)
        ownership = Ownership(self, lambda: self.now)
        self._holders = holders
        ownership.ask()
        self.registry = CollectorRegistry()
        self.registry.register(GpuCollector("node-1", self.monitor, ownership))

    def holders(self) -> Holders:
        return self._holders

    def round(self, **shares: float) -> None:
        self.now += 1.0
        self.stand_in.work(1.0, **shares)
        self.monitor.round()

    def text(self) -> str:
        return generate_latest(self.registry).decode()

    def series(self, name: str) -> dict[frozenset[tuple[str, str]], float]:
        samples = [s for family in text_string_to_metric_families(self.text()) for s in family.samples]
        return {frozenset(s.labels.items()): s.value for s in samples if s.name == PREFIX + name}


@pytest.fixture
def node(stand_in: StandIn) -> Iterator[Node]:
    stand_in.set(gpu0__nvlink=1, gpu0__received=2, gpu0__transmitted=1)
    node = Node(stand_in, {"GPU-0": {Pod("chat", "engines-a")}})
    yield node
    stop = Event()
    stop.set()
    node.monitor.run(stop)


UNIT = {
    "node": "node-1",
    "gpu": "0",
    "gpu_instance": "",
    "uuid": "GPU-0",
    "namespace": "chat",
    "pod": "engines-a",
}


def labelled(**labels: str) -> frozenset[tuple[str, str]]:
    return frozenset((UNIT | labels).items())


def test_values_carry_the_gpu_and_the_pod_that_holds_it(node: Node) -> None:
    node.round()
    node.round(dram=0.5, tensor=0.25, sm=1.0)
    assert node.series("dram_active_ratio") == {labelled(): 0.5}
    assert node.series("tensor_active_ratio") == {labelled(): 0.25}
    assert node.series("sm_active_ratio") == {labelled(): 1.0}
    assert node.series("nvlink_bytes_total") == {
        labelled(direction="received"): 2048.0,
        labelled(direction="transmitted"): 1024.0,
    }
    assert node.series("info") == {labelled(model="NVIDIA stand-in", driver_version="580.00.stand-in"): 1.0}


def test_exactly_one_state_is_1(node: Node) -> None:
    node.round()
    states = node.series("state")
    assert set(states) == {labelled(state=state) for state in State}
    assert {labels for labels, value in states.items() if value} == {labelled(state="measured")}


def test_the_values_of_a_lost_gpu_are_gone_and_its_pod_is_still_named(node: Node) -> None:
    node.round()
    node.round(dram=0.5)
    node.stand_in.set(gpu0__sample=pynvml.NVML_ERROR_GPU_IS_LOST)
    node.round(dram=0.5)
    for name in ("dram_active_ratio", "tensor_active_ratio", "sm_active_ratio", "nvlink_bytes_total"):
        assert node.series(name) == {}
    assert node.series("state")[labelled(state="lost")] == 1.0
    errors = node.series("exporter_errors_total")
    assert errors[frozenset({"node": "node-1", "source": "nvml"}.items())] == 1.0


def test_a_gpu_without_gpm_has_no_ratio_of_zero(node: Node) -> None:
    node.stand_in.set(gpu0__no_gpm=1)
    node.round()
    node.round()
    assert node.series("dram_active_ratio") == {}
    assert node.series("state")[labelled(state="no_gpm")] == 1.0
    assert node.series("exporter_up") == {frozenset({("node", "node-1")}): 1.0}


def test_a_gpu_that_nobody_holds_has_empty_labels(stand_in: StandIn) -> None:
    node = Node(stand_in, {})
    node.round()
    assert node.series("state")[labelled(state="measured", namespace="", pod="")] == 1.0
    node.monitor._close()


def test_without_a_driver_only_the_exporter_speaks(stand_in: StandIn) -> None:
    stand_in.set(init=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    node = Node(stand_in, {})
    node.round()
    here = frozenset({("node", "node-1")})
    assert node.series("exporter_up") == {here: 0.0}
    assert node.series("pod_resources_up") == {here: 1.0}
    assert node.series("state") == {}


def test_every_family_is_exposed_with_its_type_labels_and_help(node: Node) -> None:
    node.round()
    node.round(dram=0.5, tensor=0.5, sm=0.5)
    found = {family.name: family for family in text_string_to_metric_families(node.text())}
    for family in FAMILIES:
        exposed = found.pop(PREFIX + family.name.removesuffix("_total"))
        assert (exposed.type, exposed.documentation) == (family.kind, family.help)
        assert exposed.samples
        assert all(set(sample.labels) == set(family.labels) for sample in exposed.samples)
    assert not found


def test_promtool_finds_nothing_to_correct(node: Node) -> None:
    node.round()
    node.round(dram=0.5)
    check = [str(promtool()), "check", "metrics"]
    done = subprocess.run(check, input=node.text(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr + done.stdout
