"""`python -m tests.bench`: which parts are measured, and what is said where one cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import __main__ as bench
from tests.bench.figures import Figure


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the parts that are measured, in place of what takes minutes; the goal of `speed` is missed."""
    names: list[str] = []

    def part(name: str) -> bench.Part:
        def measure(given: bench.Given) -> list[Figure]:
            names.append(name)
            return [Figure(f"figure of {name}", 2.0, "s", below=1.0 if name == "speed" else 3.0)]

        return bench.Part(name, [(name, measure)])

    monkeypatch.setattr(bench, "PARTS", {name: part(name) for name in bench.PARTS})
    return names


def test_all_parts_are_measured_unless_some_are_named(measured: list[str]) -> None:
    assert bench.main([]) == 1
    assert measured == list(bench.PARTS)
    measured.clear()
    assert bench.main(["memory", "accuracy", "memory"]) == 0
    assert measured == ["memory", "accuracy"]


def test_a_missed_goal_ends_with_1_after_all_figures_are_shown(
    measured: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["speed", "accuracy"]) == 1
    printed = capsys.readouterr()
    assert "figure of speed" in printed.out
    assert "figure of accuracy" in printed.out
    assert "measuring: speed" in printed.err


def test_help_names_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(["--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    for name, part in bench.PARTS.items():
        assert f"  {name} " in printed
        assert part.what in printed


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(["speeed"], "there is no part speeed; choose from exporter", id="part"),
        pytest.param(["--points", "none.csv"], "cannot be used: [Errno 2]", id="no points"),
        pytest.param(["--points", "wrong.csv"], "the header has no model", id="wrong points"),
        pytest.param(["--trace", "wrong.csv"], "wrong.csv, line 1: neither Azure's header", id="wrong trace"),
    ],
)
def test_what_cannot_be_used_is_told_before_anything_is_measured(
    measured: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wrong.csv").write_text("id\n1\n")
    with pytest.raises(SystemExit) as ended:
        bench.main(arguments)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err
    assert measured == []


def test_without_points_the_accuracy_is_not_measured_and_is_no_miss(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "MEASURED", tmp_path / "none.csv")
    assert bench.main(["accuracy"]) == 0
    assert "accuracy of the cost model: not measured: no points given" in capsys.readouterr().out


def test_without_the_engines_environment_what_needs_it_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RIDGELINE_VLLM", str(tmp_path / "python"))
    assert bench.main(["scheduler", "throughput"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("not measured: no engines' environment") == 2
