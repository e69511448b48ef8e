"""The cost model corrected by the steps that a fleet really took.

Two factors scale it, one for steps that only decode and one for steps that hold a prompt chunk. Each is the geometric
mean of measured ÷ modelled seconds, weighed by the steps behind each mean, with a prior of `PRIOR_STEPS` steps as
modelled: a few steps say little. Both are bounded, because what is off by more than that is no longer this model on
this hardware (a wrong GPU, a throttled one, a neighbour), and a decision should not rest on it: `bounded` says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from math import exp, isfinite, log

from ridgeline.cost.step_cost import StepCost

LEAST_FACTOR = 0.5
LARGEST_FACTOR = 2.0
PRIOR_STEPS = 50.0


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """Steps of one kind, as a histogram and counters tell: means of what they held and of how long they took.

    The first six are arguments of `StepCost.seconds`. Means stand for the steps behind them, which is exact where
    seconds are linear in what varies.
    """

    prefill_tokens: float
    prefill_pairs: float
    prefill_kv_tokens: float
    decode_sequences: float
    decode_kv_tokens: float
    samples: float
    seconds: float
    """Mean length of a step."""
    steps: float
    """How many there were."""

    @property
    def usable(self) -> bool:
        """Whether all of it is known: a missing value is no measurement."""
        return (
            all(isfinite(value) and value >= 0.0 for value in astuple(self)) and self.seconds > 0.0 and self.steps > 0.0
        )


@dataclass(frozen=True, slots=True)
class Factor:
    """What measured steps multiply the modelled ones by."""

    value: float = 1.0
    """Between `LEAST_FACTOR` and `LARGEST_FACTOR`."""
    bounded: bool = False
    """Whether the measurements ask for more than the bounds allow."""
    steps: float = 0.0
    """Steps behind it; 0: nothing was measured, and the value is 1."""


@dataclass(frozen=True, slots=True)
class CorrectedCost:
    """Step times of another cost model, scaled.

    A step with a prompt chunk takes no less than its decodes alone: so a step never gets shorter by holding more,
    whatever the factors are.
    """

    cost: StepCost
    decode: Factor
    prefill: Factor

    def seconds(
        self,
        prefill_tokens: int,
        prefill_pairs: int,
        prefill_kv_tokens: int,
        decode_sequences: int,
        decode_kv_tokens: int,
        samples: int,
    ) -> float:
        """Seconds of a step, see `StepCost`."""
        alone = self.decode.value * self.cost.seconds(0, 0, 0, decode_sequences, decode_kv_tokens, samples)
        if prefill_tokens <= 0:
            return alone  # what no prompt token attends to costs nothing
        whole = self.cost.seconds(
            prefill_tokens, prefill_pairs, prefill_kv_tokens, decode_sequences, decode_kv_tokens, samples
        )
        return max(self.prefill.value * whole, alone)

    def decode_run(self, sequences: int) -> tuple[float, float]:
        """Seconds of a decode step as (first, per KV token), see `StepCost`."""
        first, second = self.cost.decode_run(sequences)
        return self.decode.value * first, self.decode.value * second


def corrected(cost: StepCost, observed: Iterable[MeasuredSteps]) -> CorrectedCost:
    """The cost model with the factors that these steps ask for; those that cannot be used are left out."""
    usable = [steps for steps in observed if steps.usable]
    return CorrectedCost(
        cost,
        _factor(cost, [steps for steps in usable if steps.prefill_tokens <= 0.0]),
        _factor(cost, [steps for steps in usable if steps.prefill_tokens > 0.0]),
    )


def _factor(cost: StepCost, observed: list[MeasuredSteps]) -> Factor:
    total = weighed = 0.0
    for steps in observed:
        modelled = cost.seconds(
            round(steps.prefill_tokens),
            round(steps.prefill_pairs),
            round(steps.prefill_kv_tokens),
            round(steps.decode_sequences),
            round(steps.decode_kv_tokens),
            round(steps.samples),
        )
        if modelled > 0.0:
            total += steps.steps
            weighed += steps.steps * log(steps.seconds / modelled)
    if not total:
        return Factor()
    asked = exp(weighed / (total + PRIOR_STEPS))
    value = min(LARGEST_FACTOR, max(LEAST_FACTOR, asked))
    return Factor(value, value != asked, total)
