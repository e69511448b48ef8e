"""docs/roofline.md shows what the model says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dashboards.roofline_page import DOCS, PAGE, PLOTS, page, plots, techniques
from ridgeline.__main__ import main


def test_the_page_and_its_plots_are_what_make_generate_writes() -> None:
    assert page(PAGE.read_text()) == PAGE.read_text(), "run `make generate`"
    for name, picture in plots().items():
        assert (DOCS / "images" / name).read_text() == picture, "run `make generate`"


def test_the_page_tells_the_command_of_each_plot() -> None:
    text = PAGE.read_text()
    for name, command in PLOTS.items():
        assert f"ridgeline roofline {command} --plot {name}" in text
        assert f"(images/{name})" in text


@pytest.mark.parametrize("name", PLOTS)
def test_the_command_on_the_page_draws_the_plot_on_the_page(name: str, tmp_path: Path) -> None:
    assert main(["roofline", *PLOTS[name].split(), "--plot", str(tmp_path / name)]) == 0
    assert (tmp_path / name).read_bytes() == (DOCS / "images" / name).read_bytes()


@pytest.mark.parametrize("name", PLOTS)
def test_every_point_of_a_plot_on_the_page_has_its_label(name: str) -> None:
    picture = (DOCS / "images" / name).read_text()
    assert picture.count(' label"') == picture.count("<circle")


@pytest.mark.parametrize("row", techniques(), ids=lambda row: f"{row[0]}, {row[2]}")
def test_what_is_said_to_help_helps(row: tuple[str, ...]) -> None:
    without, with_it = (float(re.sub(r"[^0-9.]", "", cell)) for cell in row[3:])
    assert (with_it > without) if "tokens/s" in row[2] else (with_it < without)


def test_a_page_without_a_place_for_the_table_is_told() -> None:
    with pytest.raises(ValueError, match="techniques"):
        page("# Something else")
