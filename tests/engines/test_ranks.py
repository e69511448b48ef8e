"""Two data-parallel ranks of two pipeline stages each: an exporter a rank, and steps that overlap."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.engines.by_hand import STEP_WEIGHT_BYTES
from tests.engines.conftest import RECORD, observed
from tests.engines.engines import Engine, Rank
from tests.engines.recorded import Count, Record
from tests.engines.test_counts import prompt

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def ranks(folder: Path) -> Iterator[tuple[Engine, Rank, Rank]]:
    """An engine and the exporters of its two ranks."""
    arguments = {"--data-parallel-size": 2, "--pipeline-parallel-size": 2, "--max-num-seqs": 8}
    with observed(folder, "ranks", arguments, {}) as engine:
        yield engine, engine.rank(0), engine.rank(1)


def test_each_rank_counts_its_own_positions_whatever_its_stages_do(ranks: tuple[Engine, Rank, Rank]) -> None:
    engine, *exporters = ranks
    before = [rank.settle() for rank in exporters]
    records = [Record(engine.folder / RECORD, rank) for rank in (0, 1)]
    script = [(prompt(random.randint(40, 500)), random.randint(2, 60)) for _ in range(16)]
    with ThreadPoolExecutor(len(script)) as clients:
        list(clients.map(lambda job: engine.complete(*job), script))
    after = [rank.settle() for rank in exporters]
    counts = [Count(record.steps()) for record in records]
    for count, a, b in zip(counts, after, before, strict=True):
        assert count.requests, "both ranks were meant to get requests"
        count.check(a, b)
    assert sum(count.work["prefill"].tokens for count in counts) == sum(len(tokens) for tokens, _ in script)
    assert sum(count.work["decode"].tokens for count in counts) == sum(outputs - 1 for _, outputs in script)


def test_the_stages_of_a_rank_loaded_the_weights_of_a_step_between_them(ranks: tuple[Engine, Rank, Rank]) -> None:
    for rank in ranks[1:]:
        metrics = rank.metrics()
        assert metrics[("weight_bytes", ())] == STEP_WEIGHT_BYTES
        assert next(dict(labels) for name, labels in metrics if name == "info")["weights"] == "loaded"
