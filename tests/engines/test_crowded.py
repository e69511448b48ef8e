"""An engine with little room for KV that speculates: every position that its model computed, against the counters."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.engines.conftest import FAULT_WORD, RECORD
from tests.engines.engines import Engine, delta, eventually, request, stream
from tests.engines.recorded import Count, Record
from tests.engines.test_counts import prompt

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500)]


@pytest.fixture
def record(crowded: Engine) -> Record:
    return Record(crowded.folder / RECORD)


def repeating(length: int) -> list[int]:
    """A prompt in which n-grams come again, so that they are drafted."""
    period = [random.randrange(2, 258) for _ in range(7)]
    return (period * length)[:length]


def test_a_crowd_of_every_kind_is_counted_position_by_position(crowded: Engine, record: Record) -> None:
    """Chunks, prefix hits, speculation, preemption and aborts in one crowd."""
    before = crowded.settle()
    shared = prompt(96)
    script = [(repeating(random.randint(60, 150)), random.randint(60, 120)) for _ in range(6)]
    script += [(shared + prompt(random.randint(5, 60)), random.randint(20, 60)) for _ in range(4)]
    script += [(prompt(300), 20), (prompt(310), 30)]

    def give_up(tokens: list[int]) -> None:
        arriving = stream(crowded.url, tokens, 400)
        for _ in range(5):
            next(arriving)
        arriving.close()

    with ThreadPoolExecutor(len(script) + 2) as clients:
        gone = [clients.submit(give_up, prompt(50)) for _ in range(2)]
        answers = list(clients.map(lambda job: crowded.complete(*job), script))
        for each in gone:
            each.result()
    after = crowded.settle()
    assert [answer["usage"]["completion_tokens"] for answer in answers] == [outputs for _, outputs in script]
    count = Count(record.steps())
    assert count.preempted > 0, "the cache was meant to be too small"
    assert count.verified > 0, "drafts were meant to be verified"
    assert len(count.requests) == len(script) + len(gone)
    assert count.kinds["mixed"] > 0
    count.check(after, before)
    prompts = [len(tokens) for tokens, _ in script] + [50] * len(gone)
    assert delta(after, before, "request_prompt_tokens_count") == len(prompts), "given up or not, preempted or not"
    assert delta(after, before, "request_prompt_tokens_sum") == sum(prompts)


def test_a_prompt_that_is_cached_but_for_its_last_token_is_one_token_of_prefill(
    crowded: Engine, record: Record
) -> None:
    tokens = prompt(129)  # four blocks and one token
    crowded.complete(tokens, 2)
    before = crowded.settle()
    again = Record(crowded.folder / RECORD)
    crowded.complete(tokens, 3)
    after = crowded.settle()
    count = Count(again.steps())
    assert count.work["prefill"].tokens == 1
    count.check(after, before)


@pytest.mark.parametrize(
    ("pause", "resume"),
    [
        pytest.param("pause?mode=keep&clear_cache=false", "resume", id="paused"),
        # Sleeping takes the KV cache of what runs, so that it is computed again. Weights a CPU engine keeps.
        pytest.param("sleep?level=1&mode=keep", "wake_up", id="asleep"),
    ],
)
def test_the_time_for_which_an_engine_is_paused_or_asleep_is_no_step_time(
    crowded: Engine, record: Record, pause: str, resume: str
) -> None:
    before, started = crowded.settle(), 0.0

    def caught() -> bool:
        """Whether the answer was under way when the pause came: a busy client may be slower than a small model."""
        nonlocal record, before, started
        before, record = crowded.settle(), Record(crowded.folder / RECORD)
        started = time.monotonic()
        with ThreadPoolExecutor(1) as clients:
            arriving = stream(crowded.url, prompt(40), 460)
            next(arriving)
            rest = clients.submit(list, arriving)
            try:
                assert request("POST", f"{crowded.url}/{pause}")[0] == 200
                paused = time.monotonic()
                eventually(lambda: time.monotonic() - paused > 3.0, "three seconds of pause")
                under_way = not rest.done()
            finally:  # or no test after this one would be answered
                assert request("POST", f"{crowded.url}/{resume}")[0] == 200
            rest.result()
        return under_way

    eventually(caught, "an engine paused in the middle of an answer")
    elapsed = time.monotonic() - started
    after = crowded.settle()
    count = Count(record.steps())
    count.check(after, before)
    assert (count.work["prefill"].tokens > 40) == (resume == "wake_up")
    seconds = sum(after[("step_seconds_sum", (("kind", kind),))] - before[("step_seconds_sum", (("kind", kind),))]
                  for kind in count.kinds)  # fmt: skip
    assert 0 < seconds < elapsed - 3.0


@pytest.fixture
def fault(crowded: Engine) -> Iterator[Path]:
    """The file by which faults are planted; afterwards the exporter is mended."""
    word = crowded.folder / FAULT_WORD
    yield word
    word.write_text("mend")
    crowded.complete(prompt(10), 2)
    word.write_text("")
    eventually(lambda: crowded.metrics()[("exporter_up", ())] == 1, "the exporter is mended")


@pytest.mark.parametrize(
    "place",
    [
        "limits",
        "arrival",
        "schedule",
        "update",
        "finish",
        "read",
        "totals",
        "window",
        "baseline",
        "model",
        "tokens",
        "scrape",
    ],
)
def test_a_fault_anywhere_turns_the_exporter_off_and_changes_no_answer(
    crowded: Engine, fault: Path, place: str
) -> None:
    tokens = [(7 * i) % 250 + 2 for i in range(70)]
    crowded.complete(tokens, 20)
    expected = crowded.complete(tokens, 20)["choices"][0]["text"]  # now its prompt is in the cache, as later
    logged = crowded.log.read_text(errors="replace").count("exporter")
    if place == "limits":  # posted before the fault is planted: a step may come between the two
        assert crowded.put("limits", {"max_num_scheduled_tokens": 200})[0] == 200
    fault.write_text(place)
    assert crowded.complete(tokens, 20)["choices"][0]["text"] == expected

    def off() -> bool:
        """After another answer that nobody waits for: one may be complete before the engine hears of it."""
        arriving = stream(crowded.url, prompt(30), 400)
        next(arriving)
        arriving.close()
        return crowded.metrics()[("exporter_up", ())] == 0

    eventually(off, "the exporter says that it is off")
    assert crowded.metrics()[("exporter_errors_total", ())] >= 1
    assert crowded.complete(tokens, 20)["choices"][0]["text"] == expected
    text = crowded.log.read_text(errors="replace")
    assert text.count("exporter") - logged >= 1
    assert text.count(f"planted at {place}") == 1, "the log says why, once"
    if place != "limits":  # what the operator may still need works on
        assert crowded.put("limits", {"max_num_scheduled_tokens": 256})[0] == 200
