"""The accuracy benchmark: its figures are those of `ridgeline validate`, and nothing is judged by what it was fitted to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.__main__ import main as ridgeline
from ridgeline.cost.points import MeasuredPoint
from tests.bench.accuracy import COLUMNS, accuracy
from tests.bench.figures import Figure
from tests.bench.fit_cost_model import SERVING, left_out
from tests.cost.measured_points import csv_of, generated_points

POINTS = generated_points()
RUNS = SERVING.of(POINTS)


def by_name(points: Sequence[MeasuredPoint]) -> dict[str, Figure]:
    return {figure.name: figure for figure in accuracy(points)}


def slower(points: Sequence[MeasuredPoint], model: str) -> list[MeasuredPoint]:
    """The same points, with those of one model measured at three times what they were."""
    return [
        replace(point, measured={name: 3.0 * value for name, value in point.measured.items()})
        if point.model == model else point
        for point in points
    ]  # fmt: skip


def test_figures_of_the_constants_in_force_are_those_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "points.csv"
    path.write_text(csv_of(POINTS))
    assert ridgeline(["validate", "--points", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    figures = by_name(POINTS)
    for column, error in told["median_relative_error"].items():
        figure = figures[f"{COLUMNS[column][0]}, constants in force"]
        assert figure.value == pytest.approx(100 * error)
        assert figure.below == COLUMNS[column][1]
        assert f"worst {100 * told['worst_relative_error'][column]:.1f} %" in figure.note


def test_models_that_were_left_out_are_judged_and_rows_of_known_models_are_not() -> None:
    figures = by_name(POINTS)
    for column in ("e2e_mean_ms", "ttft_mean_ms", "itl_mean_ms"):
        name, goal = COLUMNS[column]
        figure = figures[f"{name}, model left out"]
        assert figure.below == goal
        assert "6 points of 4 models" in figure.note
    rows = figures["a batch's prompts, row left out"]
    assert rows.below is None
    assert "8 points of 1 model" in rows.note


def test_what_was_measured_of_a_model_does_not_reach_the_constants_that_it_is_judged_by() -> None:
    model = RUNS[0].model
    before, after = (
        {name: constants for name, constants, _ in left_out(SERVING, runs)} for runs in (RUNS, slower(RUNS, model))
    )
    assert after[model] == before[model]
    assert all(after[name] != before[name] for name in before if name != model), "the others are fitted to it"


def test_every_point_is_left_out_once() -> None:
    assert sorted(point.id for _, _, group in left_out(SERVING, RUNS) for point in group) == sorted(p.id for p in RUNS)


def test_a_model_that_the_others_do_not_foretell_is_a_miss() -> None:
    """Two models, three times apart: neither tells what the other takes."""
    pair = [point for point in RUNS if point.model in ("Llama-3.1-8B", "Qwen2.5-14B")]
    assert by_name(slower(pair, "Llama-3.1-8B"))["between tokens, model left out"].verdict == "miss"


def test_one_model_alone_is_not_left_out() -> None:
    names = by_name([point for point in RUNS if point.model == "Qwen2.5-14B"])
    assert "between tokens, constants in force" in names
    assert not [name for name in names if "left out" in name]


def test_a_point_that_cannot_be_modelled_is_named() -> None:
    figures = by_name([*RUNS, replace(RUNS[0], id="strange", model="Nobody-7B")])
    note = figures["end to end, constants in force"].note
    assert note.endswith("6 points of 4 models; not modelled: strange")
