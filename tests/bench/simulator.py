"""Speed of the simulator: simulated seconds for each second of one core, and time for each request as traces grow.

    python -m tests.bench.simulator [--trace FILE] [--engines 8] [--repeat 3]

Plays Azure's conversation trace on engines of Llama-3.1-70B with four H100 each. Without the file, a trace with its
published statistics is generated (Poisson arrivals at 5.53/s, lengths between its percentiles), and the output says so.
Reading the trace is timed apart. The best of the repetitions counts: other programs only ever add.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ridgeline.api.fleet import FleetSpec
from ridgeline.cost.step_cost import EngineCost
from ridgeline.decide.snapshot import Signals
from ridgeline.simulate.controller import Controller, StaticMixed, StaticSplit, steer
from ridgeline.simulate.fleet import Fleet, FleetSettings
from ridgeline.simulate.load import CHAT
from ridgeline.simulate.observer import Observer
from ridgeline.simulate.phase_use import PhaseWork
from ridgeline.simulate.results import Results
from ridgeline.simulate.ridgeline_policy import RidgelinePolicy
from ridgeline.simulate.router import least_load
from ridgeline.simulate.scheduler import EngineSettings
from ridgeline.simulate.traces import Arrival, faster, read_trace
from ridgeline_exporters.roofline import catalogue, hardware
from ridgeline_exporters.roofline.bounds import Roof
from ridgeline_exporters.roofline.model import ModelShape
from ridgeline_exporters.roofline.parallelism import Parallelism

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces" / "azure-2023-conv.csv"
SECONDS, REQUESTS_PER_SECOND = 3501.7, 5.53

GPUS_PER_ENGINE = 4
KV_TOKENS = 470_000
"""KV that four H100 hold beside the weights of this model, in tokens."""


def generated(seconds: float = SECONDS, seed: int = 1) -> Iterator[Arrival]:
    """A trace like Azure's conversation trace."""
    dice = random.Random(seed)
    now = 0.0
    while now < seconds:
        yield Arrival(now, *CHAT.draw(dice))
        now += dice.expovariate(REQUESTS_PER_SECOND)


def settings(engines: int, shape: ModelShape, link_bytes_per_second: float) -> FleetSettings:
    """The fleet of this benchmark."""
    return FleetSettings(
        engines=engines,
        engine=EngineSettings(kv_blocks=KV_TOKENS // 16),
        kv_bytes_per_token=shape.kv_bytes_per_token,
        link_bytes_per_second=link_bytes_per_second,
        first_token_objective_seconds=2.0,
        inter_token_objective_seconds=0.05,
    )


def best(repeat: int, play: Callable[[], Fleet]) -> tuple[float, Fleet]:
    """The least seconds of several runs."""
    least, fleet = float("inf"), None
    for _ in range(repeat):
        started = time.perf_counter()
        fleet = play()
        least = min(least, time.perf_counter() - started)
    assert fleet is not None
    return least, fleet


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, default=SHARED if SHARED.exists() else None)
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    started = time.perf_counter()
    if options.trace is not None:
        with options.trace.open() as lines:
            rows = list(read_trace(lines, options.trace.name))
        print(f"{options.trace.name}: {len(rows)} requests, read in {time.perf_counter() - started:.2f} s")
    else:
        rows = list(generated())
        print(f"no trace given: {len(rows)} generated requests with the statistics of Azure's conversation trace")

    shape = ModelShape.from_config(
        catalogue.find_model("meta-llama/Llama-3.1-70B"), parallelism=Parallelism(GPUS_PER_ENGINE)
    )
    accelerator = hardware.find("H100-SXM5-80GB")
    cost = EngineCost(shape, accelerator)
    work = PhaseWork(shape, Roof.of(accelerator, GPUS_PER_ENGINE))
    fleet_settings = settings(options.engines, shape, GPUS_PER_ENGINE * 50e9)
    spec = FleetSpec.model_validate(
        {
            "model": {"id": "m", "servedName": "m"},
            "hardware": {"accelerator": "H100-SXM5-80GB", "perEngine": GPUS_PER_ENGINE},
            "engine": {"image": "vllm"},
            "replicas": options.engines,
            "topology": {"policy": "Auto"},
        }
    )
    facts = Signals(kv_bytes_per_token=shape.kv_bytes_per_token, kv_capacity_tokens=float(KV_TOKENS))

    def play(arrivals: list[Arrival], make: Callable[[], Controller]) -> Fleet:
        results, controller = Results(), make()
        fleet = Fleet(fleet_settings, cost, least_load(), results.done, work=work)
        results.watch(fleet)
        steer(fleet, controller, Observer(fleet, facts) if isinstance(controller, RidgelinePolicy) else None)
        fleet.run(arrivals)
        return fleet

    controllers: list[Callable[[], Controller]] = [
        lambda: StaticMixed(8192),
        lambda: StaticMixed(512),
        lambda: StaticSplit(max(1, options.engines * 5 // 8)),
        lambda: RidgelinePolicy(spec),
    ]
    print(f"{'controller':<14} {'rate':>5} {'simulated s':>12} {'wall s':>7} {'x real time':>12} {'us a request':>13}")
    for factor in (1.0, 4.0):
        arrivals = list(faster(rows, factor))
        for make in controllers:
            wall, fleet = best(options.repeat, lambda a=arrivals, m=make: play(a, m))  # type: ignore[misc]
            each = 1e6 * wall / len(rows)
            print(
                f"{make().name:<14} {factor:>4g}x {fleet.now:>12.0f} {wall:>7.2f} {fleet.now / wall:>12.0f} {each:>13.1f}"
            )
    print("time for each request as the trace grows, mixed 512:")
    for share in (8, 4, 2, 1):
        part = rows[: len(rows) // share]
        wall, _ = best(options.repeat, lambda p=part: play(p, lambda: StaticMixed(512)))  # type: ignore[misc]
        print(f"{len(part):>9} requests: {1e6 * wall / len(part):.1f} us each")


if __name__ == "__main__":
    main()
