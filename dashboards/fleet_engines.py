"""Rows on the work of the engines: roofline, stall, KV transfer, tokens."""

from __future__ import annotations

from dashboards.panels import (
    BYTES_PER_SECOND,
    COUNT,
    FLOPS_PER_BYTE,
    FLOPS_PER_SECOND,
    PER_SECOND,
    RATIO,
    REQUESTS_PER_SECOND,
    SECONDS,
    TOKENS_PER_SECOND,
    Query,
    Row,
    graph,
)
from dashboards.queries import quantile, rate, series


def roofline() -> Row:
    """On which side of the ridge each phase is."""
    ridge = Query(series("fleet:ridgeline_ridge_flops_per_byte"), "ridge", dashed=True)
    return Row(
        "Roofline",
        (
            (
                graph(
                    "Arithmetic intensity of each phase",
                    "FLOPs per byte moved. Below the ridge a phase waits for memory, above it for the tensor cores.",
                    FLOPS_PER_BYTE,
                    Query(series("fleet:ridgeline_arithmetic_intensity:flops_per_byte"), "{{phase}}"),
                    ridge,
                    logarithmic=True,
                ),
                graph(
                    "Arithmetic intensity by role",
                    "The same for the engines of each role.",
                    FLOPS_PER_BYTE,
                    Query(series("role:ridgeline_arithmetic_intensity:flops_per_byte"), "{{role}} engines, {{phase}}"),
                    ridge,
                    logarithmic=True,
                ),
                graph(
                    "Arithmetic intensity of each engine",
                    "Over the last ten seconds, as the engine itself says.",
                    FLOPS_PER_BYTE,
                    Query(series("ridgeline_engine_arithmetic_intensity_flops_per_byte"), "{{pod}} {{phase}}"),
                    Query(f"min({series('ridgeline_engine_ridge_flops_per_byte')})", "ridge", dashed=True),
                    logarithmic=True,
                ),
            ),
            (
                graph(
                    "Memory bandwidth used",
                    "Bytes that each phase moves, against the peak of its engines. Idle time counts.",
                    RATIO,
                    Query(series("fleet:ridgeline_memory_bandwidth_utilization:ratio"), "{{phase}}"),
                    stacked=True,
                    most=1,
                ),
                graph(
                    "Compute used",
                    "FLOPs of each phase, against the peak of its engines. Idle time counts.",
                    RATIO,
                    Query(series("fleet:ridgeline_compute_utilization:ratio"), "{{phase}}"),
                    stacked=True,
                    most=1,
                ),
                graph(
                    "Busy time",
                    "Share of time in steps, divided between phases. High on mixed engines long before they are full.",
                    RATIO,
                    Query(series("fleet:ridgeline_busy:ratio"), "{{phase}}"),
                    stacked=True,
                    most=1,
                ),
            ),
            (
                graph(
                    "Memory bandwidth used by role",
                    "Mean over the engines of each role.",
                    RATIO,
                    Query(series("role:ridgeline_memory_bandwidth_utilization:ratio"), "{{role}} engines, {{phase}}"),
                    most=1,
                ),
                graph(
                    "Compute used by role",
                    "Mean over the engines of each role.",
                    RATIO,
                    Query(series("role:ridgeline_compute_utilization:ratio"), "{{role}} engines, {{phase}}"),
                    most=1,
                ),
                graph(
                    "Busy time by role",
                    "Mean over the engines of each role. Prefill engines should hardly decode.",
                    RATIO,
                    Query(series("role:ridgeline_busy:ratio"), "{{role}} engines, {{phase}}"),
                    most=1,
                ),
            ),
            (
                graph(
                    "Memory bandwidth of each engine",
                    "Over the last ten seconds, as the engine itself says.",
                    RATIO,
                    Query(series("ridgeline_engine_memory_bandwidth_utilization_ratio"), "{{pod}} {{phase}}"),
                    most=1,
                ),
                graph(
                    "Compute of each engine",
                    "Over the last ten seconds, as the engine itself says.",
                    RATIO,
                    Query(series("ridgeline_engine_compute_utilization_ratio"), "{{pod}} {{phase}}"),
                    most=1,
                ),
                graph(
                    "Memory traffic by kind",
                    "Where the bytes go. Weights dominate small batches, reading the KV cache long contexts.",
                    BYTES_PER_SECOND,
                    Query(f"sum by (kind) ({rate('ridgeline_engine_memory_bytes_total')})", "{{kind}}"),
                    stacked=True,
                ),
            ),
        ),
    )


def stall() -> Row:
    """What prefills cost decodes."""
    stalled, decoded = (
        rate("ridgeline_engine_decode_stall_seconds_total"),
        rate("ridgeline_engine_decode_seconds_total"),
    )
    return Row(
        "What prefills cost decodes",
        (
            (
                graph(
                    "Share of decode time lost",
                    "Time that prefills took from steps that hold decodes.",
                    RATIO,
                    Query(series("fleet:ridgeline_decode_stall:ratio"), "fleet"),
                    Query(f"sum by (pod) ({stalled}) / (sum by (pod) ({decoded}) > 0)", "{{pod}}"),
                ),
                graph(
                    "Stall of a step",
                    "How long a step that also prefills keeps its decodes waiting.",
                    SECONDS,
                    Query(quantile(0.5, "ridgeline_engine_decode_stall_seconds"), "p50"),
                    Query(quantile(0.99, "ridgeline_engine_decode_stall_seconds"), "p99"),
                ),
                graph(
                    "Sequences stalled",
                    "Sequence-seconds lost per second: how many sequences stand still at a time.",
                    COUNT,
                    Query(f"sum({rate('ridgeline_engine_decode_stall_sequence_seconds_total')})", "sequences"),
                ),
                graph(
                    "Step time",
                    "Interval between completions of steps, p50 and p95, by what a step holds.",
                    SECONDS,
                    Query(quantile(0.5, "ridgeline_engine_step_seconds", "kind"), "{{kind}} p50"),
                    Query(quantile(0.95, "ridgeline_engine_step_seconds", "kind"), "{{kind}} p95"),
                    logarithmic=True,
                ),
            ),
        ),
    )


def transfer() -> Row:
    """KV caches on their way."""
    by_source = f"sum by (namespace, fleet, pod, source) ({rate('vllm:prompt_tokens_by_source_total')})"
    role = f"on (namespace, fleet, pod) group_left (role) {series('engine:ridgeline_role:current')}"
    return Row(
        "KV transfer",
        (
            (
                graph(
                    "KV bytes moved",
                    "What decode engines read from prefill engines.",
                    BYTES_PER_SECOND,
                    Query(series("fleet:ridgeline_kv_transfer_bytes:rate"), "fleet"),
                    Query(f"sum by (pod) ({rate('vllm:nixl_bytes_transferred_sum')}) > 0", "{{pod}}"),
                ),
                graph(
                    "KV transfer failures",
                    "A failed transfer makes a decode engine compute the prompt again. Expired: nobody came for the KV"
                    " cache in time. Read after expiry: somebody came late, for blocks that may be another's.",
                    PER_SECOND,
                    Query(series("fleet:ridgeline_kv_transfer_failures:rate"), "failed"),
                    Query(f"sum({rate('vllm:nixl_num_kv_expired_reqs_total')})", "expired"),
                    Query(f"sum({rate('vllm:nixl_num_notifications_after_expiry_total')})", "read after expiry"),
                ),
                graph(
                    "KV transfer time",
                    "Time of one transfer.",
                    SECONDS,
                    Query(quantile(0.5, "vllm:nixl_xfer_time_seconds"), "p50"),
                    Query(quantile(0.95, "vllm:nixl_xfer_time_seconds"), "p95"),
                ),
            ),
            (
                graph(
                    "Prompt tokens by source and role",
                    "Where prompts come from. Decode engines should compute next to nothing locally.",
                    TOKENS_PER_SECOND,
                    Query(
                        f"sum by (role, source) ({by_source} * {role}) > 0",
                        "{{role}} engines, {{source}}",
                    ),
                    stacked=True,
                ),
                graph(
                    "Prompt tokens received",
                    "Prompt tokens whose KV cache came by transfer.",
                    TOKENS_PER_SECOND,
                    Query(series("fleet:ridgeline_external_prompt_tokens:rate"), "fleet"),
                    Query(f"sum by (pod) ({rate('ridgeline_engine_external_prompt_tokens_total')}) > 0", "{{pod}}"),
                ),
                graph(
                    "KV cache used",
                    "Share of the KV cache that each engine holds, prompts pinned for a reader included.",
                    RATIO,
                    Query(f"max by (pod) ({series('vllm:kv_cache_usage_perc')})", "{{pod}}"),
                    most=1,
                ),
            ),
        ),
    )


def tokens() -> Row:
    """Work done."""
    return Row(
        "Tokens",
        (
            (
                graph(
                    "Tokens computed",
                    "Tokens that engines computed: neither cached nor transferred.",
                    TOKENS_PER_SECOND,
                    Query(series("fleet:ridgeline_tokens:rate"), "{{phase}}"),
                    logarithmic=True,
                ),
                graph(
                    "Tokens computed by role",
                    "The same for the engines of each role.",
                    TOKENS_PER_SECOND,
                    Query(f"{series('role:ridgeline_tokens:rate')} > 0", "{{role}} engines, {{phase}}"),
                    logarithmic=True,
                ),
                graph(
                    "Prefills finished",
                    "Prompts that each engine finished. Prefill engines should share them evenly.",
                    REQUESTS_PER_SECOND,
                    Query(f"sum by (pod) ({rate('ridgeline_engine_prefills_finished_total')})", "{{pod}}"),
                    stacked=True,
                ),
                graph(
                    "Floating-point operations",
                    "FLOPs of each phase over all engines, causal attention counted exactly.",
                    FLOPS_PER_SECOND,
                    Query(f"sum by (phase) ({rate('ridgeline_engine_flops_total')})", "{{phase}}"),
                    stacked=True,
                ),
            ),
        ),
    )
