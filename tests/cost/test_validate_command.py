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
    errors = {line.split()[2].rstrip(":"): line for line in lines if line.startswith("Error of ")}
    assert set(errors) == {"prompt_time_ms", "token_time_ms", "ttft_mean_ms", "itl_mean_ms", "e2e_mean_ms"}
    assert errors["token_time_ms"].endswith(", over 8 points")
    assert errors["ttft_mean_ms"].endswith(", over 6 points")
    assert "worst" in errors["itl_mean_ms"]
    served = next(line for line in lines if line.startswith("s0 ") and "e2e_mean_ms" in line)
    assert "5/s of 800+200 tokens" in served


def test_a_program_gets_the_same_as_json(points_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(points_file, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    batch = next(point for point in answer["points"] if point["id"] == "b6")
    measured, modelled = batch["measured_milliseconds"], batch["modelled_milliseconds"]
    assert batch["relative_error"]["token_time_ms"] == pytest.approx(
        modelled["token_time_ms"] / measured["token_time_ms"] - 1
    )
    served = {"ttft_mean_ms", "itl_mean_ms", "e2e_mean_ms"}
    assert set(answer["median_relative_error"]) == {"prompt_time_ms", "token_time_ms"} | served
    for name, error in answer["median_relative_error"].items():
        assert error <= answer["worst_relative_error"][name]
    assert served < set(next(p for p in answer["points"] if p["id"] == "s0")["modelled_milliseconds"])


def test_a_model_that_is_not_known_is_named_and_the_others_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "points.csv"
    path.write_text(csv_of(generated_points()).replace("Mistral-7B", "Nobody-7B"), encoding="utf-8")
    assert run(path) == 0
    printed = capsys.readouterr().out
    assert "(Nobody-7B): model 'Nobody-7B' is not known by name" in printed
    assert "over 5 points" in printed


def test_a_wrong_file_is_refused_with_cause_and_cure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "points.csv"
    assert run(path) == 2
    assert "cannot be read" in capsys.readouterr().err
    path.write_text("id\n1\n", encoding="utf-8")
    assert run(path) == 2
    assert f"{path}: the header has no model, weights" in capsys.readouterr().err


def test_it_is_a_subcommand(points_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ridgeline.main(["validate", "--points", str(points_file)]) == 0
    assert "Error of token_time_ms: median" in capsys.readouterr().out
