"""`ridgeline demo`: what a person sees of the day."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ridgeline import demo_command
from ridgeline.__main__ import main
from ridgeline.simulate import replay
from ridgeline.simulate.day import HOURS, PARTS


@pytest.fixture(autouse=True)
def short_day(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An hour in 5 s and fewer policies, so that a test plays a day in moments; long enough for Ridgeline to act."""
    monkeypatch.setattr(demo_command, "DAY_SECONDS", HOURS * 5.0)
    monkeypatch.setattr(demo_command, "MIXED", ("mixed:8192", "mixed:512"))
    monkeypatch.setattr(demo_command, "SPLITS", ("split:5", "split:6"))
    monkeypatch.setattr(demo_command, "RIVALS", ("arrow",))
    monkeypatch.chdir(tmp_path)  # the report is written into the folder where one is


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What each policy that is played comes to."""
    met: dict[str, float] = {}

    def watched(name: str, *arguments: Any) -> dict[str, Any]:
        answer = replay.play(name, *arguments)
        met[name] = answer["summary"]["attainment"]
        return answer

    monkeypatch.setattr(demo_command, "play", watched)
    return met


def test_a_day_is_told_with_its_rivals_its_parts_and_what_ridgeline_did(
    met: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo"]) == 0
    told = capsys.readouterr()
    lines = told.out.splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("policy"))
    assert [line.split()[0] for line in lines[start + 1 : start + 3]] == ["ridgeline", "mixed:8192"]
    for family in ("mixed", "split"):
        best = max((name for name in met if name.startswith(family)), key=lambda name: met[name])
        assert f"{best} (best {family} in hindsight)" in told.out or best == demo_command.DEFAULT
    for _, name in PARTS:
        assert name in told.out
    assert "nothing is measured" in told.out
    assert re.search(r"^  \d\d:\d\d  changed the token budget 8192 → \d+, because .+", told.out, re.MULTILINE)
    assert f"met the objectives of {100 * met['ridgeline']:.1f} %" in lines[-1]
    *played, written = told.err.splitlines()
    assert [line.split()[1].rstrip(":") for line in played] == list(met)
    assert written == "Report: ridgeline-demo.html"
    report = Path("ridgeline-demo.html").read_text()
    assert "a generated day" in report
    assert "arrow" in told.out


def test_a_seed_names_a_day(capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for arguments in ([], ["--seed", "1"], ["--seed", "2"]):
        assert main(["demo", *arguments, "--report", "day.html"]) == 0
        printed.append((capsys.readouterr().out, Path("day.html").read_text()))
    assert printed[0] == printed[1]
    assert printed[0][0] != printed[2][0]


def test_ctrl_c_keeps_what_is_done(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str, *arguments: Any) -> dict[str, Any]:
        if name == "mixed:512":
            raise KeyboardInterrupt
        return replay.play(name, *arguments)

    monkeypatch.setattr(demo_command, "play", interrupted)
    assert main(["demo"]) == 130
    told = capsys.readouterr()
    assert "mixed:8192 (vLLM's default)" in told.out
    assert "split:" not in told.out
    assert "Ridgeline, told nothing of the day" in told.out
    assert "Interrupted: 2 of 6" in told.err
    assert "2 of 6 policies were played" in Path("ridgeline-demo.html").read_text()


def test_ctrl_c_before_anything_is_done_tells_nothing_false(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo_command, "play", interrupted)
    assert main(["demo"]) == 130
    told = capsys.readouterr()
    assert "Objectives:" in told.out
    assert "policy" not in told.out
    assert not Path("ridgeline-demo.html").exists()
    assert "Interrupted: 0 of 6" in told.err


def test_a_report_that_cannot_be_written_is_told_before_the_day_begins(
    met: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--report", "nowhere/day.html"]) == 2
    assert "there is no folder nowhere; make it, or name another file" in capsys.readouterr().err
    assert not met


@pytest.mark.parametrize(("value", "told"), [("0", "above 0"), ("today", "whole number")])
def test_a_seed_that_is_none_is_named(value: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["demo", "--seed", value])
    error = capsys.readouterr().err
    assert "argument --seed" in error
    assert told in error


def test_the_help_says_how_the_day_is_compressed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["demo", "--help"])
    assert "60 times faster than on a real day" in " ".join(capsys.readouterr().out.split())
