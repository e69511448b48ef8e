"""Guards: reasons to hold before anything is weighed, read top to bottom; the first that speaks decides.

`GUARDS` ask whether there is anything to decide on, `RESTS` whether a change of roles may begin now: behind a rest
the recommendation is still given, and the window of agreement runs on.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isnan

from ridgeline.api.conditions import Verdict
from ridgeline.api.fleet import Action
from ridgeline.api.times import from_rfc3339
from ridgeline.decide import reasons
from ridgeline.decide.question import Question
from ridgeline.decide.snapshot import MetricsProblem, Signals, Snapshot
from ridgeline.decide.step_times import step_times

OLDEST_SAMPLE_SECONDS = 60.0
"""Whoever reads the signals judges their age by the scrape interval; older than this they are no basis for anyone."""

Guard = Callable[[Question], Verdict | None]


def _hold(reason: str, message: str) -> Verdict:
    return Verdict("False", reason, message)


# ---------------------------------------------------------------- anything to decide on?


def too_few_engines(question: Question) -> Verdict | None:
    """With fewer than two engines there is no topology to choose."""
    if question.engines >= 2:
        return None
    return _hold(reasons.TOO_FEW_ENGINES, f"{question.engines} engine(s): a split needs two")


def metrics_unusable(question: Question) -> Verdict | None:
    """Without signals nothing is known, and nothing is done.

    Samples that are too old, or carry no time, describe another fleet; NaN compares with nothing and must not pass for
    "fine"; a rate, a ratio or an engine that does not report leaves a gap that is not zero.
    """
    verdict = metrics_verdict(question.snapshot, question.now)
    return None if verdict.status == "True" else verdict


def metrics_contradictory(question: Question) -> Verdict | None:
    """A fleet that nobody uses holds nothing: rates of zero beside engines at work are somebody's error, not calm.

    The condition MetricsAvailable leaves this out: after a quiet time the first request is held before it is counted.
    """
    signals = question.signals
    if signals is None or signals.requests_per_second != 0.0:
        return None
    decodes = prompts = 0
    for engine in question.snapshot.serving:
        held = engine.running_requests or 0
        decoding = engine.decodes or 0
        decodes, prompts = decodes + decoding, prompts + held - decoding
    if decodes and signals.decode.tokens_per_second == 0.0:
        return _hold(
            reasons.METRICS_CONTRADICTORY, f"no token is decoded by the metrics, and engines decode {decodes} requests"
        )
    if prompts > 0:
        return _hold(
            reasons.METRICS_CONTRADICTORY, f"no request arrives by the metrics, and engines hold {prompts} prompts"
        )
    return None


def step_times_unknown(question: Question) -> Verdict | None:
    """Without step times, measured or from the roofline, no candidate can be scored."""
    signals = question.signals
    if signals is None or step_times(signals) is not None:
        return None
    return _hold(
        reasons.STEP_TIMES_UNKNOWN,
        "neither measured step times nor the model's and accelerator's numbers are known yet",
    )


GUARDS: tuple[Guard, ...] = (
    too_few_engines,
    metrics_unusable,
    metrics_contradictory,
    step_times_unknown,
)


# ---------------------------------------------------------------- may roles change now?


def engines_not_ready(question: Question) -> Verdict | None:
    """While engines start, fail or leave, the fleet is not what the what-if model takes it for."""
    missing = question.engines - len(question.snapshot.serving)
    if missing == 0:
        return None
    return _hold(reasons.ENGINES_NOT_READY, f"{missing} of {question.engines} engines are not ready")


def cooling_down(question: Question) -> Verdict | None:
    """After a transition the fleet rests, longer after each roll-back."""
    until = question.cooldown_until
    if until is None or not question.cooling_down:
        return None
    return _hold(reasons.COOLING_DOWN, f"resting for another {until - question.now:.0f} s after the last transition")


def tuned_lately(question: Question) -> Verdict | None:
    """For a window of the rules after a Tune the misses are those of the budget before: first see what it did."""
    last = question.status.lastDecision
    if last is None or last.action is not Action.TUNE:
        return None
    left = from_rfc3339(last.time) + question.snapshot.rules_window_seconds - question.now
    if left <= 0.0:
        return None
    return _hold(reasons.TUNED_LATELY, f"the signals show the new token budget alone in {left:.0f} s")


def rolled_back_lately(question: Question) -> Verdict | None:
    """The rest after a roll-back: it doubles with each in a row, so that what does not help is not tried for ever."""
    return cooling_down(question) if question.status.rolledBackTransitions else None


WAY_OUT_RESTS: tuple[Guard, ...] = (engines_not_ready, rolled_back_lately)
"""Even for a way out of a split that the load has outgrown."""
STRICT_RESTS: tuple[Guard, ...] = (engines_not_ready, cooling_down)
"""Even for a change that gains much."""
RESTS: tuple[Guard, ...] = (*STRICT_RESTS, tuned_lately)


def first(guards: tuple[Guard, ...], question: Question) -> Verdict | None:
    """The first guard that speaks."""
    return next((verdict for guard in guards if (verdict := guard(question))), None)


# ---------------------------------------------------------------- the state of the metrics


def metrics_verdict(snapshot: Snapshot, now: float) -> Verdict:
    """The condition MetricsAvailable: whether there are numbers to decide on."""
    signals = snapshot.signals
    if isinstance(signals, MetricsProblem):
        return _hold(signals.reason, signals.message)
    if signals.sampled_at is None:
        return _hold(reasons.METRICS_STALE, "the samples carry no time")
    age = now - signals.sampled_at
    if age > OLDEST_SAMPLE_SECONDS:
        return _hold(
            reasons.METRICS_STALE, f"the oldest sample is {age:.0f} s old: is Prometheus scraping the engines?"
        )
    if name := _not_a_number(signals):
        return _hold(reasons.METRICS_NOT_A_NUMBER, f"{name} is not a number")
    if gap := _gap(signals, len(snapshot.serving)):
        return _hold(reasons.METRICS_INCOMPLETE, gap)
    return Verdict("True", "SamplesFresh", f"the oldest sample is {max(0.0, age):.0f} s old")


_NUMBERS = (
    "requests_per_second",
    "missed_ratio",
    "first_token_late_ratio",
    "gaps_late_ratio",
    "decode_stall_ratio",
    "time_to_first_token_p95_seconds",
    "inter_token_p95_seconds",
    "inter_token_p99_seconds",
    "kv_capacity_tokens",
    "kv_bytes_per_token",
    "kv_transfer_failures_per_second",
)


def _not_a_number(signals: Signals) -> str | None:
    for name in _NUMBERS:
        value = getattr(signals, name)
        if value is not None and isnan(value):
            return name
    for name, lengths in (("prompt_tokens", signals.prompt_tokens), ("output_tokens", signals.output_tokens)):
        if lengths and any(isnan(tokens) or isnan(weight) for tokens, weight in lengths):
            return name
    return None


def _gap(signals: Signals, serving: int) -> str | None:
    if signals.requests_per_second is None or signals.missed_ratio is None:
        return "the rate of requests or the share that misses its objectives is not known"
    if signals.engines_reporting is not None and signals.engines_reporting < serving:
        return f"{signals.engines_reporting} of {serving} ready engines report"
    lengths = {"prompts": signals.prompt_tokens, "outputs": signals.output_tokens}  # outputs: once requests end
    unknown = [name for name, known in lengths.items() if not known]
    if signals.requests_per_second > 0.0 and unknown:
        return f"requests run, but the lengths of their {' and '.join(unknown)} are not known yet"
    return None
