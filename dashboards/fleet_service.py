"""Rows on what clients get, how the fleet is divided and what was decided."""

from __future__ import annotations

from dashboards.panels import (
    COUNT,
    RATIO,
    REQUESTS_PER_SECOND,
    SECONDS,
    TOKENS,
    Query,
    Row,
    graph,
    number,
    rows_of,
    states,
    word,
)
from dashboards.queries import counted, mean, quantile, rate, series


def now() -> Row:
    """The fleet in eight numbers."""
    return Row(
        "Now",
        (
            (
                word(
                    "Mode",
                    "Whether engines are mixed or split into prefill and decode engines, by the labels of their pods.",
                    Query(f"{series('ridgeline_fleet_mode')} == 1", "{{mode}}"),
                ),
                number(
                    "Requests",
                    "Requests that arrive from clients, and those that the fleet finished for them.",
                    REQUESTS_PER_SECOND,
                    Query(series("fleet:ridgeline_requests_arriving:rate"), "arriving"),
                    Query(series("fleet:ridgeline_requests:rate"), "finished"),
                ),
                number(
                    "Missed",
                    "Share of requests that missed the objectives: a late first token or late gaps.",
                    RATIO,
                    Query(series("fleet:ridgeline_requests_missed:ratio")),
                    amber=0.02,
                    red=0.05,
                ),
                number(
                    "Decode stall",
                    "Share of decode time that prefills in the same step took.",
                    RATIO,
                    Query(series("fleet:ridgeline_decode_stall:ratio")),
                    amber=0.1,
                    red=0.3,
                ),
                number(
                    "First token p95",
                    "From a request's arrival at its first engine to its first token.",
                    SECONDS,
                    Query(series("fleet:ridgeline_time_to_first_token_seconds:p95")),
                ),
                number(
                    "Token gap p99",
                    "Gap between two tokens of one sequence; p95 is blind to rare large stalls.",
                    SECONDS,
                    Query(series("fleet:ridgeline_decode_gap_seconds:p99")),
                ),
                number(
                    "Engines reporting",
                    "Engines whose exporter works and is scraped. Fewer than are ready: the numbers leave some out.",
                    COUNT,
                    Query(series("fleet:ridgeline_engines_reporting:count")),
                ),
                number(
                    "Age of signals",
                    "Age of the numbers that the operator last decided on; too old, and it leaves everything as it is.",
                    SECONDS,
                    Query(series("ridgeline_fleet_signal_age_seconds")),
                    amber=30,
                    red=60,
                ),
            ),
        ),
        height=4,
    )


def topology() -> Row:
    """Who does what, and what was decided."""
    return Row(
        "Topology and decisions",
        (
            (
                graph(
                    "Engines by role",
                    "Live engine pods by their role label.",
                    COUNT,
                    Query(series("ridgeline_fleet_engines"), "{{role}}"),
                    stacked=True,
                    steps=True,
                ),
                graph(
                    "Recommended engines by role",
                    "The best topology by the what-if model, whether or not anyone acts on it, and how many engines the"
                    " load needs (dashed), whatever there are.",
                    COUNT,
                    Query(series("ridgeline_fleet_recommended_engines"), "{{role}}"),
                    Query(series("ridgeline_fleet_engines_needed"), "needed", dashed=True),
                    stacked=True,
                    steps=True,
                ),
                graph(
                    "Token budget",
                    "Tokens that an engine may schedule in one step: what is wanted of mixed engines, what each engine"
                    " has, and what it was started with.",
                    TOKENS,
                    Query(series("ridgeline_fleet_token_budget"), "mixed engines", dashed=True),
                    Query(f"max by (pod) ({series('ridgeline_engine_limit_tokens')})", "{{pod}}"),
                    Query(f"max({series('ridgeline_engine_maximum_tokens')})", "at start", dashed=True),
                    steps=True,
                ),
            ),
            (
                states(
                    "Mode over time",
                    "Mixed or split.",
                    Query(series("ridgeline_fleet_mode"), "{{mode}}"),
                    {"0": ("no", "transparent"), "1": ("yes", "blue")},
                ),
                states(
                    "Role of each engine",
                    "The role that the rules count an engine's work for.",
                    Query(f"sum by (pod, role) ({series('engine:ridgeline_role:current')})", "{{pod}} {{role}}"),
                    {"1": ("yes", "blue")},
                ),
                rows_of(
                    "Recommendation",
                    "What the operator would do now, and why. In policy Recommend it stops there.",
                    COUNT,
                    Query(f"{series('ridgeline_fleet_recommendation')} == 1"),
                    {"action": "Action", "reason": "Reason"},
                ),
                rows_of(
                    "Decisions in the time shown",
                    "Decisions by action and reason. Holding is a decision too. kubectl describe has the evidence.",
                    COUNT,
                    Query(
                        "sum by (action, reason) (" + counted("ridgeline_fleet_decisions_total", "$__range") + ") > 0"
                    ),
                    {"action": "Action", "reason": "Reason", "Value": "Times"},
                ),
            ),
        ),
    )


def requests() -> Row:
    """What clients get."""
    return Row(
        "Requests and objectives",
        (
            (
                graph(
                    "Requests by outcome",
                    "Finished requests: objectives met, first token late, or more than 5 % of the gaps late.",
                    REQUESTS_PER_SECOND,
                    Query(f"sum by (outcome) ({rate('ridgeline_engine_requests_total')})", "{{outcome}}"),
                    stacked=True,
                ),
                graph(
                    "Share of requests that miss",
                    "The best single signal, for mixed and for split fleets.",
                    RATIO,
                    Query(series("fleet:ridgeline_requests_missed:ratio"), "missed"),
                    Query(series("fleet:ridgeline_requests_first_token_late:ratio"), "first token late"),
                    Query(series("fleet:ridgeline_requests_gaps_late:ratio"), "gaps late"),
                    most=0.1,
                ),
                graph(
                    "Requests in the engines",
                    "Requests that engines hold now. Transferring ones wait for their KV cache.",
                    COUNT,
                    Query(f"sum by (state) ({series('ridgeline_engine_requests')})", "{{state}}"),
                    stacked=True,
                ),
            ),
            (
                graph(
                    "Mean lengths",
                    "Mean prompt of requests that arrive, and mean output of those that finish.",
                    TOKENS,
                    Query(series("fleet:ridgeline_request_prompt_tokens:mean"), "prompt"),
                    Query(series("fleet:ridgeline_request_output_tokens:mean"), "output"),
                    logarithmic=True,
                ),
                graph(
                    "Prompt lengths",
                    "Quantiles of prompt lengths: a long tail is what stalls decodes.",
                    TOKENS,
                    *(
                        Query(
                            f"histogram_quantile({q}, {series('fleet:ridgeline_request_prompt_tokens_bucket:rate')})", n
                        )
                        for q, n in ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"))
                    ),
                    logarithmic=True,
                ),
                graph(
                    "Output lengths",
                    "Quantiles of output lengths, of requests that finish.",
                    TOKENS,
                    *(
                        Query(
                            f"histogram_quantile({q}, {series('fleet:ridgeline_request_output_tokens_bucket:rate')})", n
                        )
                        for q, n in ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"))
                    ),
                    logarithmic=True,
                ),
                graph(
                    "Outputs that grow longer",
                    "Outputs per second that pass so many tokens, ended or not: long ones show before they end.",
                    REQUESTS_PER_SECOND,
                    Query(
                        series("fleet:ridgeline_outputs_longer:rate", 'tokens=~"1|64|256|1024|4096"'),
                        "{{tokens}} tokens",
                    ),
                ),
            ),
        ),
    )


def latency() -> Row:
    """First tokens and gaps."""
    first, gap = "fleet:ridgeline_time_to_first_token_seconds", "fleet:ridgeline_decode_gap_seconds"
    return Row(
        "Latency",
        (
            (
                graph(
                    "Time to first token",
                    "Over all engines that a request passes, transfer included.",
                    SECONDS,
                    *(Query(series(f"{first}:{q}"), q) for q in ("p50", "p95", "p99")),
                ),
                graph(
                    "Gap between tokens",
                    "Measured between tokens of one sequence; no model in it.",
                    SECONDS,
                    *(Query(series(f"{gap}:{q}"), q) for q in ("p50", "p95", "p99")),
                ),
                graph(
                    "Gap between tokens by engine",
                    "p99 of each engine: the one that stalls stands out.",
                    SECONDS,
                    Query(quantile(0.99, "ridgeline_engine_decode_gap_seconds", "pod"), "{{pod}}"),
                ),
                graph(
                    "Time to first token by engine",
                    "p95 by the engine that finishes the request.",
                    SECONDS,
                    Query(quantile(0.95, "ridgeline_engine_time_to_first_token_seconds", "pod"), "{{pod}}"),
                ),
            ),
        ),
    )


def transitions() -> Row:
    """Changes of the topology."""
    return Row(
        "Transitions",
        (
            (
                rows_of(
                    "Transitions in the time shown",
                    "By action and outcome. A roll-back went back to where it came from, and its event says why.",
                    COUNT,
                    Query(
                        "sum by (action, outcome) ("
                        + counted("ridgeline_fleet_transitions_total", "$__range")
                        + ") > 0"
                    ),
                    {"action": "Action", "outcome": "Outcome", "Value": "Times"},
                ),
                graph(
                    "From decision to routed",
                    "Mean time from a decision until every router sends traffic by the new roles.",
                    SECONDS,
                    Query(mean("ridgeline_fleet_transition_routed_seconds", "action"), "{{action}}"),
                ),
                graph(
                    "Length of a transition",
                    "Mean time from the start of a transition to its end, the soak included.",
                    SECONDS,
                    Query(mean("ridgeline_fleet_transition_seconds", "action"), "{{action}}"),
                ),
                rows_of(
                    "Conditions",
                    "Conditions of the fleet as kubectl shows them.",
                    COUNT,
                    Query(f"{series('ridgeline_fleet_condition')} == 1"),
                    {"type": "Condition", "status": "Status"},
                ),
            ),
        ),
    )
