"""Limits of a real engine, changed while it runs."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.engines.engines import BUDGET, TOKEN, Engine, delta, request
from tests.engines.test_counts import prompt, steps

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500)]


def test_a_limit_posted_while_idle_governs_the_next_steps(engine: Engine) -> None:
    for budget, chunks in ((64, 10), (BUDGET, 3), (100, 6)):
        before = engine.settle()
        in_force = engine.state()["in_force"]["max_num_scheduled_tokens"]
        status, answer = engine.put("limits", {"max_num_scheduled_tokens": budget})
        assert (status, answer["accepted"]["max_num_scheduled_tokens"]) == (200, budget)
        state = engine.state()
        assert state["limits"]["max_num_scheduled_tokens"] == budget
        assert state["in_force"]["max_num_scheduled_tokens"] == in_force
        assert engine.metrics()[("limit_tokens", ())] == budget
        engine.complete(prompt(600), 2)
        assert steps(engine.settle(), before, "prefill") == chunks
        assert engine.state()["in_force"]["max_num_scheduled_tokens"] == budget


def test_the_threshold_caps_one_prompt_while_others_run(engine: Engine) -> None:
    assert engine.put("limits", {"long_prefill_token_threshold": 32})[0] == 200
    before = engine.settle()
    with ThreadPoolExecutor(1) as clients:
        decoding = clients.submit(engine.complete, prompt(40), 1200)
        while delta(engine.metrics(), before, "tokens_total", phase="decode") < 5:
            assert not decoding.done()
        engine.complete(prompt(320), 1)
        assert not decoding.done(), "the machine let the decode end too soon to show anything"
        decoding.result()
    assert steps(engine.settle(), before, "mixed") == 10


def test_limits_that_jump_under_load_neither_kill_the_engine_nor_lose_a_token(engine: Engine) -> None:
    before = engine.settle()
    script = [(prompt(random.randint(50, 400)), random.randint(5, 40)) for _ in range(40)]
    over = threading.Event()

    def jump() -> int:
        posted = 0
        while not over.is_set():
            budget = random.choice((16, 17, 33, 64, 100, 255, BUDGET))
            assert engine.put("limits", {"max_num_scheduled_tokens": budget})[0] == 200
            posted += 1
        return posted

    with ThreadPoolExecutor(11) as clients:
        jumping = clients.submit(jump)
        try:
            answers = list(clients.map(lambda job: engine.complete(*job), script))
        finally:
            over.set()
        assert jumping.result() > 20
    assert [answer["usage"]["completion_tokens"] for answer in answers] == [outputs for _, outputs in script]
    assert engine.alive
    after = engine.settle()
    assert delta(after, before, "tokens_total", phase="prefill") == sum(len(tokens) for tokens, _ in script)
    assert delta(after, before, "tokens_total", phase="decode") == sum(outputs - 1 for _, outputs in script)


@pytest.mark.parametrize(
    ("token", "body", "status"),
    [
        pytest.param("wrong", {"max_num_scheduled_tokens": 64}, 401, id="wrong token"),
        pytest.param(None, {"max_num_scheduled_tokens": 64}, 401, id="no token"),
        pytest.param(TOKEN, {"max_num_scheduled_tokens": BUDGET + 1}, 400, id="above the start-up value"),
        pytest.param(TOKEN, {"max_num_scheduled_tokens": 0}, 400, id="nothing at all"),
        pytest.param(TOKEN, {"long_prefill_token_threshold": -1}, 400, id="a negative threshold"),
    ],
)
def test_what_may_not_be_is_refused_and_changes_nothing(
    engine: Engine, token: str | None, body: dict[str, int], status: int
) -> None:
    assert request("PUT", f"{engine.exporter}/v1/limits", body, token)[0] == status
    assert engine.state()["limits"] == {"max_num_scheduled_tokens": BUDGET, "long_prefill_token_threshold": 0}


def test_state_is_told_to_nobody_without_the_token(engine: Engine) -> None:
    assert request("GET", f"{engine.exporter}/v1/state", token="wrong")[0] == 401
    assert TOKEN not in engine.log.read_text(errors="replace")
