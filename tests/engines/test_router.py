"""Roles changed in the real router while requests stream through it."""

from __future__ import annotations

import random
import string
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.engines.engines import Engine, complete, delta
from tests.engines.router import Router, router
from tests.engines.test_counts import steps

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500)]

PROMPT, OUTPUTS = 200, 12
OUTCOMES = ("met", "first_token_late", "gaps_late")


def text() -> str:
    """A prompt of one token a character; the router takes text only."""
    return "".join(random.choices(string.ascii_letters, k=PROMPT))


def test_roles_flip_under_load_and_no_request_fails(pair: tuple[Engine, Engine], tmp_path: Path) -> None:
    first, second = pair
    before = first.settle(), second.settle()
    sent, failures = [0], list[str]()
    over = threading.Event()

    def client(table: Router) -> None:
        while not over.is_set():
            sent[0] += 1
            try:
                answer = complete(table.url, text(), OUTPUTS)
                assert answer["usage"]["completion_tokens"] == OUTPUTS
            except (AssertionError, OSError) as problem:
                failures.append(str(problem))

    with router(tmp_path / "router.log") as table, ThreadPoolExecutor(3) as clients:
        for engine in pair:
            table.add(engine, "regular")
        for _ in range(3):
            clients.submit(client, table)
        try:
            for one, other in ((first, second), (second, first)):
                _wait_for_requests(sent, 8)
                table.set_role(one, "prefill")  # alone it gets nothing, and the mixed engine takes all
                table.set_role(other, "decode")
                _wait_for_requests(sent, 12)
                table.set_role(other, "regular")
                table.set_role(one, "regular")
        finally:
            over.set()
        clients.shutdown()

    assert not failures, f"{len(failures)} of {sent[0]} requests failed: {failures[:3]}"
    after = first.settle(), second.settle()
    finished = sum(
        delta(a, b, "requests_total", outcome=o) for a, b in zip(after, before, strict=True) for o in OUTCOMES
    )
    assert finished == sent[0]
    for part, expected in (("count", sent[0]), ("sum", sent[0] * PROMPT)):
        arrived = sum(delta(a, b, f"request_prompt_tokens_{part}") for a, b in zip(after, before, strict=True))
        assert arrived == expected, "each request arrives once, through one engine or two"
    moved = [delta(a, b, "external_prompt_tokens_total") for a, b in zip(after, before, strict=True)]
    assert all(moved), f"KV moved in both directions: {moved}"
    prefilled = sum(delta(a, b, "tokens_total", phase="prefill") for a, b in zip(after, before, strict=True))
    assert prefilled == sent[0] * PROMPT
    decoded = sum(delta(a, b, "tokens_total", phase="decode") for a, b in zip(after, before, strict=True))
    assert decoded == sent[0] * (OUTPUTS - 1) + sum(moved) / PROMPT


def test_the_router_carries_the_arrival_time_to_the_decode_engine(pair: tuple[Engine, Engine], tmp_path: Path) -> None:
    prefill, decode = pair
    assert prefill.put("limits", {"max_num_scheduled_tokens": 10})[0] == 200
    before = prefill.settle(), decode.settle()
    with router(tmp_path / "router.log") as table:
        table.add(prefill, "prefill")
        table.add(decode, "decode")
        complete(table.url, text(), 1)
    after = prefill.settle(), decode.settle()
    assert steps(after[0], before[0], "prefill") == PROMPT / 10
    computing = delta(after[0], before[0], "busy_seconds_total", phase="prefill")
    measured = delta(after[1], before[1], "time_to_first_token_seconds_sum")
    transferred_and_decoded = measured - computing
    assert transferred_and_decoded > 0, "the decode engine's clock must start where the prompt was computed"


def _wait_for_requests(sent: list[int], count: int) -> None:
    from tests.engines.engines import eventually

    target = sent[0] + count
    eventually(lambda: sent[0] >= target, f"{count} more requests", 300)
