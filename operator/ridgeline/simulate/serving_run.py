"""A published serving run, played on one simulated engine: requests of one size at a constant rate, for ten minutes.

What clients saw also holds the time of a request outside the steps and a prefix that the load generator's prompts share;
both are fitted, like the constants of the cost model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from math import fsum, inf

from ridgeline.cost.hardware import REQUEST_SECONDS
from ridgeline.cost.points import MeasuredPoint
from ridgeline.cost.step_cost import EngineCost
from ridgeline.cost.validation import SHARED_PREFIX_TOKENS
from ridgeline.simulate.counters import Outcome
from ridgeline.simulate.fleet import Fleet, FleetSettings
from ridgeline.simulate.kv_cache import BLOCK_TOKENS
from ridgeline.simulate.request import Request
from ridgeline.simulate.router import least_load
from ridgeline.simulate.scheduler import BUDGET_TOKENS, EngineSettings
from ridgeline.simulate.traces import Arrival

RUN_SECONDS = 600.0
MOST_SEQUENCES = 128
"""Of the published runs."""
MILLISECONDS = 1000.0


def serving_run(
    point: MeasuredPoint,
    cost: EngineCost,
    request_seconds: float = REQUEST_SECONDS,
    shared_prefix_tokens: float = SHARED_PREFIX_TOKENS,
) -> Mapping[str, float]:
    """Milliseconds by column that clients of this engine see.

    Args:
        point: a serving run.
        cost: step times of its engine.
        request_seconds: of a request outside the steps.
        shared_prefix_tokens: with which every prompt begins; whole blocks of them are found in the cache.
    """
    first_tokens: list[float] = []
    wholes: list[float] = []
    gaps: list[float] = []

    def done(request: Request, outcome: Outcome, now: float) -> None:
        assert request.first_token_at is not None
        first_tokens.append(request.first_token_at - request.arrived_at + request_seconds)
        wholes.append(now - request.arrived_at + request_seconds)
        gaps.append((now - request.first_token_at) / max(1, request.output_tokens - 1))

    budget = point.max_num_batched_tokens or BUDGET_TOKENS
    # The cache is made large enough for every request at once: that the run was possible is known.
    blocks = (MOST_SEQUENCES + 1) * (point.prompt_tokens + point.output_tokens + BLOCK_TOKENS) // BLOCK_TOKENS
    engine = EngineSettings(
        kv_blocks=blocks, max_num_batched_tokens=budget, max_num_seqs=MOST_SEQUENCES, hash_tokens=BLOCK_TOKENS
    )
    fleet = Fleet(FleetSettings(1, engine, 1.0, inf, inf, inf), cost, least_load(), done)
    fleet.run(_arrivals(point, int(shared_prefix_tokens // BLOCK_TOKENS)))
    return {
        "ttft_mean_ms": MILLISECONDS * _mean(first_tokens),
        "ttft_p90_ms": MILLISECONDS * _quantile(first_tokens, 0.90),
        "ttft_p99_ms": MILLISECONDS * _quantile(first_tokens, 0.99),
        "itl_mean_ms": MILLISECONDS * _mean(gaps),
        "e2e_mean_ms": MILLISECONDS * _mean(wholes),
        "e2e_p99_ms": MILLISECONDS * _quantile(wholes, 0.99),
    }


def _arrivals(point: MeasuredPoint, shared_blocks: int) -> Iterator[Arrival]:
    """Requests at the point's rate; the first blocks of all prompts are the same, the others of each its own."""
    assert point.requests_per_second is not None
    blocks = point.prompt_tokens // BLOCK_TOKENS
    shared = min(blocks, shared_blocks)
    own = count(shared)
    for number in range(1, max(1, int(RUN_SECONDS * point.requests_per_second)) + 1):
        hashes = (*range(shared), *(next(own) for _ in range(blocks - shared)))
        yield Arrival(number / point.requests_per_second, point.prompt_tokens, point.output_tokens, hashes)


def _mean(values: list[float]) -> float:
    return fsum(values) / len(values)


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
