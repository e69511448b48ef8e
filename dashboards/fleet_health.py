"""Rows on whether the numbers can be believed."""

from __future__ import annotations

from dashboards.panels import (
    BYTES,
    BYTES_PER_SECOND,
    COUNT,
    FLOPS_PER_SECOND,
    PER_SECOND,
    RATIO,
    SECONDS,
    TOKENS,
    Query,
    Row,
    graph,
    number,
    rows_of,
    states,
)
from dashboards.queries import RATE, of_gpus, rate, series

GPUS = 'namespace="$namespace"'
UNIT = "node, gpu, gpu_instance, uuid, namespace, pod"
OF_THESE_NODES = f"and on (node) max by (node) ({of_gpus(f'ridgeline_gpu_state{{{GPUS}}}')})"


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


def health() -> Row:
    """Whether the numbers above can be believed."""
    return Row(
        "Exporters and operator",
        (
            (
                states(
                    "Exporter of each engine",
                    "An exporter that fails switches itself off and leaves its engine alone.",
                    Query(f"min by (pod) ({series('ridgeline_engine_exporter_up')})", "{{pod}}"),
                    {"0": ("off", "red"), "1": ("up", "green")},
                ),
                states(
                    "Scrapes",
                    "Whether Prometheus reaches what it scrapes of this fleet.",
                    Query(f"min by (job, pod) ({series('up')})", "{{job}} {{pod}}"),
                    {"0": ("down", "red"), "1": ("up", "green")},
                ),
                graph(
                    "Exporter errors",
                    "Errors inside exporters. None reaches a request.",
                    PER_SECOND,
                    Query(f"sum by (pod) ({rate('ridgeline_engine_exporter_errors_total')})", "{{pod}}"),
                ),
                graph(
                    "Cost of the exporter",
                    "Share of time that the exporter takes on the engine's loop.",
                    RATIO,
                    Query(f"sum by (pod) ({rate('ridgeline_engine_exporter_seconds_total')})", "{{pod}}"),
                ),
            ),
            (
                graph(
                    "Age of samples",
                    "Time since the engine that Prometheus heard from longest ago.",
                    SECONDS,
                    Query(f"time() - {series('fleet:ridgeline_sample_timestamp_seconds')}", "oldest engine"),
                ),
                graph(
                    "Learned step model",
                    "Seconds of a step: fixed, and more for each decode, each KV token read and each prompt token.",
                    SECONDS,
                    Query(series("fleet:ridgeline_step_model:seconds"), "{{term}}"),
                    logarithmic=True,
                ),
                graph(
                    "Samples behind the decode baseline",
                    "Decode-only steps from which an engine knows how long a step without prefill takes.",
                    COUNT,
                    Query(series("ridgeline_engine_decode_baseline_samples"), "{{pod}}"),
                ),
                rows_of(
                    "Engines",
                    "What each engine's numbers are computed from.",
                    COUNT,
                    Query(series("ridgeline_engine_info")),
                    {
                        "pod": "Engine",
                        "accelerator": "Accelerator",
                        "model": "Model",
                        "dtype": "Weights",
                        "kv_dtype": "KV cache",
                        "vllm_version": "vLLM",
                        "coverage": "Covers",
                    },
                ),
            ),
            (
                number(
                    "Weights",
                    "Bytes of weights that an engine reads in a step.",
                    BYTES,
                    Query(series("fleet:ridgeline_weight_bytes")),
                ),
                number(
                    "KV per token",
                    "Bytes of KV cache of one token.",
                    BYTES,
                    Query(series("fleet:ridgeline_kv_bytes_per_token")),
                ),
                number(
                    "KV capacity",
                    "Tokens that the KV cache of one engine holds.",
                    TOKENS,
                    Query(series("fleet:ridgeline_kv_capacity_tokens")),
                ),
                number(
                    "FLOPs per token",
                    "Linear FLOPs of one token, attention scores left out.",
                    COUNT,
                    Query(series("fleet:ridgeline_flops_per_token")),
                ),
                number("Peak compute", "Of one engine.", FLOPS_PER_SECOND, Query(series("fleet:ridgeline_peak_flops"))),
                number(
                    "Peak bandwidth",
                    "Of one engine.",
                    BYTES_PER_SECOND,
                    Query(series("fleet:ridgeline_peak_memory_bytes_per_second")),
                ),
            ),
            (
                graph(
                    "Operator leads",
                    "1 for the replica that leads; 0 everywhere means that nothing adapts the fleets.",
                    COUNT,
                    Query("ridgeline_leader", "{{pod}}"),
                    steps=True,
                    most=1,
                ),
                graph(
                    "Reconcile time",
                    "How long the operator takes for one pass over one fleet.",
                    SECONDS,
                    Query(
                        f"histogram_quantile(0.5, sum by (le) (rate(ridgeline_reconcile_seconds_bucket[{RATE}])))",
                        "p50",
                    ),
                    Query(
                        f"histogram_quantile(0.95, sum by (le) (rate(ridgeline_reconcile_seconds_bucket[{RATE}])))",
                        "p95",
                    ),
                ),
                graph(
                    "Reconcile errors",
                    "Passes that failed and are tried again.",
                    PER_SECOND,
                    Query(f"sum(rate(ridgeline_reconcile_errors_total[{RATE}]))", "errors"),
                ),
            ),
        ),
        height=7,
    )
