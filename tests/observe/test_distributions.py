"""Bucket rates → lengths with weights."""

import math
import random
from bisect import bisect_left
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.decide.snapshot import Distribution
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


# ---------------------------------------------------------------- outputs that have not ended

BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


def mean_of(lengths: Distribution | None) -> float:
    assert lengths is not None
    assert math.fsum(weight for _, weight in lengths) == pytest.approx(1)
    return math.fsum(tokens * weight for tokens, weight in lengths)


class Load:
    """Requests that begin at one moment each and get a token a step; what counters show of them at any time."""

    def __init__(self, requests: list[tuple[float, int]]) -> None:
        self.requests = requests
        """First step and output tokens of each."""

    def ended(self, now: float) -> dict[float, float]:
        lengths = [tokens for begun, tokens in self.requests if begun + tokens <= now]
        return {float(b): float(sum(n <= b for n in lengths)) for b in BOUNDS} | {INF: float(len(lengths))}

    def tokens(self, now: float) -> float:
        return math.fsum(tokens for begun, tokens in self.requests if begun + tokens <= now)

    def longer(self, now: float) -> dict[float, float]:
        got = [min(float(tokens), now - begun) for begun, tokens in self.requests]
        return {float(b): float(sum(n > b for n in got)) for b in BOUNDS}

    def means(self, since: float, now: float) -> tuple[float, float]:
        """Mean length by what ended, and by what runs too, in a window."""
        ended = growth(self.ended(since), self.ended(now))
        mean = (self.tokens(now) - self.tokens(since)) / ended[INF]
        longer = growth(self.longer(since), self.longer(now))
        return mean_of(distribution(ended, mean)), mean_of(distribution(ended, mean, longer))


def growth(before: Mapping[float, float], after: Mapping[float, float]) -> dict[float, float]:
    return {bound: after[bound] - before[bound] for bound in after}


rates = st.floats(0.0, 100.0)


@given(st.lists(st.floats(0.01, 100.0) | st.just(0.0), min_size=13, max_size=13).filter(any), st.floats(1, 4000))
def test_when_as_many_grow_beyond_a_bound_as_end_beyond_it_lengths_are_those_that_ended(
    ending: list[float], mean: float
) -> None:
    ended = cumulative(*zip((*map(float, BOUNDS), INF), ending, strict=True))
    longer = {float(bound): math.fsum(ending[i + 1 :]) for i, bound in enumerate(BOUNDS)}
    with_running, alone = distribution(ended, mean, longer), distribution(ended, mean)
    assert with_running is not None
    assert alone is not None
    assert [tokens for tokens, _ in with_running] == pytest.approx([tokens for tokens, _ in alone])
    assert [weight for _, weight in with_running] == pytest.approx([weight for _, weight in alone])


@given(st.lists(st.tuples(rates, rates), min_size=13, max_size=13), st.none() | rates)
def test_whatever_flows_there_are_weights_are_a_distribution(
    flows: list[tuple[float, float]], mean: float | None
) -> None:
    ended = cumulative(*zip((*map(float, BOUNDS), INF), [ending for ending, _ in flows], strict=True))
    longer = {float(bound): growing for bound, (_, growing) in zip(BOUNDS, flows[:-1], strict=True)}
    lengths = distribution(ended, mean, longer)
    if not any(ending for ending, _ in flows):
        assert lengths is None, "nothing has ended: how long outputs are is not known yet"
        return
    assert lengths is not None
    assert all(weight > 0 and 1 <= tokens <= 2048 * OVERFLOW_FACTOR for tokens, weight in lengths)
    assert math.fsum(weight for _, weight in lengths) == pytest.approx(1)
    assert [tokens for tokens, _ in lengths] == sorted(tokens for tokens, _ in lengths)


@pytest.mark.parametrize(
    ("ending", "growing", "weights"),
    [
        pytest.param((2, 0, 0, 0), (2, 0, 0), {5.5: 0.5, 15.0: 0.5}, id="what passed a bound and runs is just beyond it"),
        pytest.param((2, 1, 0, 0), (6, 2, 0), {5.5: 0.25, 15.0: 0.25, 30.0: 0.5}, id="it is no longer than any has become"),
        pytest.param((2, 0, 2, 0), (6, 6, 2), {5.5: 0.25, 30.0: 0.375, 60.0: 0.375}, id="a bucket that all pass ends nothing"),
        pytest.param((0, 0, 3, 0), (0, 0, 1), {30.0: 0.75, 60.0: 0.25}, id="where nobody came, nobody was held up"),
        pytest.param((2, 0, 3, 0), (2, 0, 1), {5.5: 0.5, 15.0: 0.5}, id="who just came is not told by who went before"),
        pytest.param((2, 0, 0, 1), (1, 1, 1), {5.5: 2 / 3, 60.0: 1 / 3}, id="beyond the last bound nothing is passed"),
        pytest.param((2, 1e-15, 3, 0), (2, 4, 1e-15), {5.5: 0.5, 30.0: 0.5}, id="float noise is neither an end nor a pass"),
    ],
)  # fmt: skip
def test_what_becomes_of_outputs_that_run(
    ending: tuple[float, ...], growing: tuple[float, ...], weights: dict[float, float]
) -> None:
    """Buckets up to 10, 20, 40 and without a bound; lengths in their middles (of 1 to 10, 10 to 20, …)."""
    ended = cumulative(*zip((10.0, 20.0, 40.0, INF), ending, strict=True))
    alone = distribution(ended)
    middle = math.fsum(
        weight * {0: 5.5, 1: 15.0, 2: 30.0, 3: 60.0}[bisect_left((10, 20, 40), tokens)]
        for tokens, weight in alone or ()
    )
    lengths = distribution(ended, middle, dict(zip((10.0, 20.0, 40.0), growing, strict=True)))
    assert lengths is not None
    assert [tokens for tokens, _ in lengths] == pytest.approx(list(weights))
    assert [weight for _, weight in lengths] == pytest.approx(list(weights.values()))


@pytest.mark.parametrize(
    "longer",
    [
        pytest.param(None, id="an older exporter"),
        pytest.param({}, id="no sample"),
        pytest.param({10.0: 5.0}, id="a bound is missing"),
        pytest.param({10.0: 5.0, 20.0: math.nan}, id="a bound is NaN"),
        pytest.param({10.0: 5.0, 25.0: 1.0}, id="other bounds"),
    ],
)
def test_unless_what_runs_is_known_for_every_bound_lengths_are_those_that_ended(
    longer: dict[float, float] | None,
) -> None:
    ended = cumulative((10.0, 3.0), (20.0, 1.0), (INF, 0.0))
    assert distribution(ended, 9.0, longer) == distribution(ended, 9.0)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([40, 100, 300]))
def test_on_a_steady_load_the_mean_is_that_of_what_ends(seed: int, typical: int) -> None:
    dice = random.Random(seed)
    load = Load([(0.25 * i, 1 + int(dice.expovariate(1 / typical))) for i in range(12_000)])
    ended, with_running = load.means(2000.0, 3000.0)
    assert with_running == pytest.approx(ended, rel=0.12)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([200, 300]))
def test_when_long_outputs_take_over_the_mean_rises_before_they_end(seed: int, elapsed: int) -> None:
    """Outputs of some 50 tokens, then of 400 and more, seen through windows of 400 steps."""
    dice = random.Random(seed)
    short = [(float(i), 1 + int(dice.expovariate(1 / 50))) for i in range(2000)]
    load = Load(short + [(2000.0 + i, 400 + int(dice.expovariate(1 / 400))) for i in range(1000)])
    ended, with_running = load.means(1600.0 + elapsed, 2000.0 + elapsed)
    assert ended < 100, "none of the long ones has ended"
    assert with_running > 1.4 * ended
    later_ended, later = load.means(2500.0, 2900.0)
    assert later > later_ended
