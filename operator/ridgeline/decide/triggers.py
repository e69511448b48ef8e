"""Triggers: what is wrong, from evidence, read top to bottom; the first that speaks names the reason.

While a change is pending, trouble counts from half its limit on, so that one better sample does not start the window
of agreement anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.decide import reasons
from ridgeline.decide.candidates import CALM_LOAD, MIXED_COST, RELIEF_SHARE, Assessment
from ridgeline.decide.observed import held_requests
from ridgeline.decide.question import Question
from ridgeline.decide.scoreboard import calm_lately
from ridgeline.decide.wording import duration, percent

PREFILL_BAND = 0.85
"""Prefill queues grow steeply above this share of busy time."""
DECODE_BAND = 0.90
"""Share of the objective, of the KV cache or of the link that decodes may take."""
FAILED_TRANSFERS_SHARE = 0.05
PENDING_SHARE = 0.5
COLLAPSED_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Trigger:
    """Something to act on."""

    reason: str
    evidence: str
    """Half a sentence with the numbers."""


def kv_transfers_fail(question: Question, scores: Assessment) -> Trigger | None:
    """In a split, transfers that fail are prefills done twice, on the engines that should only decode."""
    signals = question.signals
    if not question.split or signals is None or not signals.requests_per_second:
        return None
    failures = signals.kv_transfer_failures_per_second or 0.0
    if failures <= FAILED_TRANSFERS_SHARE * signals.requests_per_second:
        return None
    share = min(1.0, failures / signals.requests_per_second)
    return Trigger(reasons.KV_TRANSFERS_FAIL, f"{percent(share)} of KV transfers between the engines fail")


def split_collapsed(question: Question, scores: Assessment) -> Trigger | None:
    """A split in which most requests miss, as its latencies show too, serves the load badly whatever the model says."""
    missed = question.signals.missed_ratio if question.signals else None
    if not question.split or missed is None or missed <= COLLAPSED_SHARE:
        return None
    late = _late_first_tokens(question) or _late_gaps(question)
    if late is None:  # a share alone may be stuck, or tell of objectives that the engines have got wrong
        return None
    if scores.best_mixed.forecast.missed > scores.today.forecast.missed + MIXED_COST:
        return None
    strain, of_mixed = scores.strain(scores.today), scores.strain(scores.least_strained_mixed)
    if of_mixed > RELIEF_SHARE * strain and (strain > 1.0 or _works_off_queue(question)):
        # Too much load, or a queue from before, explains it, and mixed engines work off less, or hardly more.
        return None
    return Trigger(reasons.SPLIT_COLLAPSED, f"{missed_text(question)}, whatever today's split should do; {late}")


def decode_stalled(question: Question, scores: Assessment) -> Trigger | None:
    """Decodes wait for prefills, and it shows in the latencies: stall alone, or latency alone, proves too little."""
    signals = question.signals
    if signals is None or signals.decode_stall_ratio is None:
        return None
    limit = question.spec.rules.decodeStallPercent / 100.0
    if signals.decode_stall_ratio <= limit * _scale(question):
        return None
    late = _late_gaps(question) or _late_first_tokens(question)
    if late is None:
        return None
    stall = f"decode stalled {percent(signals.decode_stall_ratio)} of decode time (limit {percent(limit)})"
    return Trigger(reasons.DECODE_STALLED, f"{stall}; {late}")


def requests_missed(question: Question, scores: Assessment) -> Trigger | None:
    """More requests miss their objectives than may."""
    signals = question.signals
    if signals is None or signals.missed_ratio is None or not signals.requests_per_second:
        return None
    if signals.missed_ratio <= question.missed_limit * _scale(question):
        return None
    return Trigger(reasons.REQUESTS_MISSED, missed_text(question))


def prefill_pressure(question: Question, scores: Assessment) -> Trigger | None:
    """Prompts come faster than today's engines comfortably prefill them."""
    pressure = scores.today.forecast.prefill_utilization
    if pressure <= PREFILL_BAND:
        return None
    return Trigger(reasons.PREFILL_PRESSURE, f"prefill is {_load_text(pressure)} (band up to {percent(PREFILL_BAND)})")


def decode_pressure(question: Question, scores: Assessment) -> Trigger | None:
    """Decodes come close to the objective, the KV cache or the link."""
    pressure = scores.today.forecast.decode_utilization
    if pressure <= DECODE_BAND:
        return None
    return Trigger(reasons.DECODE_PRESSURE, f"decode is {_load_text(pressure)} (band up to {percent(DECODE_BAND)})")


def calm(question: Question, scores: Assessment) -> Trigger | None:
    """A split fleet whose load mixed engines would carry with margin."""
    signals = question.signals
    if not question.split or signals is None or signals.missed_ratio is None:
        return None
    margin = max(0.005, question.missed_limit / 2.0)
    if scores.mixed_when_busier > margin or signals.missed_ratio > question.missed_limit:
        return None
    window = question.snapshot.rules_window_seconds
    if not calm_lately(question.history.boards, margin, question.now, window):
        return None
    if scores.best_mixed.score > scores.today.score + margin:
        return None  # it has been calm for a while, but the split is still needed now and then
    rate = signals.requests_per_second or 0.0
    budget = scores.best_mixed.topology.tokenBudget
    if rate == 0.0:
        return Trigger(reasons.CALM, "no request runs: mixed engines carry that as well")
    times = f"even at {CALM_LOAD:g} times the load of {rate:.3g} requests/s"
    return Trigger(
        reasons.CALM, f"{times}, mixed engines with budget {budget} would miss {percent(scores.mixed_when_busier)}"
    )


TRIGGERS: tuple[Callable[[Question, Assessment], Trigger | None], ...] = (
    kv_transfers_fail,
    split_collapsed,
    decode_stalled,
    requests_missed,
    prefill_pressure,
    decode_pressure,
    calm,
)


def missed_text(question: Question) -> str:
    """Misses as evidence."""
    missed = question.signals.missed_ratio if question.signals else None
    limit = percent(question.missed_limit)
    return f"{percent(missed or 0.0)} of requests miss their objectives (limit {limit})"


def _scale(question: Question) -> float:
    return PENDING_SHARE if question.pending else 1.0


def _late_gaps(question: Question) -> str | None:
    signals, objective = question.signals, question.spec.objectives.interTokenLatencyMilliseconds / 1000.0
    gap = signals.inter_token_p99_seconds if signals else None
    if gap is None or gap <= objective:
        return None
    return f"inter-token p99 is {duration(gap)} (objective {duration(objective)})"


def _late_first_tokens(question: Question) -> str | None:
    signals, objective = question.signals, question.spec.objectives.timeToFirstTokenMilliseconds / 1000.0
    first = signals.time_to_first_token_p95_seconds if signals else None
    if first is None or first <= objective:
        return None
    return f"time-to-first-token p95 is {duration(first)} (objective {duration(objective)})"


def _works_off_queue(question: Question) -> bool:
    """Whether the engines hold fewer requests than one to three windows ago: those that end now have waited."""
    window, held = question.snapshot.rules_window_seconds, held_requests(question.snapshot)
    boards = [b for b in question.history.boards if window <= question.now - b.time <= 3.0 * window]
    before = boards[-1].requests if boards else None
    return before is not None and held is not None and held < before


def _load_text(pressure: float) -> str:
    return f"at {percent(pressure)} of what today's engines can do" if pressure < 10.0 else "far beyond today's engines"
