"""The message of a decision: what is wrong, what each side of the choice would do, and what it costs, in numbers."""

from __future__ import annotations

from math import fsum

from ridgeline.api.fleet import Action, Mode
from ridgeline.decide.candidates import Assessment, Candidate
from ridgeline.decide.question import Question
from ridgeline.decide.snapshot import Signals
from ridgeline.decide.triggers import Trigger, missed_text
from ridgeline.decide.wording import duration, percent, size, topology_text


def explain(question: Question, action: Action, chosen: Candidate, scores: Assessment, trigger: Trigger) -> str:
    """One sentence with the evidence, such as `Split 8 mixed → 6P:2D: 8.4 % of requests miss …`."""
    parts = [trigger.evidence]
    signals = question.signals
    if signals is not None:
        if signals.missed_ratio and missed_text(question) not in trigger.evidence:
            parts.append(missed_text(question))
        parts += _roofline(signals)
    parts += _comparison(action, chosen, scores)
    if action in (Action.SPLIT, Action.REBALANCE):
        parts += _transfer(question, chosen)
    return f"{headline(question, action, chosen)}: {'; '.join(parts)}."


def headline(question: Question, action: Action, chosen: Candidate) -> str:
    """What is done, in short."""
    if action is Action.TUNE:
        return f"Tune token budget {question.budget} → {chosen.topology.tokenBudget}"
    return f"{action} {topology_text(question.today)} → {topology_text(chosen.topology)}"


def _roofline(signals: Signals) -> list[str]:
    ridge = signals.ridge_flops_per_byte
    if not ridge:
        return []
    sides = []
    for name, phase in (("prefill", signals.prefill), ("decode", signals.decode)):
        intensity = phase.arithmetic_intensity_flops_per_byte
        if intensity is not None:
            side = "right" if intensity > ridge else "left"
            sides.append(f"{name} at {intensity:,.0f} FLOP/byte is {side} of the ridge ({ridge:,.0f})")
    return sides


def _comparison(action: Action, chosen: Candidate, scores: Assessment) -> list[str]:
    budget, mixed_missed = scores.best_mixed.topology.tokenBudget, percent(scores.best_mixed.missed)
    if action is Action.TUNE:
        parts = [
            f"budget {chosen.topology.tokenBudget} would miss {percent(chosen.missed)}, today's {percent(scores.today.missed)}"
        ]
        if scores.best_split is not None:
            split = scores.best_split
            parts.append(f"the best split ({topology_text(split.topology)}) {percent(split.missed)}")
        return parts
    if action is Action.SPLIT:
        would = f"the best token budget for mixed engines ({budget}) would still miss {mixed_missed}"
        return [f"{would}, {topology_text(chosen.topology)} {percent(chosen.missed)}"]
    today = f"today's split would miss {percent(scores.today.missed)}"
    if action is Action.MERGE:
        return [f"{today}, mixed engines with budget {chosen.topology.tokenBudget} {percent(chosen.missed)}"]
    parts = [f"{today}, {topology_text(chosen.topology)} {percent(chosen.missed)}"]
    best = scores.best_split
    if best is not None and best.topology != chosen.topology:
        parts.append(f"the best split ({topology_text(best.topology)}) {percent(best.missed)}")
    return parts


def _transfer(question: Question, chosen: Candidate) -> list[str]:
    signals, link = question.signals, question.snapshot.link_bytes_per_second
    if signals is None or not signals.kv_bytes_per_token or not signals.prompt_tokens:
        return []
    if chosen.topology.mode is not Mode.SPLIT:
        return []
    prompt = fsum(tokens * weight for tokens, weight in signals.prompt_tokens)
    moved = prompt * signals.kv_bytes_per_token
    if not link:
        return [f"each request moves {size(moved)} of KV over a link of unknown speed"]
    ingress = percent(chosen.forecast.ingress_ratio)
    takes = f"moving {size(moved)} of KV a request takes {duration(moved / link)} at {size(link)}/s"
    return [f"{takes}, {ingress} of the decode engines' ingress"]
