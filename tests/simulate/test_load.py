"""Generated load: rates and lengths are those asked for, and the same dice give the same requests."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.simulate import day
from ridgeline.simulate.load import CHAT, LONG_PROMPTS, Lengths, Stream, poisson
from tests.bench import mixes


def constant(value: float) -> Callable[[float], float]:
    return lambda _: value


@pytest.mark.parametrize(("lengths", "prompt", "output"), [(CHAT, 1155, 211), (LONG_PROMPTS, 12035, 343)])
def test_lengths_have_the_published_means_and_medians(lengths: Lengths, prompt: float, output: float) -> None:
    dice = random.Random(3)
    drawn = [lengths.draw(dice) for _ in range(40_000)]
    for column, mean, table in ((0, prompt, lengths.prompts), (1, output, lengths.outputs)):
        values = sorted(each[column] for each in drawn)
        assert sum(values) / len(values) == pytest.approx(mean, rel=0.08)  # straight lines between percentiles
        assert values[len(values) // 2] == pytest.approx(dict(table)[0.5], rel=0.05)


@given(st.floats(0.0, 1.0, exclude_max=True), st.floats(0.0, 1.0, exclude_max=True))
def test_longer_lengths_belong_to_larger_draws_and_stay_within_the_percentiles(one: float, other: float) -> None:
    class Loaded:
        def __init__(self, value: float) -> None:
            self.value = value

        def random(self) -> float:
            return self.value

    low, high = sorted((one, other))
    for lengths in (CHAT, LONG_PROMPTS, mixes.REASON):
        short, long = lengths.draw(Loaded(low)), lengths.draw(Loaded(high))
        assert 1 <= short[0] <= long[0] <= lengths.prompts[-1][1]
        assert 1 <= short[1] <= long[1] <= lengths.outputs[-1][1]


def test_streams_arrive_at_their_rates_and_independently() -> None:
    streams = [Stream(lambda now: 8.0 if now < 500 else 2.0, lambda _: (1, 1)), Stream(constant(3.0), lambda _: (2, 2))]
    rows = list(poisson(streams, 1000.0, 11.0, random.Random(5)))
    first = [row.seconds for row in rows if row.prompt_tokens == 1]
    second = [row.seconds for row in rows if row.prompt_tokens == 2]
    early = sum(at < 500 for at in first)
    assert early == pytest.approx(4000, abs=4 * 4000**0.5)
    assert len(first) - early == pytest.approx(1000, abs=4 * 1000**0.5)
    assert len(second) == pytest.approx(3000, abs=4 * 3000**0.5)
    gaps = [after - before for before, after in pairwise(second)]
    mean = sum(gaps) / len(gaps)
    variation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 / mean
    assert variation == pytest.approx(1.0, abs=0.1)  # Poisson: gaps vary by as much as their mean


def test_a_peak_below_the_rates_is_refused() -> None:
    with pytest.raises(ValueError, match="above the peak of 5/s"):
        list(poisson([Stream(constant(6.0), lambda _: (1, 1))], 100.0, 5.0, random.Random(1)))


def test_a_day_has_its_parts() -> None:
    rows = list(day.day(2400.0, random.Random(2)))
    by_part: dict[str, list[int]] = {}
    for row in rows:
        by_part.setdefault(day.part(row.seconds / 2400.0), []).append(row.prompt_tokens)
    assert list(by_part) == [name for _, name in day.PARTS]
    means = {name: sum(prompts) / len(prompts) for name, prompts in by_part.items()}
    assert means["prompt-heavy hours"] > 2 * means["chat-heavy hours"]
    busiest = max(by_part, key=lambda name: len(by_part[name]))
    assert busiest == "chat-heavy hours"
    assert rows == list(day.day(2400.0, random.Random(2)))
    assert [day.clock(share) for share in (0.0, 0.5, 0.9999)] == ["00:00", "12:00", "23:59"]


@pytest.mark.parametrize("kind", mixes.KINDS)
def test_a_mix_is_the_same_for_its_draw_and_another_for_another(kind: str) -> None:
    rows = list(mixes.arrivals(kind, 1, 5.0))
    assert rows == list(mixes.arrivals(kind, 1, 5.0))
    assert rows != list(mixes.arrivals(kind, 2, 5.0))
    assert all(before.seconds <= after.seconds for before, after in pairwise(rows))
    assert rows[-1].seconds < mixes.SECONDS


@pytest.mark.parametrize("kind", [kind for kind in mixes.KINDS if kind != "daynight"])
@given(place=st.floats(0.0, 1.0, exclude_max=True))
def test_the_shares_of_a_mix_make_up_its_load(kind: str, place: float) -> None:
    shares = mixes.KINDS[kind].shares(place)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert all(0.0 <= share <= 1.0 for share in shares.values())
