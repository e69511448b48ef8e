"""How long one step of an engine takes: measured by the engines where they know, else from the corrected roofline.

    seconds = fixed + c · decode sequences + k · KV tokens read + max(0, b · prefill tokens - hidden) + p · pairs

From the roofline (per engine: weights, bandwidth and FLOPs are those of all its GPUs):

    fixed = weight bytes / (0.80 · bandwidth) + 3 ms     weights are read once a step; layers, launches, collectives
    c     = 4.4 µs                                       scheduling and sampling of one sequence
    k     = KV bytes per token / (0.93 · bandwidth)
    b     = FLOPs per token / (0.50 · peak FLOPs)        scores of attention left out

Weights stream while a chunk is computed, so from the roofline the first FLOPs of a chunk hide behind half the time
that the weights take (collectives and small kernels keep the overlap from being whole). Of measured steps the engines
say how much hides, at most all that is fixed. Shares after the measured tables of an H100; one GPU does better than these 50 % of
peak FLOPs, four in tensor parallel do worse. Where the roofline decides, the steps that a fleet really takes correct it
(`correction.py`); as a bound of measured terms it stays what it is, for a factor of whole steps says little of one term.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, isfinite

from ridgeline.decide.correction import Corrections, corrections
from ridgeline.decide.snapshot import Signals, StepTimes

WEIGHT_BANDWIDTH_SHARE = 0.80
KV_BANDWIDTH_SHARE = 0.93
FLOPS_SHARE = 0.50
HIDDEN_SHARE = 0.50
OVERHEAD_SECONDS = 0.003
SEQUENCE_SECONDS = 4.4e-6
SHORTEST_STEP_SECONDS = 1e-5


def step_times(signals: Signals, tried_tokens: float = inf, context_tokens: float = 0.0) -> StepTimes | None:
    """The step model to decide by; None when neither the engines nor the roofline can tell.

    Args:
        signals: of the fleet.
        tried_tokens: largest chunk that engines schedule now. A line through small chunks, which hide behind the
            weights, says nothing of large ones: beyond it the roofline's seconds are the least.
        context_tokens: mean context of a decode. Sequences and their KV grow together, so engines that hold few
            hardly tell the two apart: KV takes at least what the roofline says, and sequences as much less.
    """
    measured, roofline = signals.measured_steps, _from_roofline(signals)
    if measured is not None and usable(measured):
        kv = max(0.0, measured.seconds_per_kv_token)
        more = max(0.0, roofline.seconds_per_kv_token - kv) if roofline else 0.0
        sequence = max(0.0, measured.seconds_per_decode_sequence)
        return StepTimes(
            fixed_seconds=max(SHORTEST_STEP_SECONDS, measured.fixed_seconds),
            seconds_per_decode_sequence=max(min(sequence, SEQUENCE_SECONDS), sequence - more * context_tokens),
            seconds_per_kv_token=kv + more,
            seconds_per_prefill_token=max(0.0, measured.seconds_per_prefill_token),
            source="measured",
            seconds_per_prefill_pair=max(0.0, measured.seconds_per_prefill_pair),
            hidden_seconds=min(measured.hidden_seconds, max(0.0, measured.fixed_seconds)),
            tried_prefill_tokens=tried_tokens,
            untried=roofline,
        )
    return step_corrections(signals).apply(roofline) if roofline else None


def usable(steps: StepTimes) -> bool:
    """Whether all terms are known, and prompts take time."""
    terms = (
        steps.fixed_seconds,
        steps.seconds_per_decode_sequence,
        steps.seconds_per_kv_token,
        steps.seconds_per_prefill_token,
        steps.seconds_per_prefill_pair,
        steps.hidden_seconds,
    )
    return all(map(isfinite, terms)) and steps.seconds_per_prefill_token > 0.0


def step_corrections(signals: Signals) -> Corrections:
    """What the fleet's own steps make of the roofline; factors of 1 where there is none.

    The roofline leaves attention scores out. Where engines know what a pair takes, it is added to a chunk apart, and
    must not count as the roofline's error; where they do not, the factor stands for both.
    """
    roofline, measured = _from_roofline(signals), signals.measured_steps
    if roofline is None:
        return Corrections()
    pair = max(0.0, measured.seconds_per_prefill_pair) if measured is not None and usable(measured) else 0.0
    return corrections(replace(roofline, seconds_per_prefill_pair=pair), signals)


def _from_roofline(signals: Signals) -> StepTimes | None:
    weights, bandwidth = _positive(signals.weight_bytes), _positive(signals.peak_memory_bytes_per_second)
    flops, peak = _positive(signals.flops_per_token), _positive(signals.peak_flops)
    kv = _positive(signals.kv_bytes_per_token)
    if weights is None or bandwidth is None or flops is None or peak is None or kv is None:
        return None
    stream_seconds = weights / (WEIGHT_BANDWIDTH_SHARE * bandwidth)
    return StepTimes(
        fixed_seconds=stream_seconds + OVERHEAD_SECONDS,
        seconds_per_decode_sequence=SEQUENCE_SECONDS,
        seconds_per_kv_token=kv / (KV_BANDWIDTH_SHARE * bandwidth),
        seconds_per_prefill_token=flops / (FLOPS_SHARE * peak),
        source="roofline",
        hidden_seconds=HIDDEN_SHARE * stream_seconds,
    )


def _positive(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) and value > 0.0 else None
