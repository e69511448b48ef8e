"""The cost model against measured points.

A batch is answered in closed form: one step that prefills all its prompts, one that decodes them half-way through their
outputs. A serving run needs queueing and is answered by whoever is given as `serving`; without it, the point says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import median

from ridgeline.cost.efficiency import Efficiency
from ridgeline.cost.hardware import VLLM_2023, efficiency_of
from ridgeline.cost.points import MeasuredPoint
from ridgeline.cost.step_cost import EngineCost, StepCost
from ridgeline_exporters.roofline import catalogue, hardware
from ridgeline_exporters.roofline.hardware import Accelerator
from ridgeline_exporters.roofline.model import ModelShape, UnsupportedModel
from ridgeline_exporters.roofline.parallelism import Parallelism
from ridgeline_exporters.roofline.windows import attended_pairs

SHARED_PREFIX_TOKENS = 190
"""Tokens of a prompt that the published serving runs found in the prefix cache: their load generator puts one of a few
system prompts before each question, and the source does not say how long it is. Fitted with `REQUEST_SECONDS`."""

NEEDS_SIMULATOR = "needs the simulator"

Serving = Callable[[MeasuredPoint, EngineCost], Mapping[str, float]]
"""Milliseconds by column (`points.SERVING_METRICS`) of a serving run on one engine with these step times."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One point, as measured and as modelled."""

    point: MeasuredPoint
    modelled: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds by column."""
    problem: str | None = None
    """Why there is no answer."""

    @property
    def errors(self) -> dict[str, float]:
        """Modelled / measured - 1 by column, where both are known."""
        return {
            name: self.modelled[name] / measured - 1.0
            for name, measured in self.point.measured.items()
            if name in self.modelled
        }


def evaluate(points: Iterable[MeasuredPoint], serving: Serving | None = None) -> list[Outcome]:
    """Each point with what the model says of it, or with why it says nothing."""
    return [_evaluate(point, serving) for point in points]


def median_errors(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Median of the absolute relative errors, by column."""
    found: dict[str, list[float]] = {}
    for outcome in outcomes:
        for name, error in outcome.errors.items():
            found.setdefault(name, []).append(abs(error))
    return {name: median(errors) for name, errors in found.items()}


def worst_errors(outcomes: Sequence[Outcome]) -> dict[str, tuple[float, MeasuredPoint]]:
    """Largest absolute relative error and its point, by column."""
    found: dict[str, tuple[float, MeasuredPoint]] = {}
    for outcome in outcomes:
        for name, error in outcome.errors.items():
            if name not in found or abs(error) > found[name][0]:
                found[name] = (abs(error), outcome.point)
    return found


def efficiency_for(point: MeasuredPoint, accelerator: Accelerator) -> Efficiency:
    """Of the engine that was measured: Splitwise's was of 2023."""
    return VLLM_2023 if point.source == "splitwise" else efficiency_of(accelerator)


def shape_of(point: MeasuredPoint) -> ModelShape:
    """The model of this point on its GPUs.

    Raises:
        catalogue.UnknownModel: if the model has no known shape.
        UnsupportedModel: if the model or its format has no known roofline.
    """
    return _shape(point.model, point.weights or None, point.tensor_parallel)


def cost_of(point: MeasuredPoint, efficiency: Efficiency | None = None) -> EngineCost:
    """Step times of the engine of this point.

    Raises:
        catalogue.UnknownModel: if the model has no known shape.
        hardware.UnknownAccelerator: if the GPU is not known.
        UnsupportedModel: if the model or its format has no known roofline.
    """
    accelerator = hardware.find(point.gpu)
    return EngineCost(shape_of(point), accelerator, efficiency or efficiency_for(point, accelerator))


def batch_milliseconds(point: MeasuredPoint, cost: StepCost) -> dict[str, float]:
    """Milliseconds of a batch's prefill and of one decode step in the middle of its outputs."""
    batch = point.batch or 1
    prompts, pairs = batch * point.prompt_tokens, batch * attended_pairs(point.prompt_tokens, 0)
    context_tokens = batch * (point.prompt_tokens + point.output_tokens // 2)
    return {
        "prompt_time_ms": 1e3 * cost.seconds(prompts, pairs, 0, 0, 0, batch),
        "token_time_ms": 1e3 * cost.seconds(0, 0, 0, batch, context_tokens, batch),
    }


@cache
def _shape(model: str, weights: str | None, gpus: int) -> ModelShape:
    """Points share few models, and a fit asks for each hundreds of times: reading one takes longer than its steps."""
    return ModelShape.from_config(catalogue.find_model(model), weights, parallelism=Parallelism(gpus))


def _evaluate(point: MeasuredPoint, serving: Serving | None) -> Outcome:
    try:
        cost = cost_of(point)
    except (catalogue.UnknownModel, hardware.UnknownAccelerator, UnsupportedModel) as problem:
        return Outcome(point, problem=str(problem).partition(";")[0])  # without the list of all that are known
    if not point.serving:
        return Outcome(point, batch_milliseconds(point, cost))
    if serving is None:
        return Outcome(point, problem=NEEDS_SIMULATOR)
    return Outcome(point, serving(point, cost))
