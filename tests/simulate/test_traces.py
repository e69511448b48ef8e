from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeline.simulate.traces import Arrival, TraceError, faster, read_trace, spread_arrivals

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
AZURE = [
    "TIMESTAMP,ContextTokens,GeneratedTokens",
    "2023-11-16 18:15:46.6805900,374,44",
    "2023-11-16 18:15:50.9951690,396,109",
]
MOONCAKE = [
    json.dumps({"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}),
    json.dumps({"timestamp": 3000, "input_length": 700, "output_length": 7, "hash_ids": [0, 2]}),
]


def test_azures_rows_are_seconds_since_the_first_to_a_tenth_of_a_microsecond() -> None:
    first, second = read_trace(AZURE, "azure.csv")
    assert first == Arrival(0.0, 374, 44, ())
    assert second.seconds == pytest.approx(4.314579, abs=1e-6)
    assert (second.prompt_tokens, second.output_tokens) == (396, 109)


def test_azures_later_trace_has_zones_and_its_columns_may_come_in_any_order() -> None:
    lines = [
        "GeneratedTokens,TIMESTAMP,ContextTokens",
        "7,2024-05-10 00:00:00.5+00:00,9",
        "8,2024-05-10 00:00:02+00:00,9",
    ]
    assert list(read_trace(lines, "week.csv")) == [Arrival(0.0, 9, 7), Arrival(1.5, 9, 8)]


def test_mooncakes_rows_keep_their_hashes() -> None:
    assert list(read_trace(MOONCAKE, "m.jsonl")) == [Arrival(0.0, 600, 5, (0, 1)), Arrival(3.0, 700, 7, (0, 2))]


def test_a_trace_streams() -> None:
    def endless() -> Iterator[str]:
        yield AZURE[0]
        while True:
            yield AZURE[1]

    arrivals = read_trace(endless(), "endless")
    assert [next(arrivals).prompt_tokens for _ in range(3)] == [374] * 3


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "t: the trace is empty"),
        (["", "  "], "t: the trace is empty"),
        (["hello"], "t, line 1: neither Azure's header"),
        (AZURE[:1], "t: the trace has a header and no request"),
        ([*AZURE, "2023-11-16 18:15:51.0,ten,3"], "t, line 4: invalid literal"),
        ([*AZURE, "2023-11-16 18:15:51.0,10"], "t, line 4: a column is missing"),
        ([*AZURE, "yesterday,10,3"], "t, line 4: Invalid isoformat"),
        ([*AZURE, "2023-11-16 18:15:51.x,10,3"], "t, line 4: .* is not a time"),
        ([*AZURE, "2023-11-16 18:15:49.0,10,3"], "t, line 4: its time lies 1.99517 s before the line above"),
        ([*AZURE, "2023-11-16 18:15:51.0,0,3"], "t, line 4: a request has at least one prompt token"),
        ([*AZURE, "2023-11-16 18:15:51.0,5,-3"], "t, line 4: a request has at least one prompt token"),
        ([MOONCAKE[0], "", "{"], "t, line 3: "),
        ([MOONCAKE[0], "[]"], "t, line 2: not an object"),
        ([MOONCAKE[0], "{}"], "t, line 2: no field 'timestamp'"),
        (['{"timestamp": -1, "input_length": 1, "output_length": 1}'], "t, line 1: timestamp -1 is negative"),
        (['{"timestamp": NaN, "input_length": 1, "output_length": 1}'], "t, line 1: timestamp nan is not a time"),
        (['{"timestamp": "0", "input_length": 1, "output_length": 1}'], "t, line 1: timestamp is not a number"),
        (['{"timestamp": 0, "input_length": 1.5, "output_length": 1}'], "t, line 1: input_length and output_length"),
        (['{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}'], "t, line 1: hash_ids must"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(lines: list[str], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        list(read_trace(lines, "t"))


def test_a_bad_row_does_not_hide_the_rows_before_it() -> None:
    arrivals = read_trace([*MOONCAKE, "oops"], "t")
    assert [next(arrivals).prompt_tokens, next(arrivals).prompt_tokens] == [600, 700]
    with pytest.raises(TraceError, match="line 3"):
        next(arrivals)


def test_spread_arrivals_stay_in_their_slots_in_order_and_follow_the_seed() -> None:
    raw = [Arrival(3.0 * (i // 10), 1, 1) for i in range(40)]
    spread = list(spread_arrivals(raw, 3.0, random.Random(3)))
    assert [int(a.seconds // 3.0) for a in spread] == [i // 10 for i in range(40)]
    assert all(a.seconds <= b.seconds for a, b in itertools.pairwise(spread))
    assert len({a.seconds for a in spread}) == 40
    assert spread == list(spread_arrivals(raw, 3.0, random.Random(3)))


def test_faster_keeps_lengths_and_divides_times() -> None:
    assert list(faster([Arrival(8.0, 1, 2)], 4.0)) == [Arrival(2.0, 1, 2)]
    with pytest.raises(ValueError, match="cannot be multiplied by 0"):
        faster([], 0.0)


@pytest.mark.parametrize(
    ("name", "count", "prompts", "outputs"),
    [("azure-2023-conv.csv", 19_366, 1_154.7, 211.1), ("mooncake-conversation.jsonl", 12_031, 12_035.0, 343.0)],
)
def test_the_public_traces_have_their_published_sizes(name: str, count: int, prompts: float, outputs: float) -> None:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"{path} does not exist: only the formats are tested")
    with path.open() as lines:
        rows = list(read_trace(lines, name))
    assert len(rows) == count
    assert sum(r.prompt_tokens for r in rows) / count == pytest.approx(prompts, abs=0.5)
    assert sum(r.output_tokens for r in rows) / count == pytest.approx(outputs, abs=1.0)
