"""Rows on what GPUs measured: beside the roofline model, and by themselves."""

from __future__ import annotations

from dashboards.panels import BYTES_PER_SECOND, COUNT, PER_SECOND, RATIO, Query, Row, graph, rows_of, states
from dashboards.queries import RATE, of_gpus, series

GPUS = 'namespace="$namespace"'
UNIT = "node, gpu, gpu_instance, uuid, namespace, pod"
OF_THESE_NODES = f"and on (node) max by (node) ({of_gpus(f'ridgeline_gpu_state{{{GPUS}}}')})"


def measured() -> Row:
    """Whether the model is right."""
    return Row(
        "Measured and modelled",
        (
            (
                graph(
                    "Memory bandwidth, measured and modelled",
                    "What GPUs measured of their memory (solid) beside what the model says of their steps (dashed)."
                    " Empty without a GPU exporter.",
                    RATIO,
                    Query(series("role:ridgeline_measured_dram_active:ratio"), "{{role}} engines, measured"),
                    Query(
                        f"sum by (role) ({series('role:ridgeline_memory_bandwidth_utilization:ratio')})",
                        "{{role}} engines, modelled",
                        dashed=True,
                    ),
                    most=1,
                ),
                graph(
                    "Model error",
                    "Measured memory traffic against modelled, of engines that are busy: 0 is a model that is right,"
                    " above 0 GPUs move more than it says.",
                    RATIO,
                    Query(series("fleet:ridgeline_model_error:ratio"), "fleet"),
                    Query(series("engine:ridgeline_model_error:ratio"), "{{pod}}"),
                    signed=True,
                ),
                graph(
                    "Memory bandwidth of each engine, measured and modelled",
                    "The mean over an engine's GPUs (solid) beside the model (dashed), over the rules' window.",
                    RATIO,
                    Query(series("engine:ridgeline_measured_dram_active:ratio"), "{{pod}} measured"),
                    Query(
                        series("engine:ridgeline_memory_bandwidth_utilization:ratio"), "{{pod}} modelled", dashed=True
                    ),
                    most=1,
                ),
                graph(
                    "Tensor cores, measured",
                    "Share of time in which tensor cores worked. It is no share of the peak: a tensor core that works on"
                    " a small matrix works too.",
                    RATIO,
                    Query(series("role:ridgeline_measured_tensor_active:ratio"), "{{role}} engines"),
                    Query(series("engine:ridgeline_measured_tensor_active:ratio"), "{{pod}}"),
                    most=1,
                ),
            ),
        ),
    )


def gpus() -> Row:
    """The GPUs of the fleet, by their own counters."""
    state, info = f"(ridgeline_gpu_state{{{GPUS}}} == 1)", f"ridgeline_gpu_info{{{GPUS}}}"
    known = f"{state} * on ({UNIT}) group_left (model, driver_version) {info}"
    links = f"rate(ridgeline_gpu_nvlink_bytes_total{{{GPUS}}}[{RATE}])"
    return Row(
        "GPUs",
        (
            (
                rows_of(
                    "GPUs of the fleet",
                    "What each GPU can tell. Only one in state measured has ratios; a GPU without GPM is not an idle one.",
                    COUNT,
                    Query(of_gpus(f"({known})")),
                    {
                        "pod": "Engine",
                        "node": "Node",
                        "gpu": "GPU",
                        "gpu_instance": "MIG",
                        "model": "Model",
                        "driver_version": "Driver",
                        "state": "State",
                    },
                ),
                graph(
                    "Busy SMs",
                    "Share of an engine's SMs that were busy, over ten seconds. Busy SMs may still wait for memory.",
                    RATIO,
                    Query(f"avg by (pod) ({of_gpus(f'ridgeline_gpu_sm_active_ratio{{{GPUS}}}')})", "{{pod}}"),
                    most=1,
                ),
                graph(
                    "NVLink",
                    "Payload between the GPUs of each engine: tensor parallelism, and KV caches within a node.",
                    BYTES_PER_SECOND,
                    Query(f"sum by (pod, direction) ({of_gpus(links)})", "{{pod}} {{direction}}"),
                ),
            ),
            (
                states(
                    "GPU exporter of each node",
                    "Whether NVML answers on the nodes that hold this fleet's GPUs.",
                    Query(f"min by (node) (ridgeline_gpu_exporter_up) {OF_THESE_NODES}", "{{node}}"),
                    {"0": ("down", "red"), "1": ("up", "green")},
                ),
                states(
                    "Pods of GPUs",
                    "Whether the kubelet of each node says which pod holds which GPU.",
                    Query(f"min by (node) (ridgeline_gpu_pod_resources_up) {OF_THESE_NODES}", "{{node}}"),
                    {"0": ("unknown", "red"), "1": ("known", "green")},
                ),
                graph(
                    "GPU exporter errors",
                    "Failures of the driver and of the kubelet that the exporters met.",
                    PER_SECOND,
                    Query(
                        f"sum by (node, source) (rate(ridgeline_gpu_exporter_errors_total[{RATE}])) {OF_THESE_NODES}",
                        "{{node}} {{source}}",
                    ),
                ),
            ),
        ),
        height=7,
    )
