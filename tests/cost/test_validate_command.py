"""`ridgeline validate`: what a person and a program see."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from ridgeline import __main__ as ridgeline
from ridgeline import validate_command
from tests.cost.measured_points import csv_of, generated_points


@pytest.fixture
def points_file(tmp_path: Path) -> Path:
    path = tmp_path / "points.csv"
    path.write_text(csv_of(generated_points()), encoding="utf-8")
    return path


def run(path: Path, *options: str) -> int:
    parser = argparse.ArgumentParser(prog="ridgeline")
    validate_command.add_parser(parser.add_subparsers())
    return validate_command.run(parser.parse_args(["validate", "--points", str(path), *options]))


def test_a_person_sees_each_value_with_its_error_and_the_medians(
    points_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(points_file) == 0
    lines = capsys.readouterr().out.splitlines()
    first = next(line for line in lines if line.startswith("b6 "))
    assert first.split()[:5] == ["b6", "Llama-2-70B", "fp16,", "2", "x"]
    assert "1 of 1024+128 tokens" in first
    assert first.endswith(" %")
    medians = [line for line in lines if line.startswith("Median error of ")]
    assert len(medians) == 2
    assert all(line.endswith(" % over 8 points") for line in medians)
    assert "Point s0 (Llama-3.1-8B): needs the simulator" in lines


def test_a_program_gets_the_same_as_json(points_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(points_file, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    batch = next(point for point in answer["points"] if point["id"] == "b6")
    measured, modelled = batch["measured_milliseconds"], batch["modelled_milliseconds"]
    assert batch["relative_error"]["token_time_ms"] == pytest.approx(
        modelled["token_time_ms"] / measured["token_time_ms"] - 1
    )
    assert set(answer["median_relative_error"]) == {"prompt_time_ms", "token_time_ms"}
    assert next(point for point in answer["points"] if point["id"] == "s0")["problem"] == "needs the simulator"


def test_a_wrong_file_is_refused_with_cause_and_cure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "points.csv"
    assert run(path) == 2
    assert "cannot be read" in capsys.readouterr().err
    path.write_text("id\n1\n", encoding="utf-8")
    assert run(path) == 2
    assert f"{path}: the header has no model, weights" in capsys.readouterr().err


def test_it_is_a_subcommand(points_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ridgeline.main(["validate", "--points", str(points_file)]) == 0
    assert "Median error of token_time_ms" in capsys.readouterr().out
