"""The roofline's step times corrected by the steps that the fleet took lately.

Two factors scale them, one for steps that only decode and one for steps that hold a prompt chunk. Each is measured ÷
modelled seconds of all such steps in the window of the rules, weighed in logarithms against a prior of
`PRIOR_STEPS_PER_SECOND` as modelled: a few steps say little. The model is linear in what steps hold, so that sums stand
for the steps behind them; only what hides behind the weights is taken at the mean chunk.

Step times that engines have learned of their own steps need no correction: they are fitted to the steps of the last
hour at most.

Both are bounded, because what is off by more than that is no longer this model on this hardware (a wrong GPU, a
throttled one, a neighbour), and a decision should not rest on it: `bounded` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from math import exp, inf, isfinite, log

from ridgeline.decide.snapshot import Signals, StepsTaken, StepTimes

LEAST_FACTOR = 0.5
LARGEST_FACTOR = 2.0
PRIOR_STEPS_PER_SECOND = 1.0


@dataclass(frozen=True, slots=True)
class Factor:
    """What measured steps multiply the modelled ones by."""

    value: float = 1.0
    """Between `LEAST_FACTOR` and `LARGEST_FACTOR`."""
    bounded: bool = False
    """Whether the measurements ask for more than the bounds allow."""
    steps: float = 0.0
    """Steps per second behind it; 0: nothing was measured, and the value is 1."""


@dataclass(frozen=True, slots=True)
class Corrections:
    """The factors of both kinds of step."""

    decode: Factor = Factor()
    """Of steps that only decode."""
    prefill: Factor = Factor()
    """Of steps that hold a prompt chunk."""

    def measured(self) -> Mapping[str, Factor]:
        """The factors that have steps behind them, by the kind of step."""
        known = {"decode": self.decode, "prefill": self.prefill}
        return {kind: factor for kind, factor in known.items() if factor.steps}

    def apply(self, steps: StepTimes) -> StepTimes:
        """The step times as the fleet takes them.

        What a chunk adds to a step is scaled as the steps are that hold one; what it is added to, as those that do not.
        """
        return steps.scaled(self.decode.value, self.prefill.value)


def corrections(steps: StepTimes, signals: Signals) -> Corrections:
    """What the fleet's own steps say of a step model.

    Args:
        steps: the model.
        signals: of the fleet.
    """
    return Corrections(_factor(steps, signals.decode_steps), _factor(steps, signals.prefill_steps))


def _factor(model: StepTimes, taken: StepsTaken | None) -> Factor:
    if taken is None or not all(isfinite(rate) and rate >= 0.0 for rate in astuple(taken)):
        return Factor()
    if taken.steps <= 0.0 or taken.seconds <= 0.0:
        return Factor()
    modelled = _modelled(model, taken)
    if not 0.0 < modelled < inf:
        return Factor()
    asked = taken.steps / (taken.steps + PRIOR_STEPS_PER_SECOND) * (log(taken.seconds) - log(modelled))
    given = min(log(LARGEST_FACTOR), max(log(LEAST_FACTOR), asked))
    return Factor(exp(given), given != asked, taken.steps)


def _modelled(model: StepTimes, taken: StepsTaken) -> float:
    """What these steps should have taken."""
    seconds = (
        model.fixed_seconds * taken.steps
        + model.seconds_per_decode_sequence * taken.decode_sequences
        + model.seconds_per_kv_token * taken.kv_tokens
    )
    if taken.prefill_tokens <= 0.0:
        return seconds
    chunk = taken.prefill_tokens / taken.steps
    depth = taken.prefill_pairs / taken.prefill_tokens - chunk / 2.0
    return seconds + taken.steps * model.prefill_seconds(chunk, depth)
