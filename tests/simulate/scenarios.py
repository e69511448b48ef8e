"""Scenarios for one engine, each made to reach another corner of the scheduler, and how the simulator plays them."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ridgeline.simulate.engine import Engine
from ridgeline.simulate.fleet import Fleet, FleetSettings
from ridgeline.simulate.request import Request
from ridgeline.simulate.router import least_load
from ridgeline.simulate.scheduler import Chunk, EngineSettings
from ridgeline.simulate.traces import Arrival


@dataclass(frozen=True)
class LinearCost:
    """Seconds = fixed + token · tokens + context · sum of the contexts after the step: the same for every kind of step."""

    fixed: float = 0.01
    token: float = 1e-4
    context: float = 1e-7

    def seconds(
        self,
        prefill_tokens: int,
        prefill_pairs: int,
        prefill_kv_tokens: int,
        decode_sequences: int,
        decode_kv_tokens: int,
        samples: int,
    ) -> float:
        tokens = prefill_tokens + decode_sequences
        return self.fixed + self.token * tokens + self.context * (prefill_kv_tokens + prefill_tokens + decode_kv_tokens)

    def decode_run(self, sequences: int) -> tuple[float, float]:
        return self.fixed + self.token * sequences, self.context


@dataclass(frozen=True)
class Scenario:
    """Requests for one engine."""

    engine: EngineSettings
    requests: list[Arrival]
    limits: list[tuple[float, int]] = field(default_factory=list)
    """Times at which the token budget changes."""
    cost: LinearCost = LinearCost()

    def as_json(self) -> dict[str, Any]:
        return {
            "engine": asdict(self.engine),
            "requests": [row._asdict() for row in self.requests],
            "limits": self.limits,
            "cost": asdict(self.cost),
        }


def requests(
    seed: int, count: int, per_second: float, prompts: tuple[int, int], outputs: tuple[int, int], shared: int = 0
) -> list[Arrival]:
    """Poisson arrivals; with `shared`, prompts begin with up to so many blocks of 64 tokens of a few documents."""
    dice = random.Random(seed)
    seconds, rows = 0.0, []
    for number in range(count):
        prompt, hashes = dice.randint(*prompts), []
        if shared:
            document, blocks = dice.randrange(5), dice.randint(0, shared)
            blocks = min(blocks, prompt // 64)
            hashes = [100 * document + place for place in range(blocks)]
            hashes += [10_000 + 100 * number + place for place in range(-(-prompt // 64) - blocks)]
        rows.append(Arrival(seconds, prompt, dice.randint(*outputs), tuple(hashes)))
        seconds += dice.expovariate(per_second)
    return rows


_PLENTY = EngineSettings(
    kv_blocks=4000, block_tokens=16, max_num_batched_tokens=256, max_num_seqs=64, prefix_caching=False, hash_tokens=64
)

SCENARIOS: dict[str, Scenario] = {
    "chunked prefill": Scenario(_PLENTY, requests(1, 60, 6.0, (20, 900), (1, 80))),
    "one at a time": Scenario(replace(_PLENTY, max_num_seqs=1), requests(2, 12, 6.0, (20, 300), (1, 30))),
    "few sequences": Scenario(replace(_PLENTY, max_num_seqs=5), requests(3, 50, 9.0, (20, 500), (5, 60))),
    "threshold": Scenario(replace(_PLENTY, long_prefill_token_threshold=48), requests(4, 60, 6.0, (20, 900), (1, 60))),
    "budget below the sequences": Scenario(
        _PLENTY,
        requests(5, 60, 15.0, (4, 60), (30, 120)),
        limits=[(1.0, 6), (4.0, 256), (5.0, 3), (9.0, 256)],
    ),
    "preemption": Scenario(replace(_PLENTY, kv_blocks=60), requests(6, 60, 8.0, (20, 300), (20, 160))),
    "preemption with a threshold": Scenario(
        replace(_PLENTY, kv_blocks=60, long_prefill_token_threshold=48), requests(7, 60, 8.0, (20, 300), (20, 160))
    ),
    "preemption with prefix cache": Scenario(
        replace(_PLENTY, kv_blocks=70, prefix_caching=True), requests(8, 60, 8.0, (20, 300), (20, 160))
    ),
    "shared prefixes": Scenario(
        replace(_PLENTY, prefix_caching=True), requests(9, 80, 6.0, (65, 900), (1, 60), shared=10)
    ),
    "evicted prefixes": Scenario(
        replace(_PLENTY, kv_blocks=160, prefix_caching=True), requests(10, 90, 2.0, (65, 900), (1, 60), shared=10)
    ),
    "other limits": Scenario(
        _PLENTY,
        requests(11, 60, 8.0, (20, 900), (1, 80)),
        limits=[(1.0, 32), (2.0, 256), (3.0, 10), (4.5, 100), (6.0, 256)],
    ),
}


@dataclass
class Played:
    """What the simulator did."""

    steps: list[tuple[float, dict[str, int]]]
    preemptions: int


def play(scenario: Scenario) -> Played:
    """Play a scenario on an engine of the simulator, and write its runs out step by step."""
    played: list[tuple[float, dict[str, int]]] = []
    first, per_token = 0.0, scenario.cost.context

    def record(engine: Engine, started_at: float, chunks: list[Chunk], decodes: list[Request], steps: int) -> None:
        nonlocal first
        step = {str(r.identifier): 1 for r in decodes} | {str(c.request.identifier): c.tokens for c in chunks}
        if chunks:
            played.append((started_at, step))
            return
        first, _ = scenario.cost.decode_run(len(decodes))
        tokens = engine.scheduler.decodes.kv_tokens
        time = started_at
        for _ in range(steps):
            played.append((time, step))
            time += first + per_token * tokens
            tokens += len(decodes)

    settings = FleetSettings(
        engines=1,
        engine=scenario.engine,
        kv_bytes_per_token=1.0,
        link_bytes_per_second=1e9,
        first_token_objective_seconds=1.0,
        inter_token_objective_seconds=0.02,
    )
    fleet = Fleet(settings, scenario.cost, least_load(), record=record)
    for time, budget in scenario.limits:
        if time == 0.0:
            fleet.set_limit("engine-0", budget)
        else:
            fleet.at(time, lambda now, budget=budget: fleet.set_limit("engine-0", budget))  # type: ignore[misc]
    fleet.run(scenario.requests)
    return Played(played, fleet.counters.preemptions)
