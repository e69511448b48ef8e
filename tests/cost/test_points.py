"""Reading measured points: what a file may leave out, and what is said about one that is wrong."""

from __future__ import annotations

import pytest

from ridgeline.cost.points import WrongPoints, read_points
from tests.cost.measured_points import csv_of, generated_points

HEADER = "id,model,weights,gpu,tensor_parallel,prompt_tokens,output_tokens,batch,requests_per_second,prompt_time_ms"


def test_a_file_comes_back_as_its_points() -> None:
    points = generated_points()
    assert tuple(read_points(csv_of(points).splitlines())) == points


def test_an_empty_cell_is_unknown_not_zero() -> None:
    (point,) = read_points([HEADER, "7,Llama-3.1-8B,,H100-SXM,1,100,10,4,,"])
    assert (point.measured, point.source, point.requests_per_second) == ({}, "", None)
    assert not point.serving


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        pytest.param(["id,model"], "the header has no weights, gpu, tensor_parallel", id="columns"),
        pytest.param([], "the header has no id", id="empty"),
        pytest.param([HEADER, "1,m,,g,1,100,10,,,"], "line 2: give either batch or requests_per_second", id="neither"),
        pytest.param([HEADER, "1,m,,g,1,100,10,4,2.0,"], "line 2: give either batch or", id="both"),
        pytest.param([HEADER, "1,m,,g,1.5,100,10,4,,"], "line 2: tensor_parallel is '1.5'; write a whole", id="part"),
        pytest.param([HEADER, "1,m,,g,1,,10,4,,"], "line 2: prompt_tokens is ''; write a whole number", id="missing"),
        pytest.param(
            [HEADER, "1,m,,g,1,9,9,4,,", "2,m,,g,1,9,9,4,,fast"], "line 3: prompt_time_ms is 'fast'", id="word"
        ),
        pytest.param([HEADER, "1,m,,g,1,9,9,4,,nan"], "write a number above 0, or nothing if it is unknown", id="nan"),
        pytest.param([HEADER, "1,m,,g,1,9,9,0,,"], "line 2: batch is '0'; write a number above 0", id="zero"),
    ],
)
def test_a_wrong_file_is_told_by_line_with_the_cure(lines: list[str], says: str) -> None:
    with pytest.raises(WrongPoints) as problem:
        read_points(lines)
    assert says in str(problem.value)
