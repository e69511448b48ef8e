"""Engines for the whole session: starting one takes a minute, and all tests here only add to counters."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.engines.engines import BUDGET, Engine, install_exporter, install_test_plugin, make_model, python

RECORD = "record"
FAULT_WORD = "fault"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small model and the exporter; skips where the engines' environment is missing."""
    if not python().exists():
        message = f"no engines' environment: {python()} does not exist (set RIDGELINE_VLLM)"
        if "RIDGELINE_VLLM" in os.environ:
            pytest.fail(message)
        pytest.skip(message)
    folder = tmp_path_factory.mktemp("engines")
    make_model(folder / "model")
    install_exporter(folder / "plugin")
    return folder


@pytest.fixture(scope="session")
def engines(folder: Path) -> Iterator[tuple[Engine, Engine]]:
    """Two engines with equal arguments, able to take either role."""
    started: list[Engine] = []
    try:
        for name in ("first", "second"):
            started.append(Engine(name, folder / "model", folder / "plugin", folder))
        for engine in started:
            engine.wait()
        yield started[0], started[1]
    finally:
        for engine in started:
            engine.stop()


@contextmanager
def observed(
    folder: Path, name: str, arguments: Mapping[str, object], environment: Mapping[str, str]
) -> Iterator[Engine]:
    """An engine whose model runner is recorded, in a folder of its own."""
    own = folder / name
    (own / RECORD).mkdir(parents=True)
    install_exporter(own / "plugin")
    install_test_plugin(own / "plugin")
    variables = {"RIDGELINE_TEST_RECORD": str(own / RECORD), **environment}
    engine = Engine(name, folder / "model", own / "plugin", own, {"--kv-transfer-config": None, **arguments}, variables)
    try:
        engine.wait()
        yield engine
    finally:
        engine.stop()


@pytest.fixture(scope="session")
def crowded(folder: Path) -> Iterator[Engine]:
    """An engine that speculates by n-grams and has room for the KV of a few requests only."""
    arguments = {
        "--kv-cache-memory-bytes": 26 * 32 * 1024,
        "--max-model-len": 512,
        "--speculative-config": '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}',
    }
    word = {"RIDGELINE_TEST_FAULT_FILE": str(folder / "crowded" / FAULT_WORD), "VLLM_SERVER_DEV_MODE": "1"}
    word["RIDGELINE_TEST_SWITCH_FILE"] = word["RIDGELINE_TEST_FAULT_FILE"]
    with observed(folder, "crowded", arguments, word) as engine:
        yield engine


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
