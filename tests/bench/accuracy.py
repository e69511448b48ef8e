"""How far modelled engines are from measured ones: with the constants in force, and with constants fitted without them.

Constants are fitted to the points by `tests.bench.fit_cost_model`, in closed form. What they say of the points that were
left out is asked of the simulator, as `ridgeline validate` asks it. Models with experts share one constant, and all of
their points may be of one model, as all batches are: there one row is left out at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ridgeline.cost.efficiency import MICRO
from ridgeline.cost.hardware import H100
from ridgeline.cost.points import BATCH_METRICS, SERVING_METRICS, MeasuredPoint
from ridgeline.cost.validation import Outcome, cost_of, evaluate, median_errors, worst_errors
from ridgeline.simulate.serving_run import serving_run
from tests.bench import fit_cost_model
from tests.bench.figures import Figure, not_measured

COLUMNS = {
    "e2e_mean_ms": ("end to end", 6.0),
    "ttft_mean_ms": ("first token", 12.0),
    "itl_mean_ms": ("between tokens", 6.0),
    "e2e_p99_ms": ("end to end p99", None),
    "ttft_p90_ms": ("first token p90", None),
    "ttft_p99_ms": ("first token p99", None),
    "prompt_time_ms": ("a batch's prompts", 12.0),
    "token_time_ms": ("a batch's tokens", 6.0),
}
"""Column of the points → what it is, and below how many per cent the median error must stay."""


def simulated(point: MeasuredPoint, constants: Sequence[float]) -> Mapping[str, float]:
    """A serving run on the simulator. Constants as in `fit_cost_model.serving_milliseconds`."""
    layer, request, prefix = constants
    cost = cost_of(point, replace(H100, layer_seconds=layer * MICRO))
    return serving_run(point, cost, request * 1e-3, prefix)


def simulated_experts(point: MeasuredPoint, constants: Sequence[float]) -> Mapping[str, float]:
    """The same of a model with experts. Constant as in `fit_cost_model.expert_milliseconds`."""
    return serving_run(point, cost_of(point, replace(H100, expert_layer_seconds=constants[0] * MICRO)))


FAMILIES: tuple[tuple[fit_cost_model.Family, fit_cost_model.Fit, str, bool], ...] = (
    (fit_cost_model.SERVING, simulated, "model left out", True),
    (fit_cost_model.EXPERTS, simulated_experts, "experts, row left out", False),
    (fit_cost_model.BATCHES, fit_cost_model.batch_milliseconds_2023, "row left out", False),
)
"""What is fitted together, what tells the errors, what is left out, and whether the goals are for it: a row whose model has
other rows in the fit is no test of a model that nobody measured."""


def accuracy(points: Sequence[MeasuredPoint] | None) -> list[Figure]:
    """Median errors on these points; without any, a figure that says so."""
    if not points:
        return [not_measured("accuracy of the cost model", "no points given (--points FILE.csv)")]
    outcomes = evaluate(points, serving_run)
    known = [outcome.point for outcome in outcomes if outcome.problem is None]
    unknown = ", ".join(outcome.point.id for outcome in outcomes if outcome.problem is not None)
    figures = _figures(outcomes, "constants in force", f"; not modelled: {unknown}" if unknown else "", goals=True)
    for family, judge, what, goals in FAMILIES:
        figures += _left_out(family, judge, known, what, goals)
    return figures


def _left_out(
    family: fit_cost_model.Family,
    judge: fit_cost_model.Fit,
    points: Sequence[MeasuredPoint],
    what: str,
    goals: bool,
) -> list[Figure]:
    outcomes = [
        Outcome(point, judge(point, constants))
        for _, constants, group in fit_cost_model.left_out(family, points)
        for point in group
    ]
    return _figures(outcomes, what, "", goals)


def _figures(outcomes: Sequence[Outcome], what: str, more: str, goals: bool) -> list[Figure]:
    medians, worst = median_errors(outcomes), worst_errors(outcomes)
    figures = []
    for column, (name, goal) in COLUMNS.items():
        if column not in medians:
            continue
        points = [outcome.point for outcome in outcomes if column in outcome.errors]
        models = len({point.model for point in points})
        largest, where = worst[column]
        note = (
            f"median error; worst {100 * largest:.1f} % (point {where.id}, {where.model}); "
            f"{len(points)} points of {models} {'model' if models == 1 else 'models'}{more}"
        )
        figures.append(Figure(f"{name}, {what}", 100 * medians[column], "%", goal if goals else None, note))
    return figures


assert set(COLUMNS) == {*BATCH_METRICS, *SERVING_METRICS}
