"""The token budget of the first minute, before anything is known, and what becomes of it where a queue would stay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ridgeline.api.fleet import Action, FleetStatus
from ridgeline.api.times import to_rfc3339
from ridgeline.decide import reasons
from ridgeline.decide.candidates import Assessment
from ridgeline.decide.plan import History
from ridgeline.decide.question import Question
from ridgeline.decide.starting_budget import given_back
from tests.decide.fleets import LARGE, NOW, STALLED, after, begun, big, chat, once, spec


def test_engines_that_nobody_has_used_yet_begin_with_a_budget_that_keeps_the_objective() -> None:
    fresh = replace(chat(48.0), output_tokens=None, missed_ratio=0.0)
    plan = once(big("mmmmmmmm", fresh, 8192), LARGE).plan
    assert (plan.action, plan.reason) == (Action.TUNE, reasons.STARTING_BUDGET)
    assert plan.target.tokenBudget == 256
    assert "by the roofline" in plan.message
    tuned_before = begun(600.0, reason="Why")
    for other in (
        once(big("mmmmmmmm", fresh, 8192), LARGE, status=tuned_before),
        once(big("mmmmmmmm", fresh, 256), LARGE),
        once(big("mmmmmmmm", fresh, 8192), spec(8, "Recommend")),
        once(big("mmmmmmmm", replace(fresh, peak_flops=None), 8192), LARGE),
        once(big("ppppppdd", fresh, 8192), LARGE),
    ):
        assert (other.plan.action, other.plan.reason) == (Action.HOLD, reasons.METRICS_INCOMPLETE)


# ---------------------------------------------------------------- given back

FULL = chat(72.0, **STALLED)
"""Chat that is a little more than 6P:2D can do, and far more than mixed engines can."""


def test_engines_get_their_own_budget_back_while_a_split_is_awaited_that_could_not_work_off_a_queue() -> None:
    decision = once(big("mmmmmmmm", FULL, 256), LARGE, status=begun(10.0))
    wanted = decision.history.wanted
    assert wanted is not None
    assert (wanted.action, decision.history.wanted_since) == (Action.SPLIT, NOW)
    assert (decision.plan.action, decision.plan.reason) == (Action.TUNE, wanted.reason)
    assert decision.plan.target.tokenBudget == 8192
    assert "until 6P:2D" in decision.plan.message
    late = once(big("mmmmmmmm", FULL, 8192), LARGE, status=begun(0.0, "x"), history=decision.history, now=NOW + 15.0)
    assert late.plan.action is Action.SPLIT, "it does not put off the split"


@pytest.mark.parametrize(
    ("rate", "budget", "status"),
    [
        pytest.param(70.0, 256, begun(10.0), id="the split has room to work a queue off"),
        pytest.param(72.0, 8192, begun(10.0), id="they have it already"),
        pytest.param(72.0, None, begun(10.0), id="an engine that does not tell its budget takes none"),
        pytest.param(72.0, 256, begun(60.0), id="a window later long answers are under way"),
        pytest.param(72.0, 256, begun(10.0, reason="DecodeStalled"), id="it was done, and an engine does not follow"),
        pytest.param(72.0, 256, FleetStatus(), id="nobody gave them a smaller one"),
    ],
)
def test_the_starting_budget_is_kept_where_giving_it_back_would_only_make_gaps_late(
    rate: float, budget: int | None, status: FleetStatus
) -> None:
    plan = after(big("mmmmmmmm", chat(rate, **STALLED), budget), LARGE, 5, status).plan
    assert (plan.action, plan.reason) == (Action.HOLD, reasons.STABILIZING)
    assert "Split 8 mixed" in plan.message


def test_the_starting_budget_is_kept_while_the_split_cannot_begin_or_gains_little() -> None:
    starting = big("mmmmmmmM", FULL, 256)
    resting = begun(10.0).model_copy(update={"cooldownUntilTime": to_rfc3339(NOW + 300.0)})
    for seen, status in ((starting, begun(10.0)), (big("mmmmmmmm", FULL, 256), resting)):
        assert once(seen, LARGE, status=status).plan.action is Action.HOLD
    question = Question(big("mmmmmmmm", FULL, 256), LARGE, begun(10.0), History(), NOW)
    load, wanted = question.load(), once(big("mmmmmmmm", FULL, 256), LARGE).history.wanted
    assert load is not None
    assert wanted is not None
    scores = Assessment(question, load)
    assert given_back(question, wanted, scores) is not None
    assert given_back(question, replace(wanted, gain=0.2), scores) is None
