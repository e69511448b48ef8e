"""The cost model against measured points, and the fit on points that it has not seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median

import pytest

from ridgeline.cost import validation
from ridgeline.cost.hardware import H100, REQUEST_SECONDS
from ridgeline.cost.points import MeasuredPoint
from ridgeline.cost.step_cost import EngineCost
from ridgeline.cost.validation import NEEDS_SIMULATOR, SHARED_PREFIX_TOKENS, evaluate, median_errors, shape_of
from tests.bench.fit_cost_model import SERVING, errors_of, fitted, left_out, serving_milliseconds
from tests.cost.measured_points import (
    LAYER_MICROSECONDS,
    PREFIX_TOKENS,
    REQUEST_MILLISECONDS,
    generated_points,
    measured_points,
)

BATCH = next(point for point in generated_points() if not point.serving)
RUN = next(point for point in generated_points() if point.serving)
START = (32.0, 8.0, 150.0)


def medians(errors: list[tuple[str, float]]) -> dict[str, float]:
    return {name: median(abs(e) for n, e in errors if n == name) for name in {name for name, _ in errors}}


def dense(points: list[MeasuredPoint], serving: bool) -> list[MeasuredPoint]:
    return [point for point in points if point.serving == serving and not shape_of(point).experts]


# --- measured points


def test_batches_are_met_within_the_limits(record_property: Callable[[str, object], None]) -> None:
    points, origin = measured_points()
    record_property("points", origin)
    found = median_errors(evaluate(dense(points, serving=False)))
    assert found["prompt_time_ms"] < 0.12, origin
    assert found["token_time_ms"] < 0.06, origin


def test_serving_runs_of_models_that_were_left_out_are_met_within_the_limits(
    record_property: Callable[[str, object], None],
) -> None:
    """In their steady state, which stands for the queue of a lightly loaded engine."""
    points, origin = measured_points()
    record_property("points", origin)
    found = medians(
        [
            error
            for _, constants, group in left_out(SERVING, points)
            for error in errors_of(serving_milliseconds, constants, group)
        ]
    )
    assert found["e2e_mean_ms"] < 0.06, origin
    assert found["itl_mean_ms"] < 0.06, origin
    assert found["ttft_mean_ms"] < 0.12, origin


def test_the_constants_in_force_are_those_that_fit() -> None:
    points, origin = measured_points()
    if not origin.startswith("measured"):
        pytest.skip(origin)
    layer, request, prefix = fitted(serving_milliseconds, dense(points, serving=True), START)
    assert H100.layer_seconds == pytest.approx(layer * 1e-6, rel=0.05)
    assert pytest.approx(request * 1e-3, rel=0.05) == REQUEST_SECONDS
    assert pytest.approx(prefix, rel=0.05) == SHARED_PREFIX_TOKENS


# --- generated points


def test_a_fit_finds_the_constants_that_points_were_generated_with() -> None:
    found = fitted(serving_milliseconds, [point for point in generated_points() if point.serving], START)
    expected = (LAYER_MICROSECONDS, REQUEST_MILLISECONDS, PREFIX_TOKENS)
    assert found == [pytest.approx(value, rel=limit) for value, limit in zip(expected, (0.1, 0.2, 0.5), strict=True)]


def test_a_serving_run_waits_for_the_simulator() -> None:
    (outcome,) = evaluate([RUN])
    assert (outcome.problem, outcome.modelled, outcome.errors) == (NEEDS_SIMULATOR, {}, {})


def test_a_serving_run_is_answered_by_what_is_given_for_it() -> None:
    asked: list[tuple[MeasuredPoint, EngineCost]] = []

    def serving(point: MeasuredPoint, cost: EngineCost) -> Mapping[str, float]:
        asked.append((point, cost))
        return {"itl_mean_ms": 1.1 * point.measured["itl_mean_ms"], "ttft_p99_ms": 5.0}

    (outcome,) = evaluate([RUN], serving)
    assert outcome.errors == {"itl_mean_ms": pytest.approx(0.1)}, "a value without a measurement has no error"
    assert asked[0][0] is RUN
    assert asked[0][1].decode_run(1)[0] > 0.0


@pytest.mark.parametrize(
    ("point", "says"),
    [
        pytest.param(replace(BATCH, model="no-such-model"), "model 'no-such-model' is not known", id="model"),
        pytest.param(replace(BATCH, gpu="no-such-gpu"), "accelerator 'no-such-gpu' is not known", id="GPU"),
        pytest.param(replace(BATCH, weights="fp3"), "number format 'fp3'", id="format"),
    ],
)
def test_a_point_that_cannot_be_modelled_says_why(point: MeasuredPoint, says: str) -> None:
    (outcome,) = evaluate([point])
    assert says in (outcome.problem or "")
    assert not outcome.errors


def test_medians_are_over_the_points_that_have_an_answer() -> None:
    run = replace(RUN, measured={"itl_mean_ms": 10.0})
    outcomes = [validation.Outcome(run, {"itl_mean_ms": value}) for value in (9.0, 10.1, 13.0)] + [
        validation.Outcome(run, problem="why")
    ]
    assert median_errors(outcomes) == {"itl_mean_ms": pytest.approx(0.1)}
