"""Bucket rates → lengths with weights."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.observe.distributions import OVERFLOW_FACTOR, distribution

INF = math.inf


def cumulative(*buckets: tuple[float, float]) -> dict[float, float]:
    total, result = 0.0, {}
    for bound, rate in buckets:
        total += rate
        result[bound] = total
    return result


@pytest.mark.parametrize(
    ("buckets", "mean", "expected"),
    [
        pytest.param({}, None, None, id="no buckets say nothing"),
        pytest.param({100.0: 0.0, INF: 0.0}, None, None, id="an idle fleet has no lengths"),
        pytest.param({100.0: math.nan, INF: 1.0}, None, None, id="a NaN bucket says nothing"),
        pytest.param({100.0: 2.0, INF: 2.0}, None, ((10.0, 1.0),), id="without a mean the geometric middle"),
        pytest.param({500.0: 0.0, 1000.0: 3.0, INF: 3.0}, 1000.0, ((1000.0, 1.0),), id="the mean moves the middle"),
        pytest.param(
            {100.0: 1.0, 200.0: 1.0, 400.0: 4.0, INF: 4.0},
            None,
            ((10.0, 0.25), (math.sqrt(200 * 400), 0.75)),
            id="empty buckets are left out and weights sum to 1",
        ),
        pytest.param(
            {100.0: 0.0, INF: 5.0},
            None,
            ((100 * math.sqrt(OVERFLOW_FACTOR), 1.0),),
            id="overflow lies just above the largest bound",
        ),
        pytest.param(
            {100.0: 0.0, INF: 5.0},
            10_000.0,
            ((100 * OVERFLOW_FACTOR, 1.0),),
            id="overflow stays near whatever the mean",
        ),
        pytest.param({100.0: 2.0, 200.0: 1.9999, INF: 2.0}, None, ((10.0, 1.0),), id="float noise is not a request"),
        pytest.param({100.0: 2.0, INF: 2.0}, math.nan, ((10.0, 1.0),), id="a NaN mean is no mean"),
        pytest.param({1.0: 2.0, INF: 2.0}, 1.0, ((1.0, 1.0),), id="a bucket without width"),
    ],
)
def test_lengths(
    buckets: dict[float, float], mean: float | None, expected: tuple[tuple[float, float], ...] | None
) -> None:
    result = distribution(buckets, mean)
    if expected is None:
        assert result is None
        return
    assert result is not None
    assert [pytest.approx(pair) for pair in expected] == list(result)


lengths = st.lists(st.integers(1, 5000), min_size=1, max_size=60)


@given(lengths)
def test_the_mean_of_the_lengths_is_the_mean_of_the_requests(tokens: list[int]) -> None:
    bounds = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000]
    buckets = {float(b): float(sum(t <= b for t in tokens)) for b in bounds} | {INF: float(len(tokens))}
    result = distribution(buckets, sum(tokens) / len(tokens))
    assert result is not None
    assert sum(weight for _, weight in result) == pytest.approx(1)
    assert sum(length * weight for length, weight in result) == pytest.approx(sum(tokens) / len(tokens))
    assert [length for length, _ in result] == sorted(length for length, _ in result)
    assert all(1 <= length <= 5000 for length, _ in result)
