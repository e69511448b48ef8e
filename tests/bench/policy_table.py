"""The table of the policy benchmark: means over draws, their spread, and Ridgeline against what it is measured by."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ridgeline.text_table import aligned

SETTLED_SECONDS = 600.0
"""From then on a stationary load counts as settled."""
DEFAULT = "mixed:8192"
OWN = "ridgeline"
BESIDE = (DEFAULT, "arrow", "dynamo", "wva", "heteroscale", "clairvoyant")
"""What the docs show beside it."""

Row = Mapping[str, Any]
Group = tuple[str, str, float]
"""Case, kind, level."""


def key(row: Row) -> tuple[Any, ...]:
    """What names a row."""
    return row["case"], row["kind"], row["draw"], row["level"], row["policy"]


def read_rows(path: Path, key_of: Callable[[dict[str, Any]], tuple[Any, ...]] = key) -> list[dict[str, Any]]:
    """The rows so far; the last of each name counts. A line cut short by a crash is left out."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        rows[key_of(row)] = row
    return list(rows.values())


def table(rows: Sequence[Row]) -> str:
    """Two tables: each policy in each group, and Ridgeline minus the others in points."""
    if not rows:
        return "No rows yet."
    parts = [*aligned(_policies(rows), left=4)]
    if differences := _differences(rows):
        head = ("case", "kind", "level", "policy", "minus", "mean", "worst", "best", "draws")
        parts += ["", "Points of attainment, draw by draw:", *aligned([head, *differences], left=5)]
    return "\n".join(parts)


def markdown(rows: Sequence[Row]) -> str:
    """For the docs: Ridgeline beside the best static choice of each draw, and beside the rest, a line for each mix."""
    groups = _groups(rows)
    levels = sorted({level for _, _, level in groups})
    head = ["model", "mix", *(f"at {level:g}" for level in levels)]
    lines = [line(head), line(["---", "---", *("---:" for _ in levels)])]
    for case, kind in sorted({(case, kind) for case, kind, _ in groups}):
        cells = [_minus(groups.get((case, kind, level), []), "best static") for level in levels]
        lines.append(line([case, f"`{kind}`", *cells]))
    for level in levels:
        at = {group: members for group, members in groups.items() if group[2] == level}
        others = sorted({row["policy"] for members in at.values() for row in members} & set(BESIDE), key=BESIDE.index)
        lines += ["", f"At {level:g}:", "", line(["model", "mix", "draws", "Ridgeline", "best static", *others])]
        lines.append(line(["---", "---", *("---:" for _ in range(3 + len(others)))]))
        for (case, kind, _), members in at.items():
            own = _attainments(row for row in members if row["policy"] == OWN)
            if own:
                best = [best for of_draw in _by_draw(members).values() if (best := _rival(of_draw, "best static"))]
                rest = [_spread([r["attainment"] for r in members if r["policy"] == name]) for name in others]
                lines.append(line([case, f"`{kind}`", f"{len(own)}", _spread(own), _spread(best), *rest]))
    return "\n".join(lines)


def _minus(members: Iterable[Row], what: str) -> str:
    """Points by which Ridgeline differs, draw by draw: the mean, and the worst."""
    minus = [
        100 * (of_draw[OWN] - other)
        for of_draw in _by_draw(members).values()
        if OWN in of_draw and (other := _rival(of_draw, what)) is not None
    ]
    return f"{mean(minus):+.1f} ({min(minus):+.1f})" if minus else ""


def _by_draw(members: Iterable[Row], what: str = "attainment") -> dict[int, dict[str, float]]:
    """By draw and policy; without what is not known."""
    by_draw: dict[int, dict[str, float]] = defaultdict(dict)
    for row in members:
        if row[what] is not None:
            by_draw[row["draw"]][row["policy"]] = row[what]
    return by_draw


def _spread(values: Sequence[float]) -> str:
    """Mean, least and most, in %."""
    if not values:
        return ""
    spread = f" ({100 * min(values):.0f} to {100 * max(values):.0f})" if len(values) > 1 else ""
    return f"{100 * mean(values):.1f}{spread}"


def line(cells: Iterable[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def _policies(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = [
        ("case", "kind", "level", "policy", "mean", "least", "most", "settled", "changes", "draws")
    ]
    for group, members in _groups(rows).items():
        by_policy = defaultdict(list)
        for row in members:
            by_policy[row["policy"]].append(row)
        for policy, of_policy in sorted(by_policy.items(), key=lambda item: (-mean(_attainments(item[1])), item[0])):
            values = _attainments(of_policy)
            settled = [row["attainment_settled"] for row in of_policy if row["attainment_settled"] is not None]
            lines.append(
                (
                    *_names(group),
                    policy,
                    f"{100 * mean(values):.1f} %",
                    f"{100 * min(values):.1f} %",
                    f"{100 * max(values):.1f} %",
                    f"{100 * mean(settled):.1f} %" if settled and group[1].startswith("steady") else "",
                    f"{mean([row['transitions'] for row in of_policy]):.1f}",
                    f"{len(of_policy)}",
                )
            )
    return lines


def _differences(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for group, members in _groups(rows).items():
        by_draw, settled = _by_draw(members), _by_draw(members, "attainment_settled")
        for own in sorted({row["policy"] for row in members if row["policy"].startswith("ridgeline")}):
            columns = [(what, by_draw, what) for what in ("best static", "best mixed", "best split", "clairvoyant")]
            columns.append((f"default {DEFAULT}", by_draw, DEFAULT))
            if group[1].startswith("steady"):
                columns.append(("best static, settled", settled, "best static"))
            for told, draws, what in columns:
                values = [
                    100 * (of_draw[own] - other)
                    for of_draw in draws.values()
                    if own in of_draw and (other := _rival(of_draw, what)) is not None
                ]
                if values:
                    figures = (f"{mean(values):+.1f}", f"{min(values):+.1f}", f"{max(values):+.1f}", f"{len(values)}")
                    lines.append((*_names(group), own, told, *figures))
    return lines


def _rival(of_draw: Mapping[str, float], what: str) -> float | None:
    """The attainment that Ridgeline is compared with; of the best of a family, chosen in hindsight for each draw."""
    families = {"best static": ("mixed:", "split:"), "best mixed": ("mixed:",), "best split": ("split:",)}
    names = [name for name in of_draw if (name.startswith(families[what]) if what in families else name == what)]
    return max((of_draw[name] for name in names), default=None)


def _groups(rows: Iterable[Row]) -> dict[Group, list[Row]]:
    groups: dict[Group, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["case"], row["kind"], row["level"]].append(row)
    return dict(sorted(groups.items()))


def _names(group: Group) -> tuple[str, str, str]:
    return group[0], group[1], f"{group[2]:g}"


def _attainments(rows: Iterable[Row]) -> list[float]:
    return [row["attainment"] for row in rows]


def mean(values: Sequence[float]) -> float:
    """Of at least one value."""
    return sum(values) / len(values)
