"""The JSON that Grafana loads: fresh from its code, complete, and without panels on top of each other."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from dashboards.contract import DASHBOARDS, dashboards, panels
from dashboards.generate import rendered

BOARDS = [pytest.param(board, id=name) for name, board in dashboards().items()]
VARIABLE = {"type": "prometheus", "uid": "${datasource}"}


def problems(board: dict[str, Any]) -> list[str]:
    """What is wrong with the structure of a dashboard."""
    found = []
    everything = list(panels(board))
    content = [panel for panel in everything if panel["type"] != "row"]
    for what, values in (
        ("id", [panel["id"] for panel in everything]),
        ("title", [panel["title"] for panel in everything]),
    ):
        found += [f"{what} {value} is used twice" for value, times in Counter(values).items() if times > 1]
    for panel in content:
        title = panel.get("title") or panel["id"]
        if not panel.get("description", "").endswith("."):
            found.append(f"{title}: no sentence on how to read it")
        if not panel["fieldConfig"]["defaults"].get("unit"):
            found.append(f"{title}: no unit")
        sources = [panel.get("datasource"), *(target.get("datasource") for target in panel.get("targets", []))]
        if any(source != VARIABLE for source in sources) or len(sources) < 2:
            found.append(f"{title}: not from the chosen Prometheus")
        for target in panel.get("targets", []):
            found += [f"{title}: {text}" for text in _range_problems(target["expr"])]
    return found + _overlaps(everything)


def _range_problems(expression: str) -> list[str]:
    """Rates over anything but Grafana's own interval are wrong at some zoom."""
    ranges = re.findall(r"\b(\w+)\([^()]*\[([^\]]+)\]", expression)
    wrong = [(name, span) for name, span in ranges if span not in ("$__rate_interval", "$__range")]
    return [f"{name} over {span} instead of $__rate_interval" for name, span in wrong]


def _overlaps(everything: list[dict[str, Any]]) -> list[str]:
    taken: dict[tuple[int, int], str] = {}
    found = []
    for panel in everything:
        at = panel["gridPos"]
        if not (at["x"] >= 0 and at["x"] + at["w"] <= 24 and at["w"] > 0 and at["h"] > 0):
            found.append(f"{panel['title']}: outside of the grid")
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                if (x, y) in taken:
                    found.append(f"{panel['title']}: on top of {taken[x, y]}")
                    return found
                taken[x, y] = panel["title"]
    return found


def test_the_committed_json_is_what_the_code_writes() -> None:
    committed = {path.name: path.read_text() for path in DASHBOARDS.glob("*.json")}
    assert committed == rendered(), "run `python -m dashboards.generate`"


@pytest.mark.parametrize("board", BOARDS)
def test_a_dashboard_is_complete(board: dict[str, Any]) -> None:
    assert problems(board) == []


@pytest.mark.parametrize("board", BOARDS)
def test_a_dashboard_finds_its_prometheus_and_fleet_itself(board: dict[str, Any]) -> None:
    assert [variable["name"] for variable in board["templating"]["list"]] == ["datasource", "namespace", "fleet"]
    assert board["uid"]
    assert "id" not in board or board["id"] is None
    assert board["schemaVersion"] >= 36


@pytest.mark.parametrize("board", BOARDS)
def test_every_query_is_about_the_chosen_fleet(board: dict[str, Any]) -> None:
    of_the_operator = ("ridgeline_leader", "ridgeline_reconcile_")
    for panel in panels(board):
        for target in panel.get("targets") or []:
            chosen = 'namespace="$namespace", fleet="$fleet"' in target["expr"]
            assert chosen or any(name in target["expr"] for name in of_the_operator), panel["title"]


FAULTS: dict[str, tuple[str, Callable[[dict[str, Any], dict[str, Any]], object]]] = {
    "id": ("is used twice", lambda panel, other: panel.update(id=other["id"])),
    "title": ("is used twice", lambda panel, other: panel.update(title=other["title"])),
    "description": ("no sentence", lambda panel, _: panel.update(description="")),
    "unit": ("no unit", lambda panel, _: panel["fieldConfig"]["defaults"].pop("unit")),
    "datasource": ("not from the chosen", lambda panel, _: panel.update(datasource={"uid": "prom"})),
    "position": ("on top of", lambda panel, other: panel.update(gridPos=other["gridPos"])),
    "width": ("outside of the grid", lambda panel, _: panel["gridPos"].update(w=30)),
    "range": (
        "instead of $__rate_interval",
        lambda panel, _: panel["targets"][0].update(expr="rate(ridgeline_engine_tokens_total[5m])"),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    problem, plant = FAULTS[fault]
    board = copy.deepcopy(dashboards()["ridgeline-fleet.json"])
    content = [panel for panel in panels(board) if panel["type"] != "row"]
    plant(content[5], content[6])
    assert any(problem in found for found in problems(board))
