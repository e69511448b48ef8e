"""`ridgeline roofline --plot`: the picture says what the table says."""

from __future__ import annotations

import json
from math import log10
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ridgeline.__main__ import main

SVG = "{http://www.w3.org/2000/svg}"
ARGUMENTS = ["roofline", "--model", "llama-3.1-70b", "--tensor-parallel", "4", "--json"]
POINTS = ["--prefill", "512", "8192", "--decode-batch", "1", "256"]


def drawn(path: Path) -> ElementTree.Element:
    return ElementTree.fromstring(path.read_text())


def test_points_lie_where_the_table_puts_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGUMENTS, *POINTS, "--plot", str(tmp_path / "p.svg")]) == 0
    answer = json.loads(capsys.readouterr().out)
    rows = answer["phases"]
    peak, bandwidth = answer["hardware"]["flops_per_second"], answer["hardware"]["memory_bytes_per_second"]
    picture = drawn(tmp_path / "p.svg")
    found = {(float(c.get("cx") or 0), float(c.get("cy") or 0), c.get("class")) for c in picture.iter(f"{SVG}circle")}
    # The axes, read back from the labels of two powers of ten each: logarithmic whatever the code under test does.
    across = {t.text: float(t.get("x") or 0) for t in picture.iter(f"{SVG}text") if t.get("text-anchor") == "middle"}
    up = {
        t.text: float(t.get("y") or 0) - 4
        for t in picture.iter(f"{SVG}text")
        if t.get("text-anchor") == "end" and t.get("class") == "faint"
    }
    (left, right), (bottom, top) = (across["1"], across["10,000"]), (up["10"], up["10,000"])

    def x(intensity: float) -> float:
        return left + log10(intensity) / 4 * (right - left)

    def y(flops: float) -> float:
        return bottom + log10(flops / 10e12) / 3 * (top - bottom)

    for tick, value in (("10", 10), ("100", 100), ("1,000", 1000)):
        assert across[tick] == pytest.approx(x(value), abs=0.11)
        assert up[tick] == pytest.approx(y(value * 1e12), abs=0.11)
    roof = next(picture.iter(f"{SVG}polyline")).get("points") or ""
    _, corner, end = (tuple(map(float, point.split(","))) for point in roof.split())
    assert corner == pytest.approx((x(peak / bandwidth), y(peak)), abs=0.11)
    assert end == pytest.approx((right, y(peak)), abs=0.11)
    ridge = next(line for line in picture.iter(f"{SVG}line") if line.get("class") == "ridge")
    assert float(ridge.get("x1") or 0) == float(ridge.get("x2") or 0) == corner[0]
    assert len(found) == len(rows) == 4
    for row in rows:
        intensity = row["intensity_flops_per_byte"]
        expected = (x(intensity), y(min(peak, intensity * bandwidth)), row["phase"])
        assert any(
            phase == expected[2] and abs(at - expected[0]) < 0.11 and abs(height - expected[1]) < 0.11
            for at, height, phase in found
        ), expected


def test_the_same_question_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        assert main([*ARGUMENTS, "--plot", str(tmp_path / name)]) == 0
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_reader_who_cannot_see_it_is_told(tmp_path: Path) -> None:
    assert main([*ARGUMENTS, *POINTS, "--plot", str(tmp_path / "p.svg")]) == 0
    said = drawn(tmp_path / "p.svg").findtext(f"{SVG}desc") or ""
    assert "prefill of 8,192" in said
    assert "compute-bound" in said
    assert "decode of 1 x 2,048" in said
    assert "memory-bound" in said


def test_labels_stay_inside_and_every_dot_names_itself(tmp_path: Path) -> None:
    batches = [str(2**power) for power in range(11)]
    crowded = ["--decode-batch", *batches, "--context", "131072", "--plot", str(tmp_path / "p.svg")]
    assert main([*ARGUMENTS, *crowded]) == 0
    picture = drawn(tmp_path / "p.svg")
    _, _, _, height = map(float, (picture.get("viewBox") or "").split())
    axis = max(float(line.get("y2") or 0) for line in picture.iter(f"{SVG}line") if line.get("class") == "grid")
    labels = [text for text in picture.iter(f"{SVG}text") if (text.get("class") or "").endswith(" label")]
    assert labels
    assert all(float(text.get("y") or 0) <= axis < height for text in labels)
    named = [circle.findtext(f"{SVG}title") or "" for circle in picture.iter(f"{SVG}circle")]
    assert all(any(name.startswith(f"decode of {int(batch):,} x") for name in named) for batch in batches)


def test_a_name_with_markup_stays_text(tmp_path: Path) -> None:
    folder = tmp_path / "a<b>&c"
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "tie_word_embeddings": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    assert main(["roofline", "--model", str(folder), "--plot", str(tmp_path / "p.svg")]) == 0
    assert "a<b>&c" in (drawn(tmp_path / "p.svg").findtext(f"{SVG}title") or "")


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGUMENTS, "--plot", str(tmp_path / "no" / "p.svg")]) == 2
    assert "cannot be written" in capsys.readouterr().err
