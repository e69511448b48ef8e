"""The steps of a transition, each one function: what to do now, or the step to go on with.

A repair (`REPAIRS`) and a Static topology are not judged by the objectives: there is nothing better to go back to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil

from ridgeline.api.fleet import Mode, Role, Step, TransitionStatus
from ridgeline.decide import reasons
from ridgeline.decide.limits import limits_to_set
from ridgeline.decide.observed import held_requests, kv_bytes, kv_failures, own_prompts_wait, prefills
from ridgeline.decide.roles import counts, next_batch
from ridgeline.decide.snapshot import Signals
from ridgeline.decide.transition_case import Answer, Case, done, missed_permille, progress, rolled_back, under_way
from ridgeline.decide.wording import change, topology_text

PRECHECK_SECONDS = 60
"""A fleet that is not in order for so long is not changed."""
BATCH_SECONDS = 30
"""Each batch of role changes may take so long until every router shows it."""
LIMITS_SECONDS = 15
"""An engine that does not take its budget for so long is left to the later cycles."""
ROUTERS_SECONDS = 30
KV_SECONDS = 30
"""From the first prefill on a prefill engine until KV must have moved."""
OWN_PROMPTS_SECONDS = 120
"""The same while decode engines still have prompts of their own before it, from when they were mixed."""
FEWEST_PREFILLS = 3
"""Fewer prefills may be left over from before the switch: they prove nothing."""
CLOCK_SECONDS = 5
"""How exactly the first request is timed: not each pass writes the status."""
IDLE_SECONDS = 60
"""Without any request for so long, a split is accepted unverified."""
ROLL_BACK_SECONDS = 60
SETTLED_WINDOWS = 4 / 3
QUEUE_GROWTH = 1.25
"""A queue up to so much longer than at the switch has not grown: it changes by the moment."""
NOTHING_TO_LOSE_PERMILLE = 250
"""Where so many requests missed before, a queue from then hides what the new topology does: going back helps nobody."""

REPAIRS = frozenset({reasons.PAIR_INCOMPLETE, reasons.ENGINE_REPLACED, reasons.POOL_BELOW_MINIMUM})


def _precheck(case: Case, transition: TransitionStatus) -> Answer:
    """Routers in step, all engines ready that are not away for good; a fleet that serves nobody is changed at once."""
    problem = _not_in_order(case, transition) if case.table_serves() or not case.snapshot.serving else None
    if problem is None:
        return case.to_step(
            transition,
            Step.SWITCH,
            kvBytesAtSwitch=kv_bytes(case.snapshot),
            kvFailuresAtSwitch=kv_failures(case.snapshot),
            requestsAtSwitch=held_requests(case.snapshot),
        )
    if case.since(transition.stepTime) >= PRECHECK_SECONDS:
        return rolled_back(case, reasons.PRECHECK_FAILED, f"{change(transition)} was not begun: {problem}")
    return under_way(transition, reasons.PRECHECKING, problem)


def _not_in_order(case: Case, transition: TransitionStatus) -> str | None:
    serving, live = len(case.snapshot.serving), len(case.snapshot.live)
    if serving < live or not serving:
        return f"{live - serving} of {live} engines are not ready"
    needed = transition.to.prefill + transition.to.decode
    if transition.to.mode is Mode.SPLIT and live < needed:
        return f"{topology_text(transition.to)} needs {needed} engines, there are {live}"
    return case.lagging()


def _switch(case: Case, transition: TransitionStatus) -> Answer:
    """Write roles batch by batch; the next batch waits until every router shows the last one."""
    pool, wanted = case.division(transition.to)
    if wanted is None:
        return case.roll_back(transition, reasons.TOO_FEW_ENGINES_LEFT, "fewer than two engines are left")
    batch = next_batch(pool, wanted, case.spec.transition.maxConcurrentEngines)
    if not batch and counts(e.role for e in pool) == dict(wanted):
        return case.to_step(transition, Step.SET_LIMITS)
    lagging = case.lagging()
    fitting, total = progress(case.snapshot, wanted)
    message = f"{fitting} of {total} engines have their role"
    if not batch:  # nothing is safe until an engine that is not ready becomes so
        lagging = lagging or f"{message}, and the next change has to wait for an engine that is not ready"
    elif lagging is None or not case.table_serves():
        return replace(under_way(transition, reasons.SWITCHING, message), roles=batch)
    batches = ceil(len(case.snapshot.live) / case.spec.transition.maxConcurrentEngines)
    if case.since(transition.stepTime) >= BATCH_SECONDS * batches:
        return case.roll_back(transition, reasons.SWITCH_STUCK, lagging)
    return under_way(transition, reasons.AWAITING_ROUTERS, lagging)


def _set_limits(case: Case, transition: TransitionStatus) -> Answer:
    """Bring budgets in line with the new roles; an engine that refuses does not hold up the rest."""
    limits = limits_to_set(case.snapshot, transition.to, case.spec.objectives)
    if limits and case.since(transition.stepTime) < LIMITS_SECONDS:
        return replace(under_way(transition, reasons.SETTING_LIMITS, f"{len(limits)} engines to go"), limits=limits)
    return case.to_step(transition, Step.VERIFY, prefillsAtSwitch=prefills(case.snapshot))


def _verify(case: Case, transition: TransitionStatus) -> Answer:
    """Routers show the roles; in a split, KV really moves between the engines and no transfer fails."""
    if strayed := _strayed(case, transition):
        return strayed
    lagging = case.lagging()
    if lagging is not None:
        if case.since(transition.stepTime) >= ROUTERS_SECONDS and transition.reason not in REPAIRS:
            return case.roll_back(transition, reasons.ROUTERS_NOT_IN_STEP, lagging)
        return under_way(transition, reasons.AWAITING_ROUTERS, lagging)
    if transition.to.mode is Mode.MIXED or transition.reason in REPAIRS:
        return case.to_step(transition, Step.SOAK)
    return _verify_kv(case, transition)


def _verify_kv(case: Case, transition: TransitionStatus) -> Answer:
    if failed := _kv_failed(case, transition):
        return failed
    moved, moved_before = kv_bytes(case.snapshot), transition.kvBytesAtSwitch
    prefilled, prefilled_before = prefills(case.snapshot), transition.prefillsAtSwitch
    if moved_before is None or prefilled_before is None or moved < moved_before or prefilled < prefilled_before:
        anew = transition.model_copy(update={"kvBytesAtSwitch": moved, "prefillsAtSwitch": prefilled})
        return under_way(anew, reasons.AWAITING_TRAFFIC, "an engine restarted: its counters begin anew")
    if moved > moved_before:
        return case.to_step(transition, Step.SOAK)
    requests = prefilled - prefilled_before
    if requests == 0:
        return _await_traffic(case, transition)
    if case.since(transition.stepTime) < (OWN_PROMPTS_SECONDS if own_prompts_wait(case.snapshot) else KV_SECONDS):
        return under_way(transition, reasons.AWAITING_KV, f"{requests} prefills finished, no KV has moved yet")
    if requests < FEWEST_PREFILLS:
        again = case.to_step(transition, Step.VERIFY, prefillsAtSwitch=prefilled)
        return under_way(again, reasons.AWAITING_TRAFFIC, "too few requests to judge by: counting anew")
    seconds = case.since(transition.stepTime)
    why = f"{requests} requests were prefilled in {seconds:.0f} s and no byte of KV reached a decode engine"
    return case.roll_back(transition, reasons.KV_NOT_MOVING, why)


def _await_traffic(case: Case, transition: TransitionStatus) -> Answer:
    """Without a request nothing can be proved or refuted: wait, and accept the split when the fleet stays idle."""
    if case.since(transition.startTime) >= max(IDLE_SECONDS, case.spec.transition.soakSeconds):
        message = f"{change(transition)} is done; no request has come yet to prove that KV moves"
        return done(case, reasons.DONE_UNVERIFIED, message)
    late = case.since(transition.stepTime) >= CLOCK_SECONDS  # the clock for KV starts with the first request
    waiting = case.to_step(transition, Step.VERIFY) if late else transition
    return under_way(waiting, reasons.AWAITING_TRAFFIC, "no request has reached a prefill engine yet")


def _soak(case: Case, transition: TransitionStatus) -> Answer:
    """Watch the new topology; go back when clearly more requests miss their objectives than before."""
    if strayed := _strayed(case, transition):
        return strayed
    if transition.reason in REPAIRS or transition.reason == reasons.STATIC_TOPOLOGY:
        return done(case, reasons.TRANSITION_DONE, f"{change(transition)} is done")
    if transition.to.mode is Mode.SPLIT and (failed := _kv_failed(case, transition)):
        return failed
    # The signals tell of the topology before until a window of the rules has passed since the last request ended that
    # was in flight at the switch.
    window, asked = SETTLED_WINDOWS * case.snapshot.rules_window_seconds, case.spec.transition.soakSeconds
    elapsed, soak = case.since(transition.stepTime), max(asked, window) if asked else 0.0
    if soak and elapsed >= window and (worse := _worse(case, transition)):
        return case.roll_back(transition, reasons.MISSES_ROSE, worse)
    if elapsed >= soak:
        return done(case, reasons.TRANSITION_DONE, f"{change(transition)} held for {soak:.0f} s")
    return under_way(transition, reasons.SOAKING, f"watched for {soak:.0f} s")


def _roll_back(case: Case, transition: TransitionStatus) -> Answer:
    """Restore the roles and budgets of before, through tables that serve; whatever happens, come to an end."""
    pool, wanted = case.division(transition.origin)
    if wanted is None:
        wanted = {Role.MIXED: len(pool), Role.PREFILL: 0, Role.DECODE: 0}
    batch = next_batch(pool, wanted, case.spec.transition.maxConcurrentEngines)
    late = case.since(transition.stepTime) >= ROLL_BACK_SECONDS + BATCH_SECONDS * len(case.snapshot.live)
    lagging = case.lagging()
    if batch and (lagging is None or late or not case.table_serves()):
        return replace(under_way(transition, reasons.ROLLING_BACK, transition.message), roles=batch)
    if lagging is not None and not late:
        return under_way(transition, reasons.ROLLING_BACK, f"{transition.message}; {lagging}")
    limits = limits_to_set(case.snapshot, transition.origin, case.spec.objectives)
    if limits and case.since(transition.stepTime) < ROLL_BACK_SECONDS:
        return replace(under_way(transition, reasons.ROLLING_BACK, transition.message), limits=limits)
    return rolled_back(case, transition.reason, transition.message)


STEPS: dict[Step, Callable[[Case, TransitionStatus], Answer]] = {
    Step.PRECHECK: _precheck,
    Step.SWITCH: _switch,
    Step.SET_LIMITS: _set_limits,
    Step.VERIFY: _verify,
    Step.SOAK: _soak,
    Step.ROLL_BACK: _roll_back,
}


# ---------------------------------------------------------------- judgements


def _strayed(case: Case, transition: TransitionStatus) -> TransitionStatus | None:
    """Back to Switch when all engines are ready and their roles are not the wanted ones: one was replaced or added."""
    if len(case.snapshot.serving) < len(case.snapshot.live):
        return None
    pool, wanted = case.division(transition.to)
    if wanted is not None and counts(e.role for e in pool) == dict(wanted):
        return None
    return case.to_step(transition, Step.SWITCH)


def _kv_failed(case: Case, transition: TransitionStatus) -> TransitionStatus | None:
    before, failures = transition.kvFailuresAtSwitch, kv_failures(case.snapshot)
    if before is None or failures <= before:
        return None
    return case.roll_back(
        transition, reasons.KV_NOT_MOVING, f"{failures - before} KV transfers failed since the switch"
    )


def _worse(case: Case, transition: TransitionStatus) -> str | None:
    before, after = transition.missedPermilleAtStart, missed_permille(case.snapshot)
    rules = case.spec.rules
    if before is None or after is None or before > NOTHING_TO_LOSE_PERMILLE or _works_off_queue(case, transition):
        return None
    # Misses nearer to what was forecast of the change than to what was forecast without it are what it was made for.
    forecast = ((transition.missedPermilleExpected or 0) + (transition.missedPermilleIfUnchanged or 0)) // 2
    if after > 10 * rules.missedRequestsPercent and after > max(before, forecast) + 10 * rules.tolerancePercent:
        return f"{after / 10:.1f} % of requests miss their objectives, {before / 10:.1f} % did before"
    return None


def _works_off_queue(case: Case, transition: TransitionStatus) -> bool:
    """Whether what is late is first tokens, and the queue has not grown: those had waited before the switch."""
    before, now = transition.requestsAtSwitch, held_requests(case.snapshot)
    signals = case.snapshot.signals
    gaps_late = signals.gaps_late_ratio if isinstance(signals, Signals) else None
    if before is None or now is None or gaps_late is None:
        return False
    few = (case.spec.rules.missedRequestsPercent + case.spec.rules.tolerancePercent) / 100.0
    return gaps_late <= few and now <= QUEUE_GROWTH * before
