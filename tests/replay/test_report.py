"""The report: whole without a network, safe with hostile names, and complete for any answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.__main__ import main
from ridgeline.replay_report import report_html
from ridgeline.replay_report.course import MOST_POINTS, courses
from ridgeline.replay_report.plot import linear, logarithmic, time_axis
from ridgeline.replay_report.plots import MOST_MARKS

FLEET = ["--model", "llama-3.1-8b", "--engines", "2"]
HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&\x00"
VOID = {"meta", "input", "br", "img", "link"}


class Page(HTMLParser):
    """What a browser would make of a report."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert not self._open, f"left open: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            self.scripts.append(data)
        elif self._open and self._open[-1] != "style":
            self.text.append(data)

    def attributes(self, name: str) -> list[str]:
        return [value for _, attributes in self.tags if (value := attributes.get(name)) is not None]

    def values(self) -> Any:
        return json.loads(self.scripts[0])


def interval(start: float, end: float, **changes: Any) -> dict[str, Any]:
    use = {"busy_seconds": 20.0, "flops": 4e15, "memory_bytes": 2e13}
    return {
        "start_seconds": start, "end_seconds": end, "mixed": 2, "prefill": 0, "decode": 0, "token_budget": 512,
        "running": 3, "waiting": 0, "stall_ratio": 0.1, "gap_p50_seconds": 0.01, "gap_p95_seconds": 0.02,
        "gap_p99_seconds": 0.05, "preemptions": 0, "kv_bytes_moved": 0.0, "arrived": 10, "prefill_use": use,
        "decode_use": use, "engine_seconds": {"mixed": 2 * (end - start), "prefill": 0.0, "decode": 0.0},
        "outcomes": {"met": 9, "first_token_late": 1, "gaps_late": 0, "failed": 0, "refused": 0},
        "first_token_p50_seconds": 0.2, "first_token_p95_seconds": 1.0, "prefill_pressure": 0.7, "decode_pressure": 0.4,
    } | changes  # fmt: skip


def policy(name: str, timeline: list[dict[str, Any]], decisions: list[dict[str, Any]], met: int = 90) -> dict[str, Any]:
    quantiles = {"p50": 0.1, "p90": 0.2, "p95": 0.3, "p99": 0.4}
    use = {"busy_seconds": 20.0, "flops": 4e15, "memory_bytes": 2e13}
    return {
        "policy": name, "timeline": timeline, "decisions": decisions, "gpu_hours": 0.5,
        "most_engines_needed": 9 if name == "ridgeline" else None,
        "summary": {
            "seconds": 600.0, "requests": 100, "attainment": met / 100, "goodput_requests_per_second": met / 600,
            "outcomes": {
                "met": met, "first_token_late": 100 - met, "gaps_late": 0, "failed": 0, "refused": 0, "unfinished": 0,
            },
            "time_to_first_token_seconds": quantiles, "gap_seconds": quantiles, "stall_ratio": 0.1,
            "prefill_use": use, "decode_use": use, "kv_bytes_moved": 0.0, "preemptions": 0,
        },
    }  # fmt: skip


def answer(*policies: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "trace": "trace.csv", "rate_scale": 1.0, "model": "llama-3.1-8b", "weights": "bf16", "gpu": "H100-SXM5-80GB",
        "gpus_per_engine": 1, "engines": 2, "kv_capacity_tokens": 400_000, "peak_flops_per_second": 989e12,
        "peak_memory_bytes_per_second": 3.35e12, "time_to_first_token_objective_milliseconds": 2000,
        "inter_token_objective_milliseconds": 50, "policies": list(policies),
    } | changes  # fmt: skip


def minutes(count: int, **changes: Any) -> list[dict[str, Any]]:
    return [interval(60.0 * i, 60.0 * (i + 1), **changes) for i in range(count)]


def decision(
    seconds: float, action: str = "Split", message: str = "decode stalled 31 % of decode time"
) -> dict[str, Any]:
    return {"seconds": seconds, "action": action, "reason": "DecodeStalled", "message": message}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """A real replay: its answer and its report."""
    folder = tmp_path_factory.mktemp("report")
    rows = [
        f"2026-01-01 00:{i // 120:02}:{i / 2 % 60:09.6f},{4000 if i % 8 == 0 else 300},{60 + i % 40}"
        for i in range(480)
    ]
    trace, report = folder / "trace.csv", folder / "report.html"
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    found: dict[str, Any] = {}

    def keep(answer: dict[str, Any]) -> str:
        found.update(answer)
        return report_html(answer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ridgeline.replay_command.report_html", keep)
        options = ["--policies", "ridgeline,mixed:8192,mixed:256,split:1", "--report", str(report)]
        assert main(["replay", *FLEET, "--trace", str(trace), *options]) == 0
    return found, report.read_text(encoding="utf-8")


def test_nothing_is_loaded_from_anywhere(played: tuple[dict[str, Any], str]) -> None:
    page = Page(played[1])
    assert all(link.startswith("#") for link in page.attributes("href"))
    assert not page.attributes("src")
    assert not {"link", "img", "iframe", "object", "base"} & {tag for tag, _ in page.tags}
    [guard] = [
        a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert guard is not None
    assert guard.startswith("default-src 'none';")
    addresses = set(re.findall(r"https?://[^\s\"'<)]+", played[1]))
    assert addresses == {"http://www.w3.org/2000/svg"}, "the name of SVG's namespace, which nobody fetches"
    assert "url(" not in played[1]
    assert "@import" not in played[1]


def test_every_policy_is_told_in_plots_and_table(played: tuple[dict[str, Any], str]) -> None:
    found, text = played
    page = Page(text)
    words = " ".join(page.text)
    for name in ("Ridgeline", "Mixed, budget 8,192", "Mixed, budget 256", "Split 1P:1D"):
        assert words.count(name) >= 5, "two bars, legend, tab and table"
    values = page.values()
    for plot in ("goodput", "stall", "first-token", "gap"):
        assert len(values["plots"][plot]) == 4
    for place, each in enumerate(found["policies"]):
        assert values["times"][str(place)] == [i["end_seconds"] for i in each["timeline"]]
        assert f"topology-{place}" in page.attributes("id")
        assert f"roof-{place}" in values["roofs"]


def test_the_summary_comes_first_and_compares_with_the_default_and_the_best_static_choice() -> None:
    page = report_html(
        answer(
            policy("ridgeline", minutes(10), [decision(70.0)], met=97),
            policy("mixed:8192", minutes(10), [], met=80),
            policy("split:1", minutes(10), [], met=98),
        )
    )
    words = " ".join("".join(Page(page).text).replace("\u00a0", " ").split())
    assert "Ridgeline met the objectives of 97.0 % of the requests" in words
    assert "met 80.0 %, 17.0 points fewer" in words
    assert "was Split 1P:1D with 98.0 %, 1.0 points more" in words
    assert "Ridgeline split the fleet once. The first time was after 1:10, because: decode stalled 31 %" in words
    assert "By its estimate, the busiest window needed 9 engines, with room for 15 % more requests." in words
    assert "first token comes within 2,000 ms" in words
    assert page.index("met the objectives of") < page.index("<svg")


def test_every_decision_has_its_evidence_under_the_pointer_and_in_a_list() -> None:
    events = [decision(30.0 * i, action, f"evidence number {i}") for i, action in enumerate(["Tune", "Split", "done"])]
    page = Page(report_html(answer(policy("ridgeline", minutes(10), events), policy("arrow", minutes(10), events[:1]))))
    marks = [attributes for tag, attributes in page.tags if tag == "a" and attributes.get("class") == "mark"]
    assert len(marks) == 4
    targets = page.attributes("id")
    for mark, event in zip(marks, [*events, events[0]], strict=True):
        assert event["message"] in (mark["title"] or "")
        assert mark["aria-label"] == mark["title"]
        assert (mark["href"] or "").removeprefix("#") in targets
    assert sum("evidence number 1" in text for text in page.text) == 1


@pytest.mark.parametrize("field", ["trace", "model", "policy", "message", "action", "reason"])
def test_hostile_names_stay_text(field: str) -> None:
    event = decision(10.0)
    each = policy("ridgeline", minutes(3), [event])
    given = answer(each)
    for place in (given, each, event):
        if field in place:
            place[field] = HOSTILE
    text = report_html(given)
    page = Page(text)
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert "img" not in {tag for tag, _ in page.tags}
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "\x00" not in text
    assert "alert(1)" in "".join(page.text), "the name itself is shown"


def test_every_picture_is_valid_and_has_a_name(played: tuple[dict[str, Any], str]) -> None:
    pictures = re.findall(r"<svg.*?</svg>", played[1], re.DOTALL)
    assert len(pictures) > 20
    name = "{http://www.w3.org/2000/svg}"
    for picture in pictures:
        root = ElementTree.fromstring(picture)
        if root.get("aria-hidden") != "true":
            assert root.findtext(f"{name}title")
            assert root.findtext(f"{name}desc")


def test_light_and_dark_have_their_colours(played: tuple[dict[str, Any], str]) -> None:
    style = played[1][played[1].index("<style>") : played[1].index("</style>")]
    light, dark = style.split("@media (prefers-color-scheme:dark)", 1)
    assert "--page:#ffffff" in light
    assert "--page:#0d1117" in dark
    used = set(re.findall(r"var\((--[a-z0-9]+)\)", style))
    assert used <= set(re.findall(r"(--[a-z0-9]+):", style))


@pytest.mark.parametrize(
    "policies",
    [
        pytest.param([], id="no policy"),
        pytest.param([policy("mixed:512", minutes(4), [])], id="one policy without decisions"),
        pytest.param([policy("ridgeline", [], [])], id="an empty timeline"),
        pytest.param([policy("ridgeline", [interval(0.0, 0.0)], [])], id="an interval without time"),
        pytest.param([policy(f"rival-{i}", minutes(2), []) for i in range(30)], id="many policies"),
        pytest.param(
            [policy("ridgeline", minutes(3, prefill_use=None, decode_use=None, stall_ratio=None), [])],
            id="work not known",
        ),
    ],
)
def test_any_answer_has_a_report(policies: list[dict[str, Any]]) -> None:
    page = Page(report_html(answer(*policies)))
    assert len([tag for tag, _ in page.tags if tag == "tr"]) == (len(policies) + 1 if policies else 0)
    assert not {"nan", "inf"} & set(re.findall(r"[a-z]+", " ".join(page.attributes("d")).lower()))


def test_what_is_missing_is_no_zero() -> None:
    """A line is broken where a value is missing, and the values under the pointer say so."""
    timeline = minutes(5)
    timeline[2]["stall_ratio"] = None
    text = report_html(answer(policy("ridgeline", timeline, [])))
    rows = Page(text).values()["plots"]["stall"]
    assert rows[0][2] == ["10.0\u00a0%", "10.0\u00a0%", "–", "10.0\u00a0%", "10.0\u00a0%"]  # noqa: RUF001
    plot = text[text.index('id="stall"') :]
    [line] = re.findall(r'<path class="line s0 d0" data-series="0" d="([^"]*)"', plot[: plot.index("</svg>")])
    assert line.count("M") == 2


def test_pressure_is_shown_with_its_bands_and_beyond_the_axis_under_the_pointer() -> None:
    timeline = minutes(4)
    timeline[1] |= {"prefill_pressure": 10.0, "decode_pressure": 3.0}
    timeline[2] |= {"prefill_pressure": None, "decode_pressure": None}
    text = report_html(answer(policy("ridgeline", timeline, [])))
    rows = {row[0]: row[2] for row in Page(text).values()["plots"]["pressure-0"]}
    plain = {phase: [value.replace("\u00a0", " ") for value in values] for phase, values in rows.items()}
    assert plain["prefill"] == ["70.0 %", "1000.0 % and more", "–", "70.0 %"]  # noqa: RUF001
    assert plain["decode"] == ["40.0 %", "300.0 %", "–", "40.0 %"]  # noqa: RUF001
    plot = text[text.index('id="pressure-0"') :]
    plot = plot[: plot.index("</figure>")]
    assert "prefill band" in plot
    assert "decode band" in plot
    [line] = re.findall(r'<path class="line prefill" d="([^"]*)"', plot)
    assert line.count("M") == 2, "broken where nobody could have taken a request"
    assert " 0.0" in line, "at the upper edge"


def test_a_long_trace_makes_no_long_report() -> None:
    """Two weeks of minutes, and more decisions than a page can show."""
    events = [decision(600.0 * i) for i in range(1500)]
    text = report_html(answer(policy("ridgeline", minutes(20_000), events)))
    assert len(text) < 1_500_000
    page = Page(text)
    for path in page.attributes("d"):
        assert len(re.findall("[MLHV]", path)) <= 4 * MOST_POINTS + 20
    assert all(len(row[2]) <= MOST_POINTS for rows in page.values()["plots"].values() for row in rows)
    assert len([a for tag, a in page.tags if a.get("class") == "mark"]) == MOST_MARKS
    assert "1,300 later decisions left out" in " ".join(page.text)


@settings(deadline=None)
@given(st.integers(1, 5000), st.data())
def test_merging_intervals_loses_no_request_and_no_peak(count: int, data: st.DataObject) -> None:
    worst = data.draw(st.integers(0, count - 1))
    timeline = minutes(count)
    timeline[worst] = timeline[worst] | {"stall_ratio": 0.9, "gap_p99_seconds": 7.0, "prefill_pressure": 1.4}
    [course] = courses([policy("ridgeline", timeline, [])])
    points = course.points
    assert len(points) <= MOST_POINTS
    assert points[0].start_seconds == 0.0
    assert all(a.end_seconds == b.start_seconds for a, b in pairwise(points))
    assert points[-1].end_seconds == 60.0 * count
    met = sum((p.met_per_second or 0.0) * (p.end_seconds - p.start_seconds) for p in points)
    assert met == pytest.approx(9 * count)
    assert max(p.stall_ratio or 0.0 for p in points) == 0.9
    assert max(p.gap_p99_seconds or 0.0 for p in points) == 7.0
    assert max(p.prefill_pressure or 0.0 for p in points) == 1.4
    assert points[0].prefill_intensity == pytest.approx(200.0)
    assert points[0].decode_busy == pytest.approx(20.0 / 120.0)


@settings(deadline=None)
@given(st.floats(1e-9, 1e9), st.floats(1e-9, 1e9))
def test_axes_hold_their_values_and_have_ticks_to_read_them_by(one: float, other: float) -> None:
    for axis in (linear(max(one, other)), logarithmic([one, other]), time_axis(max(one, other))):
        assert axis.low <= max(one, other) <= axis.high * (1 + 1e-9)
        assert 1 <= len(axis.ticks) <= 25
        assert all(axis.low <= tick <= axis.high * (1 + 1e-9) for tick in axis.ticks)
        assert 0.0 <= axis(one) <= 1.0


def test_the_same_answer_gives_the_same_bytes(played: tuple[dict[str, Any], str]) -> None:
    assert report_html(json.loads(json.dumps(played[0]))) == played[1]


# ---------------------------------------------------------------- the command


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rows = [f"2026-01-01 00:00:{i / 2:09.6f},300,40" for i in range(60)]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    return path


def test_a_report_that_cannot_be_written_is_told_before_anything_is_played(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ridgeline.replay_command.play", lambda *arguments: pytest.fail("played"))
    for path, told in ((tmp_path / "no" / "report.html", "there is no folder"), (tmp_path, "is a folder; name a file")):
        assert main(["replay", *FLEET, "--trace", str(trace), "--report", str(path)]) == 2
        assert told in capsys.readouterr().err


def test_ctrl_c_leaves_a_report_of_what_is_done(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], ctrl_c_during: Callable[[str], None]
) -> None:
    ctrl_c_during("split:1")
    report = tmp_path / "report.html"
    options = ["--policies", "mixed:512,split:1,mixed:256", "--report", str(report)]
    assert main(["replay", *FLEET, "--trace", str(trace), *options]) == 130
    assert f"Report: {report}" in capsys.readouterr().err
    words = "".join(Page(report.read_text(encoding="utf-8")).text)
    assert "1 of 3 policies were played" in words
    assert "Mixed, budget 512" in words


def test_a_report_that_fails_leaves_the_old_one_whole(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "report.html"
    report.write_text("the old one")

    def full(self: Path, *arguments: Any, **options: Any) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert main(["replay", *FLEET, "--trace", str(trace), "--policies", "mixed:512", "--report", str(report)]) == 2
    printed = capsys.readouterr()
    assert "could not be written" in printed.err
    assert "mixed:512" in printed.out, "the answer is not lost"
    assert report.read_text() == "the old one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "trace.csv"]
