"""Speed of the simulator: simulated seconds for each second of one core, and time for each request as traces grow.

    python -m tests.bench.simulator [--trace FILE] [--engines 8] [--repeat 3]

Plays Azure's conversation trace on engines of Llama-3.1-70B with four H100 each. Without the file, a trace with its
published statistics is generated (Poisson arrivals at 5.53/s, lengths between its percentiles), and the output says so.
Reading the trace is not timed. Processor time is counted, and the least of the repetitions counts, which take turns:
other programs only ever add.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator, Sequence
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
from tests.bench.figures import Figure

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces" / "azure-2023-conv.csv"
"""Beside the repository in some workplaces; not part of it."""
SECONDS, REQUESTS_PER_SECOND = 3501.7, 5.53

ENGINES = 8
GPUS_PER_ENGINE = 4
KV_TOKENS = 470_000
"""KV that four H100 hold beside the weights of this model, in tokens."""
REPEAT = 3
GROWTH = 8
"""Times that the trace is longer when the time for each request is compared."""
LEAST_TIMES_REAL_TIME = 2000.0
LINEAR = (0.8, 1.25)
"""Between these, a request of the long trace takes as long as one of the short."""


def generated(seconds: float = SECONDS, seed: int = 1) -> Iterator[Arrival]:
    """A trace like Azure's conversation trace."""
    dice = random.Random(seed)
    now = 0.0
    while now < seconds:
        yield Arrival(now, *CHAT.draw(dice))
        now += dice.expovariate(REQUESTS_PER_SECOND)


def requests(trace: Path | None) -> tuple[list[Arrival], str]:
    """Those of a trace, or generated ones, and what they are.

    Raises:
        OSError: the file cannot be read.
        TraceError: nor understood.
    """
    if trace is None:
        rows = list(generated())
        return (
            rows,
            f"{len(rows):,} generated requests with the statistics of Azure's conversation trace: no trace given",
        )
    with trace.open() as lines:
        rows = list(read_trace(lines, trace.name))
    return rows, f"{trace.name}, {len(rows):,} requests"


class Plays:
    """The fleet of this benchmark, which plays arrivals under a controller.

    Args:
        engines: of the fleet.
    """

    def __init__(self, engines: int = ENGINES) -> None:
        shape = ModelShape.from_config(
            catalogue.find_model("meta-llama/Llama-3.1-70B"), parallelism=Parallelism(GPUS_PER_ENGINE)
        )
        accelerator = hardware.find("H100-SXM5-80GB")
        self._cost = EngineCost(shape, accelerator)
        self._work = PhaseWork(shape, Roof.of(accelerator, GPUS_PER_ENGINE))
        self._settings = FleetSettings(
            engines=engines,
            engine=EngineSettings(kv_blocks=KV_TOKENS // 16),
            kv_bytes_per_token=shape.kv_bytes_per_token,
            link_bytes_per_second=GPUS_PER_ENGINE * 50e9,
            first_token_objective_seconds=2.0,
            inter_token_objective_seconds=0.05,
        )
        self._facts = Signals(kv_bytes_per_token=shape.kv_bytes_per_token, kv_capacity_tokens=float(KV_TOKENS))
        spec = FleetSpec.model_validate(
            {
                "model": {"id": "m", "servedName": "m"},
                "hardware": {"accelerator": "H100-SXM5-80GB", "perEngine": GPUS_PER_ENGINE},
                "engine": {"image": "vllm"},
                "replicas": engines,
                "topology": {"policy": "Auto"},
            }
        )
        self.controllers: tuple[Callable[[], Controller], ...] = (
            lambda: StaticMixed(8192),
            lambda: StaticMixed(512),
            lambda: StaticSplit(max(1, engines * 5 // 8)),
            lambda: RidgelinePolicy(spec),
        )

    def __call__(self, arrivals: Sequence[Arrival], make: Callable[[], Controller]) -> Fleet:
        """Play them."""
        results, controller = Results(), make()
        fleet = Fleet(self._settings, self._cost, least_load(), results.done, work=self._work)
        results.watch(fleet)
        steer(fleet, controller, Observer(fleet, self._facts) if isinstance(controller, RidgelinePolicy) else None)
        fleet.run(arrivals)
        return fleet


def least(
    plays: Plays, what: Sequence[tuple[Sequence[Arrival], Callable[[], Controller]]], repeat: int
) -> list[tuple[float, Fleet]]:
    """Least seconds of a core that each of these takes, and the fleet afterwards; they take turns `repeat` times."""
    found: list[tuple[float, Fleet]] = []
    for turn in range(repeat):
        for place, (arrivals, make) in enumerate(what):
            started = time.process_time()
            fleet = plays(arrivals, make)
            seconds = time.process_time() - started
            if not turn:
                found.append((seconds, fleet))
            elif seconds < found[place][0]:
                found[place] = seconds, fleet
    return found


def speed(rows: Sequence[Arrival], what: str, repeat: int = REPEAT) -> list[Figure]:
    """How many times faster than real time each controller is played, at the trace's own rate.

    Args:
        rows: the trace.
        what: it is, for notes.
        repeat: so often, for the least.
    """
    plays = Plays()
    played = least(plays, [(rows, make) for make in plays.controllers], repeat)
    note = f"simulated seconds for each second of a core, least of {repeat}; {ENGINES} engines; {what}"
    return [
        Figure(f"simulator, {make().name}", fleet.now / seconds, "x real time", None, note, above=LEAST_TIMES_REAL_TIME)
        for make, (seconds, fleet) in zip(plays.controllers, played, strict=True)
    ]


def growth(rows: Sequence[Arrival], what: str, repeat: int = REPEAT) -> list[Figure]:
    """How much more a request takes when there are more of them; arguments as those of `speed`."""
    few = rows[: len(rows) // GROWTH]
    plays = Plays()
    makes = plays.controllers[1], plays.controllers[-1]
    played = least(plays, [(part, make) for make in makes for part in (few, rows)], repeat)
    figures = []
    for place, make in enumerate(makes):
        short, whole = (
            seconds / len(part) for (seconds, _), part in zip(played[2 * place :], (few, rows), strict=False)
        )
        note = (
            f"time for each request of {len(rows):,} over that of the first {len(few):,}, "
            f"{1e6 * whole:.0f} µs over {1e6 * short:.0f} µs, least of {repeat}; {what}"
        )
        low, high = LINEAR
        figures.append(Figure(f"cost as traces grow, {make().name}", whole / short, "x", high, note, above=low))
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, default=SHARED if SHARED.exists() else None)
    parser.add_argument("--engines", type=int, default=ENGINES)
    parser.add_argument("--repeat", type=int, default=REPEAT)
    options = parser.parse_args()
    rows, what = requests(options.trace)
    print(what)
    plays = Plays(options.engines)
    print(f"{'controller':<14} {'rate':>5} {'simulated s':>12} {'core s':>7} {'x real time':>12} {'us a request':>13}")
    for factor in (1.0, 4.0):
        arrivals = list(faster(rows, factor))
        played = least(plays, [(arrivals, make) for make in plays.controllers], options.repeat)
        for make, (seconds, fleet) in zip(plays.controllers, played, strict=True):
            each = 1e6 * seconds / len(rows)
            print(
                f"{make().name:<14} {factor:>4g}x {fleet.now:>12.0f} {seconds:>7.2f} {fleet.now / seconds:>12.0f} {each:>13.1f}"
            )
    print("time for each request as the trace grows, mixed 512:")
    parts = [rows[: len(rows) // share] for share in (GROWTH, GROWTH // 2, GROWTH // 4, 1)]
    for part, (seconds, _) in zip(
        parts, least(plays, [(part, plays.controllers[1]) for part in parts], options.repeat), strict=True
    ):
        print(f"{len(part):>9} requests: {1e6 * seconds / len(part):.1f} us each")


if __name__ == "__main__":
    main()
