"""Repairs: what is put right without weighing anything, read top to bottom. They need no metrics.

A pod that is replaced comes back mixed, whatever the fleet is: beside a split it serves, but it is not where it was.
A pool that has lost its last engine leaves the other without a partner, and every request fails.
"""

from __future__ import annotations

from collections.abc import Callable

from ridgeline.api.fleet import Action, Mode, Policy, TopologyStatus
from ridgeline.decide import reasons
from ridgeline.decide.plan import Plan
from ridgeline.decide.question import Question
from ridgeline.decide.roles import scaled_split, serves
from ridgeline.decide.wording import topology_text

Repair = Callable[[Question], Plan | None]


def pair_incomplete(question: Question) -> Plan | None:
    """Ready engines that cannot serve by themselves get roles that can, whatever the policy and the metrics say."""
    serving = question.snapshot.serving
    if not serving or serves(e.role for e in serving):
        return None
    lone = serving[0].role
    target = _mixed(question) if len(serving) < 2 else _restored(question)
    message = (
        f"only {lone} engines are ready and requests fail: {topology_text(question.today)} → {topology_text(target)}"
    )
    action = Action.MERGE if target.mode is Mode.MIXED else Action.REBALANCE
    return Plan(action, reasons.PAIR_INCOMPLETE, message, target)


def pool_below_minimum(question: Question) -> Plan | None:
    """A split with too small a pool is brought to the spec's minimum, or merged where there are too few engines."""
    bounds, today = question.spec.topology, question.today
    if bounds.policy is not Policy.AUTO or today.mode is not Mode.SPLIT:
        return None
    few_prefill, few_decode = today.prefill < bounds.minPrefillReplicas, today.decode < bounds.minDecodeReplicas
    if not few_prefill and not few_decode:
        return None
    pool = "prefill" if few_prefill else "decode"
    minimum = bounds.minPrefillReplicas if few_prefill else bounds.minDecodeReplicas
    enough = question.engines >= bounds.minPrefillReplicas + bounds.minDecodeReplicas
    target = _restored(question) if enough else _mixed(question)
    action = Action.REBALANCE if enough else Action.MERGE
    change = f"{topology_text(today)} → {topology_text(target)}"
    message = f"{action} {change}: the {pool} pool is below its minimum of {minimum}"
    return Plan(action, reasons.POOL_BELOW_MINIMUM, message, target)


def engine_replaced(question: Question) -> Plan | None:
    """Mixed engines beside a split join the pool that lacks them."""
    today = question.today
    if question.spec.topology.policy is not Policy.AUTO or today.mode is not Mode.SPLIT or today.mixed == 0:
        return None
    target = _restored(question)
    change = f"{topology_text(today)} → {topology_text(target)}"
    message = f"Rebalance {change}: {today.mixed} mixed engine(s) stand beside the split, as after a restart"
    return Plan(Action.REBALANCE, reasons.ENGINE_REPLACED, message, target)


URGENT: tuple[Repair, ...] = (pair_incomplete,)
"""Done at once: the fleet answers nobody."""
REPAIRS: tuple[Repair, ...] = (pool_below_minimum, engine_replaced)
"""Done when all engines that are not away for good are ready, and no rest is due."""


def remembered_split(question: Question) -> tuple[int, int] | None:
    """The last complete split: today's, or the one in memory, or after a restart the recorded one."""
    today = question.today
    if _complete(today):
        return today.prefill, today.decode
    if question.history.split is not None and question.split:
        return question.history.split
    recorded = question.status.topology
    if question.split and recorded is not None and _complete(recorded):
        return recorded.prefill, recorded.decode
    return None


def _complete(topology: TopologyStatus) -> bool:
    return topology.mode is Mode.SPLIT and topology.mixed == 0 and topology.prefill > 0 and topology.decode > 0


def _restored(question: Question) -> TopologyStatus:
    """All engines in a split: the remembered one, or nearest to it for another number of engines."""
    bounds, today = question.spec.topology, question.today
    prefill, decode = remembered_split(question) or (today.prefill, today.decode)
    if prefill + decode != question.engines or prefill < 1 or decode < 1:
        prefill, decode = scaled_split(prefill, decode, question.engines)
    if question.engines >= bounds.minPrefillReplicas + bounds.minDecodeReplicas:
        prefill = min(max(prefill, bounds.minPrefillReplicas), question.engines - bounds.minDecodeReplicas)
    return TopologyStatus(
        mode=Mode.SPLIT,
        mixed=0,
        prefill=prefill,
        decode=question.engines - prefill,
        tokenBudget=question.budget,
    )


def _mixed(question: Question) -> TopologyStatus:
    return TopologyStatus(mode=Mode.MIXED, mixed=question.engines, prefill=0, decode=0, tokenBudget=question.budget)
