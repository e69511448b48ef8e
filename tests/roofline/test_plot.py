"""`ridgeline roofline --plot`: the picture says what the table says."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ridgeline.__main__ import main
from ridgeline.roofline_plot import Scale

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
    # The axes, read back from the labels of their powers of ten.
    across = {t.text: float(t.get("x") or 0) for t in picture.iter(f"{SVG}text") if t.get("text-anchor") == "middle"}
    up = {
        t.text: float(t.get("y") or 0) - 4
        for t in picture.iter(f"{SVG}text")
        if t.get("text-anchor") == "end" and t.get("class") == "faint"
    }
    x = Scale(0, 4, across["1"], across["10,000"])
    y = Scale(13, 16, up["10"], up["10,000"])
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
