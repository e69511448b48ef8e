"""One trace, one fleet, several policies: what each of them would have made of it. Pure; the caller reads the trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from ridgeline.api.fleet import Engine, FleetSpec, Hardware, ModelSpec, Objectives, Policy, Topology
from ridgeline.cost.memory import USABLE_MEMORY, cache_bytes
from ridgeline.cost.step_cost import EngineCost, StepCost
from ridgeline.decide.snapshot import Signals
from ridgeline.decide.whatif import Load
from ridgeline.simulate.controller import Controller, StaticMixed, StaticSplit, steer
from ridgeline.simulate.fleet import Fleet, FleetSettings
from ridgeline.simulate.kv_cache import BLOCK_TOKENS
from ridgeline.simulate.observer import Observer
from ridgeline.simulate.phase_use import PhaseWork
from ridgeline.simulate.policies import find, names
from ridgeline.simulate.pressure import pressure, step_times
from ridgeline.simulate.results import Interval, Results
from ridgeline.simulate.ridgeline_policy import RidgelinePolicy
from ridgeline.simulate.rivals.rival import Rival
from ridgeline.simulate.router import least_load
from ridgeline.simulate.scheduler import BUDGET_TOKENS, EngineSettings
from ridgeline.simulate.traces import Arrival
from ridgeline_exporters.roofline.bounds import Roof
from ridgeline_exporters.roofline.hardware import GIGA, Accelerator
from ridgeline_exporters.roofline.model import ModelShape

TICK_SECONDS = 60.0


class WrongReplay(ValueError):  # noqa: N818 - names what is wrong
    """What was asked for cannot be simulated; the message names the cause and the cure."""


@dataclass(frozen=True, slots=True)
class Plant:
    """The fleet that is simulated."""

    shape: ModelShape
    """With the parallelism of one engine."""
    accelerator: Accelerator
    engines: int
    first_token_objective_milliseconds: int
    inter_token_objective_milliseconds: int
    percentile: int = 95
    """Of the latencies shown beside the objectives."""

    @property
    def gpus(self) -> int:
        """Of one engine."""
        return self.shape.parallelism.gpus

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache of one engine holds.

        Raises:
            WrongReplay: the weights leave no room for a cache.
        """
        room = cache_bytes(self.shape, self.accelerator)
        if room < BUDGET_TOKENS * self.shape.kv_bytes_per_token:
            raise WrongReplay(
                f"{self.shape.resident_bytes / GIGA:.0f} GB of weights leave no room for a KV cache in "
                f"{100 * USABLE_MEMORY:.0f} % of {self.gpus} x {self.accelerator.memory_bytes / GIGA:.0f} GB; use more"
                " GPUs an engine (--tensor-parallel), smaller weights (--weights) or a GPU with more memory (--gpu)"
            )
        return int(room / self.shape.kv_bytes_per_token)

    def settings(self) -> FleetSettings:
        """For the simulator."""
        return FleetSettings(
            engines=self.engines,
            engine=EngineSettings(kv_blocks=self.kv_tokens // BLOCK_TOKENS),
            kv_bytes_per_token=self.shape.kv_bytes_per_token,
            link_bytes_per_second=self.gpus * self.accelerator.link_bytes_per_second,
            first_token_objective_seconds=self.first_token_objective_milliseconds / 1000.0,
            inter_token_objective_seconds=self.inter_token_objective_milliseconds / 1000.0,
        )

    def spec(self) -> FleetSpec:
        """What a user would write for it, with the policy Auto."""
        return FleetSpec(
            model=ModelSpec(id="model", servedName="model"),
            hardware=Hardware(accelerator=self.accelerator.name, perEngine=self.gpus),
            engine=Engine(image="vllm"),
            replicas=self.engines,
            topology=Topology(policy=Policy.AUTO),
            objectives=Objectives(
                timeToFirstTokenMilliseconds=self.first_token_objective_milliseconds,
                interTokenLatencyMilliseconds=self.inter_token_objective_milliseconds,
                percentile=self.percentile,
            ),
        )

    def load(self, cost: StepCost) -> Load:
        """What the what-if model has to know of it, without any request."""
        return Load(
            requests_per_second=0.0,
            prompts=(),
            outputs=(),
            steps=step_times(cost),
            first_token_objective_seconds=self.first_token_objective_milliseconds / 1000.0,
            inter_token_objective_seconds=self.inter_token_objective_milliseconds / 1000.0,
            maximum_tokens=BUDGET_TOKENS,
            kv_capacity_tokens=float(self.kv_tokens),
            kv_bytes_per_token=self.shape.kv_bytes_per_token,
            link_bytes_per_second=self.gpus * self.accelerator.link_bytes_per_second,
        )

    @property
    def roof(self) -> Roof:
        """Of one engine."""
        return Roof.of(self.accelerator, self.gpus, self.shape.weights.activations)

    def facts(self) -> Signals:
        """What engines say of themselves before they have measured anything."""
        roof = self.roof
        return Signals(
            ridge_flops_per_byte=roof.ridge,
            peak_flops=roof.flops_per_second,
            peak_memory_bytes_per_second=roof.memory_bytes_per_second,
            weight_bytes=self.shape.weight_bytes,
            kv_bytes_per_token=self.shape.kv_bytes_per_token,
            kv_capacity_tokens=float(self.kv_tokens),
            flops_per_token=self.shape.linear_flops_per_token,
        )


# ---------------------------------------------------------------- policies by name


def default_policies(engines: int) -> list[str]:
    """Ridgeline, mixed engines at vLLM's budget and at three smaller ones, and up to three splits."""
    splits = sorted({max(1, engines // 4), engines // 2, engines - max(1, engines // 4)} & set(range(1, engines)))
    return [
        "ridgeline",
        *(f"mixed:{tokens}" for tokens in (BUDGET_TOKENS, 2048, 512, 256)),
        *(f"split:{p}" for p in splits),
    ]


def controller(name: str, plant: Plant) -> Controller:
    """The policy of this name: see `policies.KINDS`.

    Raises:
        WrongReplay: there is none, or not for so many engines.
    """
    found = find(name, plant)
    if found is None:
        raise WrongReplay(f"there is no policy {name!r} for {plant.engines} engines; use {names()}")
    return found


# ---------------------------------------------------------------- playing


def play(
    name: str,
    plant: Plant,
    arrivals: Iterable[Arrival],
    tick: Callable[[float, int], None] = lambda now, requests: None,
) -> dict[str, Any]:
    """One policy on one trace.

    Args:
        name: of the policy.
        plant: the fleet.
        arrivals: the trace, one request after the other.
        tick: called each simulated minute with the time and the requests that have arrived.

    Returns:
        `policy`, `summary` (`Results.summary`), `gpu_hours`, `timeline` (an object for each minute), `decisions` (time,
        action, reason and message of what the policy did) and `most_engines_needed` (Ridgeline's estimate for the
        busiest window; None of other policies): plain values, the same for the same trace.
    """
    chosen = controller(name, plant)
    results = Results(TICK_SECONDS, plant.percentile)
    rival = chosen if isinstance(chosen, Rival) else None
    router = least_load() if rival is None else rival.router()
    cost, work = EngineCost(plant.shape, plant.accelerator), PhaseWork(plant.shape, plant.roof)
    fleet = Fleet(plant.settings(), cost, router, results.done, work=work)
    results.watch(fleet)
    fleet.every(TICK_SECONDS, lambda now: tick(now, fleet.counters.arrivals))
    static = isinstance(chosen, (StaticMixed, StaticSplit))
    played = arrivals if rival is None else rival.attend(fleet, arrivals)
    steer(fleet, chosen, None if static else Observer(fleet, plant.facts()))
    fleet.run(played)
    summary, load = results.summary(), plant.load(cost)
    return {
        "policy": name,
        "summary": summary,
        "gpu_hours": plant.engines * plant.gpus * summary["seconds"] / 3600.0,
        "timeline": [_with_pressure(interval, load) for interval in results.timeline()],
        "decisions": [asdict(event) for event in chosen.events] if isinstance(chosen, (RidgelinePolicy, Rival)) else [],
        "most_engines_needed": chosen.most_engines_needed if isinstance(chosen, RidgelinePolicy) else None,
    }


def _with_pressure(interval: Interval, load: Load) -> dict[str, Any]:
    """An interval as plain values, and how hard its load pressed on each phase; None where nobody could take it."""
    found = pressure(load, interval)
    return interval.plain() | {"prefill_pressure": found and found.prefill, "decode_pressure": found and found.decode}
