"""Two engines for the whole session: starting one takes a minute, and all tests here only add to counters."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.engines.engines import BUDGET, Engine, install_exporter, make_model, python


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, Engine]]:
    """Two engines with equal arguments, able to take either role."""
    if not python().exists():
        message = f"no engines' environment: {python()} does not exist (set RIDGELINE_VLLM)"
        if "RIDGELINE_VLLM" in os.environ:
            pytest.fail(message)
        pytest.skip(message)
    folder = tmp_path_factory.mktemp("engines")
    model, plugin = folder / "model", folder / "plugin"
    make_model(model)
    install_exporter(plugin)
    started: list[Engine] = []
    try:
        for name in ("first", "second"):
            started.append(Engine(name, model, plugin, folder))
        for engine in started:
            engine.wait()
        yield started[0], started[1]
    finally:
        for engine in started:
            engine.stop()


@pytest.fixture
def engine(engines: tuple[Engine, Engine]) -> Iterator[Engine]:
    """The first engine, idle and with its limits as at start, before and after."""
    yield from _untouched(engines[0])


@pytest.fixture
def pair(engines: tuple[Engine, Engine]) -> Iterator[tuple[Engine, Engine]]:
    """A prefill and a decode engine, idle and with their limits as at start, before and after."""
    for _ in _untouched(engines[0]):
        for _ in _untouched(engines[1]):
            yield engines


def _untouched(engine: Engine) -> Iterator[Engine]:
    _reset(engine)
    yield engine
    _reset(engine)


def _reset(engine: Engine) -> None:
    assert engine.put("limits", {"max_num_scheduled_tokens": BUDGET, "long_prefill_token_threshold": 0})[0] == 200
    nothing = {"time_to_first_token_milliseconds": None, "inter_token_latency_milliseconds": None}
    assert engine.put("objectives", nothing)[0] == 200
    engine.settle()
