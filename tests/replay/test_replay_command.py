"""`ridgeline replay`: what a person and a program see, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ridgeline.__main__ import main
from ridgeline.simulate import replay
from ridgeline.simulate.traces import Arrival
from ridgeline_exporters.roofline import hardware
from ridgeline_exporters.roofline.catalogue import find_model
from ridgeline_exporters.roofline.model import ModelShape
from tests.bench.simulator import generated

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
FLEET = ["--model", "llama-3.1-8b", "--engines", "2"]


def csv(rows: list[tuple[float, int, int]]) -> str:
    lines = [f"2026-01-01 00:{int(at // 60):02}:{at % 60:09.6f},{prompt},{output}" for at, prompt, output in rows]
    return "\n".join([HEADER, *lines]) + "\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two minutes: short questions twice a second, and a long prompt every four."""
    rows = [(at / 2, 4000 if at % 8 == 0 else 300, 60 + at % 40) for at in range(240)]
    path = tmp_path / "trace.csv"
    path.write_text(csv(rows))
    return path


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["replay", *FLEET, "--json", *arguments]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_each_policy_is_played_on_the_whole_trace(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "--trace", str(trace), "--policies", "ridgeline,mixed:256,split:1")
    assert [each["policy"] for each in found["policies"]] == ["ridgeline", "mixed:256", "split:1"]
    for each in found["policies"]:
        assert each["summary"]["requests"] == 240
        assert sum(each["summary"]["outcomes"].values()) == 240
        assert each["gpu_hours"] == pytest.approx(2 * each["summary"]["seconds"] / 3600)
        assert each["timeline"][0]["start_seconds"] == 0.0
    mixed, split = found["policies"][1:]
    assert (mixed["timeline"][0]["mixed"], mixed["timeline"][0]["token_budget"]) == (2, 256)
    assert (split["timeline"][0]["prefill"], split["timeline"][0]["decode"]) == (1, 1)
    assert split["summary"]["kv_bytes_moved"] > 0 == mixed["summary"]["kv_bytes_moved"]


def test_what_ridgeline_did_is_told_with_its_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Chat at a rate at which whole prompts in a step make the gaps of a 70B late."""
    path = tmp_path / "chat.csv"
    path.write_text(csv([(a.seconds, a.prompt_tokens, a.output_tokens) for a in generated(600.0)]))
    strict = ["--model", "llama-3.1-70b", "--tensor-parallel", "4", "--engines", "4", "--trace", str(path)]
    strict += ["--rate-scale", "3", "--itl-ms", "40", "--policies", "ridgeline"]
    [decision, *_] = answer(capsys, *strict)["policies"][0]["decisions"]
    assert decision["action"] in ("Tune", "Split")
    assert re.search(r"\d", decision["message"]), "with numbers"
    assert main(["replay", *strict]) == 0
    printed = capsys.readouterr().out
    assert "What ridgeline did:" in printed
    assert f"{decision['action']} ({decision['reason']})" in printed
    needed = re.search(r"By its estimate, the busiest window needed (\d+) engines, with room", printed)
    assert needed is not None
    assert 2 <= int(needed[1]) <= 8


def test_the_same_question_gives_the_same_bytes(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for _ in range(2):
        assert main(["replay", *FLEET, "--json", "--trace", str(trace), "--policies", "ridgeline,mixed:512"]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


def test_a_rate_scale_plays_the_same_requests_faster(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, faster = (
        answer(capsys, "--trace", str(trace), "--policies", "mixed:512", "--rate-scale", scale)["policies"][0][
            "summary"
        ]
        for scale in ("1", "4")
    )
    assert plain["requests"] == faster["requests"] == 240
    assert faster["seconds"] < plain["seconds"] / 3


def test_numbers_may_be_grouped_as_people_write_them(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, grouped = (
        answer(capsys, "--trace", str(trace), "--policies", "mixed:512", "--ttft-ms", first, "--rate-scale", scale)
        for first, scale in (("1500", "1000"), ("1,500", "1_000"))
    )
    assert plain == grouped
    assert grouped["time_to_first_token_objective_milliseconds"] == 1500


@pytest.mark.parametrize("percentile", [50, 57, 95, 99])
def test_a_percentile_is_shown_and_decides_nothing(
    percentile: int, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--trace", str(trace), "--policies", "ridgeline"]
    plain, found = answer(capsys, *asked), answer(capsys, *asked, "--percentile", str(percentile))
    assert found["percentile"] == percentile
    assert found["policies"][0]["decisions"] == plain["policies"][0]["decisions"]
    summary = found["policies"][0]["summary"]
    first = summary["time_to_first_token_seconds"]
    assert first["p50"] <= first[f"p{percentile}"] <= first["p99"]
    assert main(["replay", *FLEET, *asked, "--percentile", str(percentile)]) == 0
    [head] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("policy")]
    assert f"p{percentile}" in head.split()


def test_the_percentile_is_the_fleets_own() -> None:
    """The policy is told what a user's fleet would say."""
    shape = ModelShape.from_config(find_model("llama-3.1-8b"))
    plant = replay.Plant(shape, hardware.find("H100-SXM5-80GB"), 2, 2000, 50, percentile=90)
    assert plant.spec().objectives.percentile == 90


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--percentile", "30", "from 50 to 99"),
        ("--percentile", "p95", "a whole number above 0"),
        ("--engines", "0", "a whole number above 0"),
        ("--ttft-ms", "2.5", "a whole number above 0"),
        ("--rate-scale", "nan", "a number above 0"),
    ],
)
def test_a_number_that_is_none_is_named_with_its_option(
    option: str, value: str, told: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["replay", "--trace", str(trace), option, value])
    error = capsys.readouterr().err
    assert f"argument {option}" in error
    assert told in error


def test_mooncakes_traces_are_read_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 500 * i, "input_length": 2048, "output_length": 20, "hash_ids": [1, 2, 3, 4 + i]}
        for i in range(20)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    summary = answer(capsys, "--trace", str(path), "--policies", "mixed:8192")["policies"][0]["summary"]
    assert summary["requests"] == 20
    assert summary["cached_tokens"] > 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("", "the trace is empty", id="empty"),
        pytest.param(HEADER + "\n", "the trace has a header and no request", id="no request"),
        pytest.param("a,b\n1,2\n", "line 1: neither Azure's header", id="another file"),
        pytest.param(csv([(0, 10, 5)]) + "2026-01-01 00:00:01,ten,5\n", "line 3:", id="a word for a number"),
        pytest.param(csv([(5, 10, 5), (1, 10, 5)]), "line 3: its time lies 4 s before the line above", id="unordered"),
        pytest.param(csv([(0, 10, 0)]), "line 2: a request has at least one", id="no output"),
        pytest.param(
            '{"timestamp": -1, "input_length": 5, "output_length": 5}\n',
            "line 1: timestamp -1 is negative",
            id="negative",
        ),
    ],
)
def test_a_trace_that_cannot_be_used_is_told_with_file_and_line(
    text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.txt"
    path.write_text(text)
    assert main(["replay", *FLEET, "--trace", str(path), "--policies", "mixed:512"]) == 2
    error = capsys.readouterr().err
    assert str(path) in error
    assert told in error


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        pytest.param(["--policies", "best"], "there is no policy 'best' for 2 engines", id="no policy"),
        pytest.param(["--policies", "split:2"], "fewer than all", id="a split without decodes"),
        pytest.param(["--policies", "mixed:9000"], "at most 8192", id="a budget above the engines' own"),
        pytest.param(["--model", "llama-3.1-70b"], "leave no room for a KV cache in 90 % of 1 x 80 GB", id="too large"),
        pytest.param(["--model", "nobody-7b"], "is not known by name", id="no model"),
        pytest.param(["--gpu", "abacus"], "abacus", id="no GPU"),
        pytest.param(["--tensor-parallel", "3"], "use a divisor of 32", id="heads that cannot be shared"),
    ],
)
def test_what_cannot_be_simulated_is_told_with_its_cure(
    arguments: list[str], told: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", *FLEET, "--trace", str(trace), *arguments]) == 2
    assert told in capsys.readouterr().err


def test_a_missing_file_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", *FLEET, "--trace", str(tmp_path / "none.csv")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_ctrl_c_keeps_what_is_done(
    trace: Path, capsys: pytest.CaptureFixture[str], ctrl_c_during: Callable[[str], None]
) -> None:
    ctrl_c_during("mixed:256")
    assert main(["replay", *FLEET, "--trace", str(trace), "--policies", "mixed:512,mixed:256,split:1"]) == 130
    printed = capsys.readouterr()
    assert "mixed:512" in printed.out
    assert "split:1" not in printed.out
    assert "1 of 3 policies were played" in printed.err


def test_the_default_policies_exist_for_any_number_of_engines() -> None:
    for engines in range(1, 20):
        names = replay.default_policies(engines)
        assert len(set(names)) == len(names)
        splits = [int(name.removeprefix("split:")) for name in names if name.startswith("split:")]
        assert all(0 < prefill < engines for prefill in splits)
        assert bool(splits) == (engines > 1)


def test_a_trace_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are drawn as they are due, never the whole trace at once."""
    plant = replay.Plant(
        ModelShape.from_config(find_model("llama-3.1-8b")), hardware.find("H100-SXM5-80GB"), 2, 2000, 50
    )
    drawn = 0
    ahead: list[int] = []

    def arrivals() -> Iterator[Arrival]:
        nonlocal drawn
        for i in range(2000):
            drawn += 1
            yield Arrival(i / 2, 200, 20)

    replay.play("mixed:512", plant, arrivals(), lambda now, requests: ahead.append(drawn - requests))
    assert ahead
    assert max(ahead) <= 1
