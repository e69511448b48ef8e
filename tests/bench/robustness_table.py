"""The table of the robustness benchmark, in Markdown: means over draws."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ridgeline.api.fleet import Action
from ridgeline.decide.step_plan import Outcome
from tests.bench.disturbances import DISTURBANCES, UNDISTURBED
from tests.bench.policy_table import DEFAULT, line, mean

RIDGELINE, BEST_STATIC = "ridgeline", "best static"
LEAST_SHARE = 0.05
"""What was said for less of the time is left out."""
MOST_REASONS = 3

Row = Mapping[str, Any]
HEAD = (
    "disturbance", "what is wrong", "met", "minus undisturbed", "default mixed", "best static",
    "changes", "rolled back", "tunes", "what the policy said",
)  # fmt: skip


def key(row: Row) -> tuple[Any, ...]:
    """What names a row."""
    return tuple(row[name] for name in ("case", "kind", "draw", "level", "policy", "disturbance"))


def table(rows: Sequence[Row], order: Sequence[str]) -> str:
    """One table for each case, kind and level; disturbances in this order."""
    groups: dict[tuple[str, str, float], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["case"], row["kind"], row["level"]].append(row)
    if not groups:
        return "No rows yet."
    parts = []
    for (case, kind, level), members in sorted(groups.items()):
        draws = sorted({row["draw"] for row in members})
        statics = sorted({row["choice"] for row in members if row["policy"] == BEST_STATIC})
        parts += [
            f"{case}, {kind}, at {level:g} of the rate that the best static choice ({', '.join(statics)}) carries, "
            f"{'draw' if len(draws) == 1 else 'draws'} {', '.join(map(str, draws))}; default mixed is {DEFAULT}:",
            "",
            line(HEAD),
            line(("---", "---", *("---:",) * 7, "---")),
            *(line(cells) for name in order if (cells := _cells(name, members))),
            "",
        ]
    return "\n".join(parts[:-1])


def _cells(disturbance: str, members: Sequence[Row]) -> tuple[str, ...] | None:
    own = [row for row in members if row["policy"] == RIDGELINE and row["disturbance"] == disturbance]
    if not own:
        return None
    calm = {row["draw"]: row["attainment"] for row in members if _is(row, RIDGELINE, UNDISTURBED)}
    minus = [row["attainment"] - calm[row["draw"]] for row in own if row["draw"] in calm]
    return (
        disturbance,
        DISTURBANCES[disturbance].tells,
        _percent([row["attainment"] for row in own]),
        f"{100 * mean(minus):+.1f}" if minus and disturbance != UNDISTURBED else "",
        _percent(_static(members, DEFAULT, disturbance)),
        _percent(_static(members, BEST_STATIC, disturbance)),
        _count(own, Outcome.DONE),
        _count(own, Outcome.ROLLED_BACK),
        _count(own, Action.TUNE),
        _said(own),
    )


def _static(members: Sequence[Row], policy: str, disturbance: str) -> list[float]:
    """What a static choice met; it does not look, so what only deceives those who do leaves it as it is."""
    played = disturbance if DISTURBANCES[disturbance].deaths else UNDISTURBED
    return [row["attainment"] for row in members if _is(row, policy, played)]


def _is(row: Row, policy: str, disturbance: str) -> bool:
    return bool(row["policy"] == policy and row["disturbance"] == disturbance)


def _said(rows: Iterable[Row]) -> str:
    shares: Counter[str] = Counter()
    played = list(rows)
    for row in played:
        for reason, share in row["said"].items():
            shares[reason] += share / len(played)
    told = [(reason, share) for reason, share in shares.most_common(MOST_REASONS) if share >= LEAST_SHARE]
    return ", ".join(f"{reason} {100 * share:.0f} %" for reason, share in told)


def _count(rows: Sequence[Row], action: str) -> str:
    return f"{mean([row['actions'].get(str(action), 0) for row in rows]):.2g}"


def _percent(values: Sequence[float]) -> str:
    return f"{100 * mean(values):.1f} %" if values else ""
