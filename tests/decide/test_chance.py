"""The probabilities of the what-if model, beside plain sums and what is left out of them for being nothing."""

from __future__ import annotations

from math import erfc, exp, floor, lgamma, log, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.decide.chance import LARGEST_MEAN, MOST_SUMMED, NOTHING, either, late_rows, longer_wait

shares = st.floats(0.0, 1.0)


def tail(at_least: int, mean: float) -> float:
    """P[N ≥ at_least] of a Poisson variable, term by term, and by the normal one where those are too many."""
    if at_least > MOST_SUMMED or mean > LARGEST_MEAN:
        return 0.5 * erfc((at_least - 0.5 - mean) / sqrt(2.0 * mean))
    return 1.0 - sum(exp(n * log(mean) - mean - lgamma(n + 1)) for n in range(at_least))


@given(gaps=st.floats(1.0, 5000.0), share=st.floats(1e-6, 1.0), row=st.floats(1.0, 500.0))
def test_late_rows_are_two_tails_of_a_poisson_variable(gaps: float, share: float, row: float) -> None:
    of_row = min(row, gaps)
    needed, mean = floor(0.05 * gaps / of_row) + 1, gaps * share / of_row
    told = share * tail(needed - 1, mean) + (1.0 - share) * tail(needed, mean)
    assert late_rows(gaps, share, row) == pytest.approx(told, abs=1e-11)


@given(
    seconds=st.floats(0.001, 100.0),
    drift=st.floats(-1.0, 0.5),
    variance=st.floats(0.0, 100.0),
    beside=shares,
)
def test_a_wait_that_is_left_out_was_nothing(seconds: float, drift: float, variance: float, beside: float) -> None:
    """In its steady state, to which it rises, a queue is longer than `seconds` with the probability of the bound."""
    found = longer_wait(seconds, drift, variance, 120.0)
    assert 0.0 <= found <= 1.0
    if drift >= 0.0 or variance <= 0.0:
        return
    bound = exp(2.0 * drift * seconds / variance)
    assert found <= 2.0 * bound * (1.0 + 1e-9)
    if bound < 0.99 * NOTHING:
        assert found == 0.0
    if found == 0.0:
        assert bound < 1.01 * NOTHING or bound < 1e-300 or seconds > 20.0 * sqrt(variance * 120.0)
    assert either(beside, NOTHING) == either(beside)


@given(shares, shares, shares)
def test_either_is_more_than_each_and_less_than_all(a: float, b: float, c: float) -> None:
    found = either(a, b, c)
    assert max(a, b, c) - 1e-12 <= found <= min(1.0, a + b + c) + 1e-12
    assert either(a, b, c, -1.0, 0.0, float("nan")) == found
    assert either(a, b, c, 2.0) == 1.0
