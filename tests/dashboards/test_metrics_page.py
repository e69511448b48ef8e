"""docs/metrics.md lists what the code exports, records and alerts on, and nothing else."""

from __future__ import annotations

import re

import pytest

from tests.dashboards.contract import (
    FOREIGN,
    METRICS_PAGE,
    engine_families,
    gpu_families,
    known_series,
    operator_families,
    rule_files,
)

PAGE = METRICS_PAGE.read_text()

Row = tuple[str, ...]


def rows(page: str, heading: str) -> list[Row]:
    """Cells of the table below a heading, without backquotes."""
    section = re.split(r"^## ", page.split(f"\n## {heading}\n")[1], flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [tuple(cell.strip().replace("`", "") for cell in line.strip("|").split("|")) for line in lines]


def documented(page: str) -> dict[str, set[Row]]:
    """Name, type and labels of each thing, as the page has them."""

    def labels(cell: str) -> str:
        return " ".join(sorted(label.strip() for label in cell.split(",") if label.strip()))

    return {
        "Engine exporter": {(name, kind, labels(cell)) for name, kind, cell, _ in rows(page, "Engine exporter")},
        "GPU exporter": {(name, kind, labels(cell)) for name, kind, cell, _ in rows(page, "GPU exporter")},
        "Operator": {(name, kind, labels(cell)) for name, kind, cell, _ in rows(page, "Operator")},
        "Recording rules": {(name, labels(cell)) for name, cell, _ in rows(page, "Recording rules")},
        "Alerts": {(name, severity) for name, severity, _ in rows(page, "Alerts")},
    }


def real() -> dict[str, set[Row]]:
    """The same, as the code has them."""
    known = known_series()[0]
    recorded = {name: known.series[name] - {"namespace", "fleet"} for name in known.recorded}
    return {
        "Engine exporter": {(f.name, f.kind, " ".join(sorted(f.labels))) for f in engine_families()},
        "GPU exporter": {(f.name, f.kind, " ".join(sorted(f.labels))) for f in gpu_families()},
        "Operator": {(f.name, f.kind, " ".join(sorted(f.labels))) for f in operator_families()},
        "Recording rules": {(name, " ".join(sorted(labels))) for name, labels in recorded.items()},
        "Alerts": {(rule["alert"], rule["labels"]["severity"]) for _, rule in rule_files() if "alert" in rule},
    }


@pytest.mark.parametrize("heading", ["Engine exporter", "GPU exporter", "Operator", "Recording rules", "Alerts"])
def test_the_page_says_what_the_code_does(heading: str) -> None:
    page, code = documented(PAGE)[heading], real()[heading]
    assert sorted(page - code) == [], "only on the page"
    assert sorted(code - page) == [], "only in the code"


@pytest.mark.parametrize("heading", ["Engine exporter", "GPU exporter", "Operator", "Recording rules", "Alerts"])
def test_nothing_is_listed_twice_or_without_a_meaning(heading: str) -> None:
    table = rows(PAGE, heading)
    assert len({row[0] for row in table}) == len(table)
    assert all(row[-1].endswith(".") for row in table)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        pytest.param("| `ridgeline_leader` | gauge |", "| `ridgeline_leads` | gauge |", id="a name"),
        pytest.param("| `ridgeline_leader` | gauge |", "| `ridgeline_leader` | counter |", id="a type"),
        pytest.param("counter | `outcome` |", "counter | `result` |", id="a label"),
        pytest.param("| `RidgelineNoLeader` | critical |", "| `RidgelineNoLeader` | warning |", id="a severity"),
    ],
)
def test_a_planted_difference_is_found(right: str, wrong: str) -> None:
    assert right in PAGE
    assert documented(PAGE.replace(right, wrong)) != real()


def test_foreign_series_are_named() -> None:
    for name in FOREIGN:
        family = re.sub(r"_(total|sum|bucket)$", "", name)
        assert f"`{family}`" in PAGE
