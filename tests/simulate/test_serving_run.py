"""A published serving run on a simulated engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ridgeline.cost.hardware import REQUEST_SECONDS
from ridgeline.cost.points import MeasuredPoint
from ridgeline.cost.validation import SHARED_PREFIX_TOKENS, cost_of, evaluate, median_errors, worst_errors
from ridgeline.simulate.kv_cache import BLOCK_TOKENS
from ridgeline.simulate.serving_run import serving_run
from ridgeline_exporters.roofline.windows import attended_pairs
from tests.cost.measured_points import measured_points

SELDOM = MeasuredPoint("x", "test", "Llama-3.1-8B", "fp16", "H100-SXM", 1, 800, 100, None, 0.05, 8192, {})
"""A request every twenty seconds: it is alone from its first token to its last."""


def test_a_request_that_is_alone_takes_its_own_steps() -> None:
    cost = cost_of(SELDOM)
    seen = serving_run(SELDOM, cost)
    cached = int(SHARED_PREFIX_TOKENS // BLOCK_TOKENS) * BLOCK_TOKENS
    new = SELDOM.prompt_tokens - cached
    prefill = cost.seconds(new, attended_pairs(new, cached), cached, 0, 0, 1)
    fixed, per_kv_token = cost.decode_run(1)
    decodes = sum(fixed + per_kv_token * (SELDOM.prompt_tokens + i) for i in range(1, SELDOM.output_tokens))
    # The first request of the run finds nothing cached, the other twenty-nine do.
    assert seen["ttft_mean_ms"] == pytest.approx(1e3 * (prefill + REQUEST_SECONDS), rel=0.05)
    assert seen["itl_mean_ms"] == pytest.approx(1e3 * decodes / (SELDOM.output_tokens - 1), rel=1e-3)
    assert seen["e2e_mean_ms"] == pytest.approx(seen["ttft_mean_ms"] + 1e3 * decodes, rel=1e-6)


def test_requests_that_share_an_engine_wait_for_each_other() -> None:
    cost = cost_of(SELDOM)
    alone, crowded = serving_run(SELDOM, cost), serving_run(replace(SELDOM, requests_per_second=20.0), cost)
    assert all(crowded[name] > alone[name] for name in ("itl_mean_ms", "e2e_mean_ms", "ttft_p99_ms"))


def test_a_run_is_the_same_each_time() -> None:
    busy = replace(SELDOM, requests_per_second=7.0)
    assert serving_run(busy, cost_of(busy)) == serving_run(busy, cost_of(busy))


def test_serving_runs_are_met_within_the_limits(record_property: Callable[[str, object], None]) -> None:
    """Medians over the measured points, or over generated ones where there are none beside the repository."""
    points, origin = measured_points()
    record_property("points", origin)
    outcomes = evaluate([point for point in points if point.serving], serving_run)
    assert not [outcome.problem for outcome in outcomes if outcome.problem]
    found = median_errors(outcomes)
    assert found["e2e_mean_ms"] < 0.06, origin
    assert found["ttft_mean_ms"] < 0.12, origin
    assert found["itl_mean_ms"] < 0.06, origin
    assert all(found[name] <= worst for name, (worst, _) in worst_errors(outcomes).items())
