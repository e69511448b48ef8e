"""`decide`: one pass over one fleet.

    transition under way? → hold          urgent repairs → act at once
    guards                → hold          repairs, Static → act when no rest is due
    triggers → candidates → levers        → a plan, once the same answer has stood for the window
    prompts wait                          → a larger token budget at once, where nothing else is done

While a new split is watched, `load_turned` asks whether it should be: what is wanted then needs to stand as long.

The policy decides what becomes of the plan: Recommend stops at the recommendation, Auto acts, Static keeps what the
spec says and takes the recommendation as advice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ridgeline.api.conditions import Verdict
from ridgeline.api.fleet import Action, FleetSpec, FleetStatus, Mode, Policy
from ridgeline.decide import reasons
from ridgeline.decide.calibration import bursty, no_more_than_seen
from ridgeline.decide.candidates import Assessment
from ridgeline.decide.engines_needed import engines_needed, fewest_engines, needed_text
from ridgeline.decide.guards import GUARDS, RESTS, STRICT_RESTS, WAY_OUT_RESTS, Guard, first
from ridgeline.decide.levers import LEVERS, WITHOUT_COMPARISON, relieve
from ridgeline.decide.plan import Decision, History, Plan
from ridgeline.decide.question import Question
from ridgeline.decide.repairs import REPAIRS, URGENT, remembered_split
from ridgeline.decide.scoreboard import is_due, kept
from ridgeline.decide.snapshot import Signals, Snapshot
from ridgeline.decide.starting_budget import given_back, starting_budget
from ridgeline.decide.static_target import is_static_target, static_target
from ridgeline.decide.step_times import usable
from ridgeline.decide.triggers import TRIGGERS, Trigger, missed_text
from ridgeline.decide.waiting_prompts import budget_for_waiting_prompts
from ridgeline.decide.wording import percent, topology_text

QUICK_WINDOW_SHARE = 1 / 3
"""What costs nothing (a token budget) or gains much is done after a third of the window: waiting costs misses."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What the evidence says."""

    next: Plan
    """The cheapest lever that helps, or a hold."""
    recommendation: Plan
    """Where it should end."""
    scores: Assessment
    """How the candidates would do, to be remembered."""
    needed: int | None
    """Engines that the load needs, whatever there are; None when no number would do."""


def decide(snapshot: Snapshot, spec: FleetSpec, status: FleetStatus, history: History, now: float) -> Decision:
    """What to do for a fleet now: a plan, and "do nothing" is one."""
    snapshot, history = with_known_steps(snapshot, history)
    question = Question(snapshot, spec, status, history, now)
    history = replace(history, split=remembered_split(question))
    if status.transition is not None:
        moving = f"{status.transition.action} is at {status.transition.step}"
        return _held(question, history, Verdict("False", reasons.TRANSITION_IN_PROGRESS, moving))
    for urgent in URGENT:
        if plan := urgent(question):
            return Decision(plan, None, settled(history))
    for repair in REPAIRS:
        if plan := repair(question):
            return _unless_resting(question, plan, None, history)
    blind = first(GUARDS, question)
    advice = None if blind else advise(question)
    if advice:
        history = _with_board(question, advice.scores, history)
        history = replace(history, burst=advice.scores.load.burst, engines_needed=advice.needed)
    if spec.topology.policy is Policy.STATIC:
        return _static(question, advice, history)
    if advice is None:
        assert blind is not None
        if plan := starting_budget(question):
            return Decision(plan, None, settled(history))
        return _held(question, history, blind)
    if spec.topology.policy is Policy.RECOMMEND:
        return _recommended(question, advice, history)
    return _unless_prompts_wait(question, advice, _agreed(question, advice, history))


def load_turned(
    snapshot: Snapshot, spec: FleetSpec, status: FleetStatus, history: History, now: float
) -> tuple[Plan | None, History]:
    """The merge for which a new split need not be watched to the end, once wanted for its window; None without one.

    The snapshot and the history are those of `with_known_steps`, which the transition's next step asks for as well.
    No other change is weighed meanwhile: the misses that are seen are, in part, those of the topology before. While a
    repair is due, which would come first, nothing is.
    """
    question = Question(snapshot, spec, status, history, now)
    if spec.topology.policy is not Policy.AUTO or not question.split or first((*GUARDS, *WAY_OUT_RESTS), question):
        return None, settled(history)
    if any(repair(question) for repair in (*URGENT, *REPAIRS)):
        return None, settled(history)
    advice = advise(question)
    if advice.next.reason == reasons.OVERLOADED:  # as of `_agreed`
        return None, history
    if not _way_out(advice):
        return None, settled(history)
    plan = advice.next
    history = _wanting(question, plan, history)
    return plan if _stood(question, history) >= _window(question, plan) else None, history


# ---------------------------------------------------------------- weighing


def advise(question: Question) -> Advice:
    """Triggers, candidates, levers. The guards must have passed."""
    load = question.load()
    assert load is not None, "a guard lets nothing pass that cannot be scored"
    load = bursty(question, load)
    scores = Assessment(question, no_more_than_seen(question, load))
    needed = engines_needed(question, scores, load)
    trigger = next((found for look in TRIGGERS if (found := look(question, scores))), None)
    if trigger is None:
        return _stay(question, scores, needed, reasons.OBJECTIVES_MET, _fine(question, scores, needed))
    late = (question.signals.missed_ratio or 0.0) > question.missed_limit if question.signals else False
    if scores.overloaded and late and trigger.reason not in WITHOUT_COMPARISON:
        if plan := relieve(question, scores, trigger):
            return Advice(plan, plan, scores, needed)
        least = percent(scores.least_missed)
        if needed is not None and needed <= question.engines:  # that was a calmer moment
            needed = fewest_engines(question, scores, load)
        message = (
            f"{trigger.evidence}; whatever the topology, at least {least} would miss{needed_text(question, needed)}"
        )
        return _stay(question, scores, needed, reasons.OVERLOADED, message)
    plans = [plan for lever in LEVERS if (plan := lever(question, scores, trigger))]
    if not plans:
        message = _nothing_better(question, scores, needed, trigger)
        return _stay(question, scores, needed, reasons.NOTHING_BETTER, message)
    return Advice(plans[0], plans[-1], scores, needed)


def _stay(question: Question, scores: Assessment, needed: int | None, reason: str, message: str) -> Advice:
    hold = Plan(Action.HOLD, reason, message, question.today)
    if not question.split:
        return Advice(hold, hold, scores, needed)
    # A split has no token budget of its own: the best one for mixed engines is kept for the way back.
    target = question.today.model_copy(update={"tokenBudget": scores.best_mixed.topology.tokenBudget})
    return Advice(hold, replace(hold, target=target), scores, needed)


def _fine(question: Question, scores: Assessment, needed: int | None) -> str:
    if question.signals and not question.signals.requests_per_second:
        return "no request runs"
    should = f"{topology_text(question.today)} should miss {percent(scores.today.missed)}"
    room = needed_text(question, needed) if needed is not None else ""
    return f"{missed_text(question)}; {should}{room}"


def _nothing_better(question: Question, scores: Assessment, needed: int | None, trigger: Trigger) -> str:
    budget = scores.best_mixed.topology.tokenBudget
    mixed = f"mixed engines with budget {budget} would miss {percent(scores.best_mixed.missed)}"
    split = scores.best_split
    other = f", {topology_text(split.topology)} {percent(split.missed)}" if split else ""
    today = f"today's topology should miss {percent(scores.today.missed)}"
    # Where fewer engines should do, the model and the misses contradict each other: that helps nobody.
    more = needed_text(question, needed) if needed is None or needed > question.engines else ""
    return f"{trigger.evidence}; nothing is clearly better: {today}, {mixed}{other}{more}"


# ---------------------------------------------------------------- policies


def _recommended(question: Question, advice: Advice, history: History) -> Decision:
    if advice.recommendation.action is Action.HOLD:
        return Decision(advice.recommendation, advice.recommendation, settled(history))
    hold = _hold(question, reasons.RECOMMEND_ONLY, f"recommended, not done: {advice.recommendation.message}")
    return Decision(hold, advice.recommendation, _wanting(question, advice.recommendation, history))


def _agreed(question: Question, advice: Advice, history: History) -> Decision:
    """Act on an answer that has stood for its window, unless a rest holds it back."""
    plan = advice.next
    if plan.reason == reasons.OVERLOADED and plan.action is Action.HOLD:
        # The order of candidates is noise then, and comes and goes from pass to pass: what was wanted stays so.
        return Decision(plan, advice.recommendation, history)
    if plan.action is Action.HOLD:
        return Decision(plan, advice.recommendation, settled(history))
    history = _wanting(question, plan, history)
    stood, window = _stood(question, history), _window(question, plan)
    if stood < window:
        if meanwhile := given_back(question, plan, advice.scores):
            return Decision(meanwhile, advice.recommendation, history)
        waiting = f"wanted for {stood:.0f} of {window:.0f} s: {plan.message}"
        return Decision(_hold(question, reasons.STABILIZING, waiting), advice.recommendation, history)
    rests = WAY_OUT_RESTS if _way_out(advice) else STRICT_RESTS if plan.is_clear else RESTS
    return _unless_resting(question, plan, advice.recommendation, history, rests)


def _unless_prompts_wait(question: Question, advice: Advice, agreed: Decision) -> Decision:
    """Give prompts that wait a larger budget rather than hold. A change of roles that is wanted goes on standing."""
    holds = agreed.plan.action is Action.HOLD
    plan = budget_for_waiting_prompts(question, advice.scores.load) if holds else None
    if plan is None:
        return agreed
    history = agreed.history
    if history.wanted is not None and history.wanted.action is Action.TUNE:
        history = settled(history)
    return replace(agreed, plan=plan, history=replace(history, prompts_waited_at=question.now))


def _stood(question: Question, history: History) -> float:
    """Seconds for which what is wanted has been so."""
    assert history.wanted_since is not None, "something is wanted"
    return question.now - history.wanted_since


def _window(question: Question, plan: Plan) -> float:
    """Seconds for which this plan has to stand."""
    share = QUICK_WINDOW_SHARE if plan.action is Action.TUNE or plan.is_clear else 1.0
    return share * question.spec.rules.stabilizationWindowSeconds


def _way_out(advice: Advice) -> bool:
    """A merge that saves much: mixed engines take any load as it comes, and a split that drowns fills as it waits.

    In an overload it saves nobody, and only works off more.
    """
    return advice.next.action is Action.MERGE and advice.next.is_clear and not advice.scores.overloaded


def _static(question: Question, advice: Advice | None, history: History) -> Decision:
    """Bring the fleet to what the spec says; the evidence is only advice."""
    recommendation = advice.recommendation if advice else None
    started_with = question.maximum_tokens
    if is_static_target(question.today, question.spec, question.engines):
        if question.today.tokenBudget is not None and question.today.tokenBudget < started_with:
            message = (
                f"Tune token budget {question.today.tokenBudget} → {started_with}: "
                "the spec's arguments say so, and Static keeps what the spec says"
            )
            target = question.today.model_copy(update={"tokenBudget": started_with})
            return Decision(
                Plan(Action.TUNE, reasons.STATIC_TOPOLOGY, message, target), recommendation, settled(history)
            )
        message = f"{topology_text(question.today)}, as the spec says"
        return Decision(_hold(question, reasons.STATIC_REACHED, message), recommendation, settled(history))
    target = static_target(question.spec, question.engines, started_with)
    towards_split = Action.REBALANCE if question.split else Action.SPLIT
    action = Action.MERGE if target.mode is Mode.MIXED else towards_split
    change = f"{topology_text(question.today)} → {topology_text(target)}"
    wanted = question.spec.topology.prefillReplicas or 0
    message = f"{action} {change}: the spec asks for {wanted} prefill engines"
    plan = Plan(action, reasons.STATIC_TOPOLOGY, message, target)
    return _unless_resting(question, plan, recommendation, history)


def _unless_resting(
    question: Question, plan: Plan, recommendation: Plan | None, history: History, rests: tuple[Guard, ...] = RESTS
) -> Decision:
    rest = first(rests, question) if plan.changes_roles else None
    if rest is None:
        return Decision(plan, recommendation, settled(history))
    return Decision(_hold(question, rest.reason, f"{rest.message}; then {plan.message}"), recommendation, history)


def _held(question: Question, history: History, verdict: Verdict) -> Decision:
    return Decision(_hold(question, verdict.reason, verdict.message), None, settled(history))


def _hold(question: Question, reason: str, message: str) -> Plan:
    return Plan(Action.HOLD, reason, message, question.today)


# ---------------------------------------------------------------- memory


def with_known_steps(snapshot: Snapshot, history: History) -> tuple[Snapshot, History]:
    """Step times as the engines told them last, where they cannot now.

    In an overload every step is full, so that engines no longer tell apart what takes how long in it; to decide by the
    roofline then, would be to forget what is known when it is needed most.
    """
    signals = snapshot.signals
    if not isinstance(signals, Signals):
        return snapshot, history
    engine = (signals.weight_bytes, signals.flops_per_token, signals.peak_flops, signals.peak_memory_bytes_per_second)
    if signals.measured_steps is not None and usable(signals.measured_steps):
        return snapshot, replace(history, steps=signals.measured_steps, steps_of=engine)
    if history.steps is None or history.steps_of != engine:  # of another model or GPU
        return snapshot, history
    return replace(snapshot, signals=replace(signals, measured_steps=history.steps)), history


def _with_board(question: Question, scores: Assessment, history: History) -> History:
    """Remember this pass, if a board is due: none before the rules have seen a whole window of a load that began."""
    boards, window, now = history.boards, question.snapshot.rules_window_seconds, question.now
    signals = question.signals
    if signals is None or not signals.requests_per_second:
        return replace(history, loaded_since=None)
    if history.loaded_since is None or history.loaded_since > now:
        return replace(history, loaded_since=now)
    if is_due(history.loaded_since, now, window) and (not boards or is_due(boards[-1].time, now, window)):
        return replace(history, boards=kept(boards, scores.board(now), window))
    return history


def settled(history: History) -> History:
    """Nothing is wanted any more."""
    return replace(history, wanted=None, wanted_since=None)


def _wanting(question: Question, plan: Plan, history: History) -> History:
    """Remember what is wanted; the clock runs on while the answer stays the same in kind and direction."""
    before = history.wanted
    same = before is not None and _same(question, before, plan)
    since = history.wanted_since if same and history.wanted_since is not None else question.now
    return replace(history, wanted=plan, wanted_since=min(since, question.now))


def _same(question: Question, before: Plan, plan: Plan) -> bool:
    if before.action is not plan.action:
        return False
    if plan.action is Action.TUNE:
        budgets = (before.target.tokenBudget or 0, plan.target.tokenBudget or 0)
        return (budgets[0] > question.budget) == (budgets[1] > question.budget)
    if plan.action is Action.REBALANCE:
        return before.target.prefill == plan.target.prefill
    return True
