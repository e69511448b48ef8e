"""What one engine of a split does within the objectives, from the step model: the rivals' stand-in for profiling.

The published systems profile engines beforehand, or fit a line to the steps that they see. Here both are the terms
that the simulated engines learn of their own steps, or the roofline before they know them (`decide/step_times.py`).
"""

from __future__ import annotations

from math import ceil

from ridgeline.decide.snapshot import StepTimes
from ridgeline.simulate.scheduler import BUDGET_TOKENS

MOST_SEQUENCES = 1024
"""vLLM's `max_num_seqs` on a data-centre GPU."""


def prefill_seconds(steps: StepTimes, tokens: float) -> float:
    """Seconds in which a prefill engine computes so many tokens, in steps of its whole token budget."""
    whole = ceil(tokens / BUDGET_TOKENS)
    return whole * steps.fixed_seconds + tokens * steps.seconds_per_prefill_token


def prefill_tokens_per_second(steps: StepTimes) -> float:
    """Most that a prefill engine computes."""
    return BUDGET_TOKENS / prefill_seconds(steps, BUDGET_TOKENS)


def decode_step_seconds(steps: StepTimes, sequences: float, kv_tokens: float) -> float:
    """One step of a decode engine."""
    return steps.fixed_seconds + steps.seconds_per_decode_sequence * sequences + steps.seconds_per_kv_token * kv_tokens


def decode_batch(
    steps: StepTimes, context_tokens: float, inter_token_seconds: float, kv_capacity_tokens: float | None
) -> float:
    """Most sequences of this length whose step keeps the objective and whose KV fits; at least one."""
    each = steps.seconds_per_decode_sequence + steps.seconds_per_kv_token * context_tokens
    room = inter_token_seconds - steps.fixed_seconds
    most = room / each if each > 0.0 else float(MOST_SEQUENCES)
    if kv_capacity_tokens is not None:
        most = min(most, kv_capacity_tokens / context_tokens)
    return min(max(1.0, most), float(MOST_SEQUENCES))


def decode_tokens_per_second(
    steps: StepTimes, context_tokens: float, inter_token_seconds: float, kv_capacity_tokens: float | None
) -> float:
    """Most that a decode engine gives within the objective."""
    batch = decode_batch(steps, context_tokens, inter_token_seconds, kv_capacity_tokens)
    return batch / decode_step_seconds(steps, batch, batch * context_tokens)


def shares(prefill: float, decode: float, engines: int) -> tuple[int, int]:
    """Engines for two demands, in their proportion; each gets at least one.

    Args:
        prefill: engines that prefill would need, in parts.
        decode: engines that decode would need.
        engines: what there is to share, at least two.
    """
    wanted = prefill + decode
    first = round(engines * prefill / wanted) if wanted > 0.0 else engines // 2
    first = max(1, min(engines - 1, first))
    return first, engines - first
