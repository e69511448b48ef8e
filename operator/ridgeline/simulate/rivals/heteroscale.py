"""HeteroScale (ByteDance, arXiv:2508.19559): pools in the ratio of their loads in tokens per second.

Rule (sections on the metrics study and the policy): decode tokens per second and prefill tokens per second without
cache hits are the clean, linear signals of load; latencies are flat and then a cliff, and utilisation of decode GPUs
misleads. Instances follow the load in proportion to a target of tokens per second for each, which a pressure test of
the service gives, with a tolerance and a cooldown; prefill and decode are scaled together, in a ratio that the test
gives, too.

Adapted to a fixed number of engines: the number that the paper's loop would find is given, and with a constant ratio
nothing would be left to decide (that is a static split, of which the best is a rival already). So both pools follow
their own signal, and what is fixed is the target of each: the test is made once, on the lengths of the first requests.
The safety loop on latency adds to both pools alike and has nothing to add here. The paper names cooldown, damping and
tolerance without numbers: one engine moves at a time, the next when it serves, and the tolerance is that of Kubernetes'
horizontal autoscaler (10 %); the window is a minute. The pod that moves starts anew (`START_UP_SECONDS`), the old one
being out of the router's table first, as in the paper's soft scale-in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ridgeline.api.fleet import Role
from ridgeline.decide.snapshot import Signals, Snapshot
from ridgeline.decide.step_times import step_times
from ridgeline.simulate.controller import Orders
from ridgeline.simulate.fleet import Fleet
from ridgeline.simulate.rivals.capacity import decode_tokens_per_second, prefill_tokens_per_second, shares
from ridgeline.simulate.rivals.rival import PoolScaler, pool, under_way
from ridgeline.simulate.rivals.sight import Sight
from ridgeline.simulate.traces import Arrival

INTERVAL_SECONDS = 15.0
"""Kubernetes' horizontal autoscaler looks as often."""
WINDOW_SECONDS = 60.0
TOLERANCE = 0.10


@dataclass(frozen=True, slots=True)
class Targets:
    """What a pressure test found: tokens per second of one instance."""

    prefill: float
    decode: float


def wanted_prefill(prefill_rate: float, decode_rate: float, targets: Targets, prefill: int, decode: int) -> int:
    """Prefill engines for these loads in tokens per second; today's while neither pool is off by the tolerance."""
    need = prefill_rate / targets.prefill, decode_rate / targets.decode
    load = need[0] / prefill, need[1] / decode
    if max(load) <= (1.0 + TOLERANCE) * min(load):
        return prefill
    return shares(*need, prefill + decode)[0]


class HeteroScale(PoolScaler):
    """Keeps both pools at the same share of their targets.

    Args:
        inter_token_objective_seconds: within which the pressure test loads a decode engine.
    """

    def __init__(self, inter_token_objective_seconds: float) -> None:
        super().__init__("HeteroScale", INTERVAL_SECONDS)
        self._objective = inter_token_objective_seconds
        self._targets: Targets | None = None
        self._sight: Sight | None = None

    def attend(self, fleet: Fleet, arrivals: Iterable[Arrival]) -> Iterable[Arrival]:
        """Scrape the fleet."""
        self._sight = Sight(fleet, WINDOW_SECONDS)
        return arrivals

    def decide(self, now: float, snapshot: Snapshot) -> Orders:
        """One look."""
        assert self._sight is not None
        window = self._sight.window(now, WINDOW_SECONDS)
        if self._targets is None and isinstance(snapshot.signals, Signals):
            self._targets = self._pressure_test(snapshot.signals)
        if self._targets is None or len(window) < 2 or under_way(snapshot):
            return self.hold()
        before, after = window[0], window[-1]
        seconds = after.seconds - before.seconds
        prefill_rate = (after.counters.prefill_tokens - before.counters.prefill_tokens) / seconds
        decode_rate = (after.counters.decode_tokens - before.counters.decode_tokens) / seconds
        prefill, decode = len(pool(snapshot, Role.PREFILL)), len(pool(snapshot, Role.DECODE))
        wanted = wanted_prefill(prefill_rate, decode_rate, self._targets, prefill, decode)
        if wanted == prefill:
            return self.hold()
        to = Role.PREFILL if wanted > prefill else Role.DECODE
        why = f"{prefill_rate:,.0f} prefill and {decode_rate:,.0f} decode tokens/s"
        return self.move(now, snapshot, 1, to, why)

    def _pressure_test(self, signals: Signals) -> Targets | None:
        steps = step_times(signals)
        if steps is None or not signals.prompt_tokens or not signals.output_tokens:
            return None
        prompt = sum(tokens * weight for tokens, weight in signals.prompt_tokens)
        output = sum(tokens * weight for tokens, weight in signals.output_tokens)
        return Targets(
            prefill_tokens_per_second(steps),
            decode_tokens_per_second(steps, prompt + output / 2.0, self._objective, signals.kv_capacity_tokens),
        )
