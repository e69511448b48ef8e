"""What the exporter publishes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ridgeline_exporters.gpu.monitor import Monitor
from ridgeline_exporters.gpu.ownership import Ownership
from ridgeline_exporters.gpu.units import State, holder
from ridgeline_exporters.metric_family import Family, Sample

PREFIX = "ridgeline_gpu_"
UNIT = ("node", "gpu", "gpu_instance", "uuid", "namespace", "pod")
"""Labels of every series of a unit. `gpu_instance` is empty for a whole GPU, the pod where no one pod holds the unit."""
SOURCES = ("nvml", "pod_resources")


FAMILIES: tuple[Family, ...] = (
    Family(
        "dram_active_ratio",
        "gauge",
        "Memory bandwidth used, against what the memory can do at most.",
        UNIT,
        formula="NVML's GPM DRAM_BW_UTIL, mean over the last 10 s of samples taken each second",
    ),
    Family(
        "tensor_active_ratio",
        "gauge",
        "Share of time in which tensor cores worked, mean over the SMs.",
        UNIT,
        formula="GPM ANY_TENSOR_UTIL, as above",
    ),
    Family("sm_active_ratio", "gauge", "Share of SMs that were busy.", UNIT, formula="GPM SM_UTIL, as above"),
    Family(
        "nvlink_bytes_total",
        "counter",
        "Payload over all NVLinks of a GPU.",
        (*UNIT, "direction"),
        caveat="Absent without NVLink, and for GPU instances.",
    ),
    Family(
        "state",
        "gauge",
        "1 for the state that the unit is in, 0 for the others.",
        (*UNIT, "state"),
        caveat="What cannot be measured has no ratio at all; the state says why.",
    ),
    Family("info", "gauge", "1; what the unit is.", (*UNIT, "model", "driver_version")),
    Family("exporter_up", "gauge", "1 while NVML answers, 0 otherwise.", ("node",)),
    Family("pod_resources_up", "gauge", "1 while the kubelet says which pod holds which GPU.", ("node",)),
    Family("exporter_errors_total", "counter", "Failures of what the exporter reads.", ("node", "source")),
)


class GpuCollector(Collector):
    """Publishes one node's GPUs.

    Args:
        node: name of the node.
        monitor: what is known of the units.
        ownership: who holds them.
    """

    def __init__(self, node: str, monitor: Monitor, ownership: Ownership) -> None:
        self._node = node
        self._monitor = monitor
        self._ownership = ownership

    def describe(self) -> Iterable[Metric]:
        """Nothing: spares a collection at registration."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Every family, with nothing for what is not known."""
        samples = self._samples()
        for family in FAMILIES:
            yield family.metric(PREFIX, samples[family.name])

    def _samples(self) -> dict[str, list[Sample]]:
        samples: dict[str, list[Sample]] = {family.name: [] for family in FAMILIES}
        holders, version = self._ownership.holders(), self._monitor.driver_version
        for reading in self._monitor.readings():
            unit, pod = reading.unit, holder(reading.unit, holders)
            instance = "" if unit.gpu_instance is None else str(unit.gpu_instance)
            owner = (pod.namespace, pod.name) if pod else ("", "")
            labels = (self._node, str(unit.gpu), instance, unit.uuid, *owner)
            for name in ("dram", "tensor", "sm"):
                if (value := getattr(reading, name)) is not None:
                    samples[f"{name}_active_ratio"].append((labels, value))
            if reading.links:
                samples["nvlink_bytes_total"] += [
                    ((*labels, "received"), float(reading.links.received_bytes)),
                    ((*labels, "transmitted"), float(reading.links.transmitted_bytes)),
                ]
            samples["state"] += [((*labels, state), float(state is reading.state)) for state in State]
            if unit.model:
                samples["info"].append(((*labels, unit.model, version), 1.0))
        errors = (self._monitor.errors, self._ownership.errors)
        samples["exporter_up"].append(((self._node,), float(self._monitor.up)))
        samples["pod_resources_up"].append(((self._node,), float(self._ownership.up)))
        samples["exporter_errors_total"] += [
            ((self._node, source), float(count)) for source, count in zip(SOURCES, errors, strict=True)
        ]
        return samples
