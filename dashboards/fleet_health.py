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
from dashboards.queries import RATE, rate, series

STEPS = 'term="fixed"'
"""What the fixed term of the step model is multiplied by."""


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
                    "Mean step",
                    "Length of a step by what it holds.",
                    SECONDS,
                    Query(
                        f"{series('fleet:ridgeline_step_seconds:rate')} / on (kind) "
                        f"({series('fleet:ridgeline_step_terms:rate', STEPS)} > 0)",
                        "{{kind}}",
                    ),
                ),
                graph(
                    "Steps against the roofline",
                    "Measured by modelled seconds of steps that only decode and of those that hold a prompt chunk: "
                    "the operator corrects the roofline by it, from half to twice, where engines have not learned more.",
                    COUNT,
                    Query(series("ridgeline_fleet_step_time_correction_ratio"), "{{kind}}"),
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
                    "Seconds of a step: fixed, and more for each decode, KV token read, prompt token and pair of a prompt "
                    "token with a key. Not drawn: what a step with prompts takes for itself, which may be below zero.",
                    SECONDS,
                    Query(f"{series('fleet:ridgeline_step_model:seconds')} > 0", "{{term}}"),
                    logarithmic=True,
                ),
                graph(
                    "Samples behind the decode baseline",
                    "Decode-only steps from which an engine knows how long a step without prefill takes.",
                    COUNT,
                    Query(series("ridgeline_engine_decode_baseline_samples"), "{{pod}}"),
                ),
                graph(
                    "Decode step without prefill",
                    "What an engine expects its current decodes to take alone: a longer step is stalled.",
                    SECONDS,
                    Query(series("ridgeline_engine_decode_baseline_seconds"), "{{pod}}"),
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
                        "weights": "Weight bytes",
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
