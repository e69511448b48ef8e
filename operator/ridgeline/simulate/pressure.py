"""How hard a load presses on each phase of a simulated fleet: by what arrives, so that policies can be compared.

The pressure of a phase is the work offered to it in a second over the work that its engines can do in one, at modelled
step times and with the decode batch at its fixed point. It is what Ridgeline's triggers read (`decide/triggers.py`), by
the same model (`decide/whatif.py`): for prefill the busy share of its queue; for decode the tightest of step time ÷
objective, KV ÷ capacity and, in a split, what the link takes. Above 1 a queue grows for as long as it lasts.

An operator learns step times from engines. Here they are taken from the cost model that the engines step by, once, so
that nothing has to be learned of a policy that looks at nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ridgeline.api.fleet import Mode, TopologyStatus
from ridgeline.cost.step_cost import StepCost
from ridgeline.decide.candidates import forecast
from ridgeline.decide.snapshot import StepTimes
from ridgeline.decide.whatif import Load
from ridgeline.simulate.results import Interval

MOST_PRESSURE = 10.0
"""What is beyond is as much beyond as this: where decodes never catch up, the model has no number."""
LARGE_BATCH = 128
LARGE_CHUNKS = (4096, 8192)


@dataclass(frozen=True, slots=True)
class Pressure:
    """Of both phases."""

    prefill: float
    decode: float


def pressure(load: Load, interval: Interval) -> Pressure | None:
    """The pressure of what arrived in an interval on the topology at its end.

    Args:
        load: step times, objectives and limits; rates and lengths in it are the interval's.
        interval: one of the timeline.

    Returns:
        None where no engine, or no pair of engines, could have taken a request.
    """
    pair = interval.prefill > 0 and interval.decode > 0
    seconds = interval.end_seconds - interval.start_seconds
    if not (pair or interval.mixed) or seconds <= 0.0:
        return None
    topology = TopologyStatus(
        mode=Mode.SPLIT if pair else Mode.MIXED,
        mixed=interval.mixed,
        prefill=interval.prefill,
        decode=interval.decode,
        tokenBudget=interval.token_budget,
    )
    offered = replace(
        load,
        requests_per_second=interval.arrived / seconds,
        prompts=interval.prompt_tokens,
        outputs=interval.output_tokens,
    )
    found = forecast(offered, topology, load.maximum_tokens)
    return Pressure(
        min(MOST_PRESSURE, found.prefill_utilization),
        min(MOST_PRESSURE, found.decode_utilization),
    )


def step_times(cost: StepCost) -> StepTimes:
    """The linear step model that comes nearest to a cost model: decodes of up to a hundred, chunks from small to large.

    Prefill tokens hide behind the weights that stream for the step anyway, so that large chunks lie on a line which
    begins below zero (`StepTimes.hidden_seconds`).
    """

    def chunk(tokens: int, pairs: int = 0) -> float:
        return cost.seconds(tokens, pairs, 0, 0, 0, 1)

    (one, kv), (many, _) = cost.decode_run(1), cost.decode_run(LARGE_BATCH)
    sequence = (many - one) / (LARGE_BATCH - 1)
    fixed = one - sequence
    smaller, larger = LARGE_CHUNKS
    token = (chunk(larger) - chunk(smaller)) / (larger - smaller)
    pairs = larger * larger // 2
    return StepTimes(
        fixed_seconds=fixed,
        seconds_per_decode_sequence=max(0.0, sequence),
        seconds_per_kv_token=kv,
        seconds_per_prefill_token=token,
        source="cost model",
        seconds_per_prefill_pair=(chunk(larger, pairs) - chunk(larger)) / pairs,
        hidden_seconds=max(0.0, fixed + larger * token - chunk(larger)),
    )
