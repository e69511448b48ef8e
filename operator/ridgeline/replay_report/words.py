"""The summary: what came out, in plain words, before any plot."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.api.fleet import Action
from ridgeline.decide.engines_needed import ROOM_TEXT
from ridgeline.replay_report.course import Course
from ridgeline.replay_report.text import clock, count, duration, html, number, percent, policy_name
from ridgeline.simulate.scheduler import BUDGET_TOKENS

DEFAULT = f"mixed:{BUDGET_TOKENS}"
"""What vLLM does unless told otherwise."""
STATIC = re.compile(r"(mixed|split):\d+")
_DONE = {
    Action.TUNE: "set a token budget", Action.SPLIT: "split the fleet", Action.MERGE: "merged it",
    Action.REBALANCE: "moved an engine between the pools", Action.ROLL_BACK: "went back",
}  # fmt: skip


def subject(played: Sequence[Course]) -> Course | None:
    """The policy that the report is about: Ridgeline, else the first that decided anything, else the first."""
    for wanted in (lambda each: each.name == "ridgeline", lambda each: each.decisions, lambda each: True):
        found = next((each for each in played if wanted(each)), None)
        if found is not None:
            return found
    return None


def served(course: Course) -> tuple[float, float]:
    """By this, policies are compared: the share of requests that met their objectives, then how many a second."""
    return course.summary["attainment"] or 0.0, course.summary["goodput_requests_per_second"] or 0.0


def best(played: Sequence[Course]) -> Course | None:
    """The policy that served most; of equal ones the first."""
    return max(played, key=served, default=None)


def paragraphs(answer: Mapping[str, Any], played: Sequence[Course]) -> list[str]:
    """Paragraphs of HTML.

    Args:
        answer: as `ridgeline replay --json` prints it.
        played: its policies.
    """
    found = [_question(answer, played)]
    about, most = subject(played), best(played)
    if about is None or most is None:
        found.append("<strong>No policy was played to its end</strong>, so there is nothing to compare.")
        return found
    found.append(_verdict(answer, played, about, most))
    found.append(_deeds(answer, about))
    asked = answer.get("policies_asked", [each.name for each in played])
    if len(asked) > len(played):
        found.append(f"<strong>Interrupted:</strong> {len(played)} of {len(asked)} policies were played.")
    return found


def _question(answer: Mapping[str, Any], played: Sequence[Course]) -> str:
    first, gap = (
        answer["time_to_first_token_objective_milliseconds"], answer["inter_token_objective_milliseconds"],
    )  # fmt: skip
    requests = max((each.summary["requests"] for each in played), default=0)
    faster = "" if answer["rate_scale"] == 1.0 else f" at {answer['rate_scale']:g} times its rate"
    return (
        f"{count(requests, 'request')} of <b>{html(answer['trace'])}</b>{faster} on {count(answer['engines'], 'engine')} of "
        f"{html(answer['model'])} ({html(answer['weights'])}), each on {answer['gpus_per_engine']} x {html(answer['gpu'])}. "
        f"A request meets its objectives when its first token comes within {first:,} ms and at most 5 % of its gaps "
        f"between tokens are longer than {gap:,} ms. Simulated: step times come from a cost model, nothing here was "
        "measured on a GPU."
    )


def _verdict(answer: Mapping[str, Any], played: Sequence[Course], about: Course, most: Course) -> str:
    def name(course: Course) -> str:
        return html(policy_name(course.name, answer["engines"]))

    def points(other: Course) -> str:
        mine, theirs = about.summary["attainment"], other.summary["attainment"]
        if mine is None or theirs is None:
            return ""
        difference = 100 * (mine - theirs)
        if abs(difference) < 0.05:
            return ", as many"
        return f", {abs(difference):.1f} points {'fewer' if difference > 0 else 'more'}"

    sentences = [
        f"<strong>{name(about)} met the objectives of {percent(about.summary['attainment'])} of the requests</strong> "
        f"({number(about.summary['goodput_requests_per_second'], 'a second')})."
    ]
    default = next((each for each in played if each.name == DEFAULT), None)
    equal = [each for each in played if served(each) == served(most)]
    if default is not None and default is not about:
        sentences.append(
            "What vLLM does unless told otherwise, all engines mixed with a budget of "
            f"{BUDGET_TOKENS:,} tokens, met {percent(default.summary['attainment'])}{points(default)}."
        )
    static = best([each for each in played if STATIC.fullmatch(each.name) and each is not about])
    if static is not None and static is not default:
        sentences.append(
            f"The best of the static choices, which one knows only afterwards, was {name(static)} with "
            f"{percent(static.summary['attainment'])}{points(static)}."
        )
    elif static is not None:
        sentences.append("No other static choice was better than that.")
    if len(played) > 1:
        if len(equal) > 1:
            same = "both" if len(equal) == 2 else f"all {len(equal)}"
            sentences.append(f"{_listed([name(each) for each in equal])} served the most, {same} the same.")
        elif most is about or most is not static:
            told = "" if most is about else f": {percent(most.summary['attainment'])}"
            sentences.append(f"Of all {len(played)} policies, {name(most)} served the most{told}.")
    return " ".join(sentences)


def _deeds(answer: Mapping[str, Any], about: Course) -> str:
    name = html(policy_name(about.name, answer["engines"]))
    deeds = Counter(event["action"] for event in about.decisions if event["action"] in _DONE)
    if not about.decisions:
        return f"{name} changed nothing while the trace ran." + _end(about)
    if not deeds:
        told = count(len(about.decisions), "event")
        return f"{name} reported {told}; each is marked in the plot of its topology." + _end(about)
    parts = [f"{_DONE[Action(action)]} {_times(times)}" for action, times in deeds.items()]
    first = next(event for event in about.decisions if event["action"] in _DONE)
    return (
        f"{name} {_listed(parts)}. The first time was after {clock(first['seconds'])}, because: "
        f"<q>{html(first['message'])}</q>{_end(about)}"
    )


def _end(about: Course) -> str:
    if not about.points:
        return ""
    last = about.points[-1]
    engines = [f"{amount} {role}" for role in ("mixed", "prefill", "decode") if (amount := getattr(last, role))]
    whose = " at" if len(engines) == 1 else ", the mixed ones at"
    budget = f"{whose} a budget of {last.token_budget:,} tokens" if last.mixed and last.token_budget else ""
    ended = f" After {duration(last.end_seconds)} it ended with {_listed(engines) or 'no'} engines{budget}."
    needed = about.most_engines_needed
    if not needed:
        return ended
    return f"{ended} By its estimate, the busiest window needed {count(needed, 'engine')}, {ROOM_TEXT}."


def _times(times: int) -> str:
    return {1: "once", 2: "twice"}.get(times, f"{times} times")


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1] if parts else ""
