"""What may be wrong with what a policy sees, or with the engines under it, for the robustness benchmark.

A disturbance of the view changes the snapshots of the simulated observer as Prometheus and the operator's reader would
show it; the engines go on as they are. A disturbance of the fleet lets engines die. NaN is handed to the policy as it
is, although the reader of the live operator makes nothing of it, which is the case "missing".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, nan

from ridgeline.api.fleet import Role
from ridgeline.decide.snapshot import Distribution, EngineState, MetricsProblem, PhaseSignals, Signals, Snapshot
from ridgeline.observe.signals import NO_SAMPLES, STALE_SAMPLES
from ridgeline.process import STALE_SCRAPES
from ridgeline.simulate.fleet import Fleet
from ridgeline.simulate.observer import Observer

BEGIN, END = 8 * 60.0, 13 * 60.0
"""When a passing disturbance comes and goes, in seconds of the mix."""
DOWN_SECONDS = 4 * 60.0
TENFOLD = 10

View = Callable[[Snapshot], Snapshot]


@dataclass(frozen=True, slots=True)
class Deaths:
    """Engines that die at `BEGIN`, all at once."""

    roles: tuple[Role, ...]
    """One engine of each; where none has the role, any other."""
    back_after_seconds: float | None
    """None: never."""
    replaced: bool = False
    """Another pod takes its place, and begins mixed; else it is the same pod with the same label."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """One thing that is wrong."""

    tells: str
    view: View = lambda seen: seen
    late_seconds: float = 0.0
    """Age of the samples beyond that of a healthy Prometheus."""
    clock_lies: bool = False
    """Whether late samples look fresh."""
    begin: float = 0.0
    end: float = inf
    deaths: Deaths | None = None

    def is_on(self, now: float) -> bool:
        """Whether the view is disturbed now."""
        return self.begin <= now < self.end


class DisturbedObserver(Observer):
    """An observer under a disturbance, read with the operator's own limit to the age of samples."""

    def __init__(self, fleet: Fleet, facts: Signals, disturbance: Disturbance) -> None:
        super().__init__(fleet, facts)
        self._disturbance = disturbance
        self._past: deque[tuple[float, Signals | MetricsProblem]] = deque()

    def snapshot(self, now: float) -> Snapshot:
        """The fleet as an operator takes it to be."""
        seen = super().snapshot(now)
        if self._disturbance.is_on(now):
            seen = self._disturbance.view(seen)
        return replace(seen, signals=self._as_read(seen.signals, now))

    def signals(self, now: float) -> Signals | MetricsProblem:
        """The evaluation that has arrived by now."""
        fresh, late = super().signals(now), self._disturbance.late_seconds
        if not late:
            return fresh
        self._past.append((now, fresh))
        if not self._disturbance.is_on(now):
            return fresh
        while len(self._past) > 1 and self._past[1][0] <= now - late:
            self._past.popleft()
        time, found = self._past[0]
        if time > now - late:
            return MetricsProblem(NO_SAMPLES, "nothing has arrived yet")
        if self._disturbance.clock_lies and isinstance(found, Signals) and found.sampled_at is not None:
            return replace(found, sampled_at=found.sampled_at + now - time)
        return found

    def _as_read(self, signals: Signals | MetricsProblem, now: float) -> Signals | MetricsProblem:
        """As `observe.signals` and `SharedSignals` take samples: none that is too old."""
        if isinstance(signals, MetricsProblem) or signals.sampled_at is None:
            return signals
        age = self.epoch_seconds + now - signals.sampled_at
        if age <= STALE_SCRAPES * self.delays.scrape_interval_seconds:
            return signals
        return MetricsProblem(STALE_SAMPLES, f"the oldest engine sample is {age:.0f} s old")


def let_die(fleet: Fleet, deaths: Deaths) -> None:
    """Arrange for engines to die; call it when the fleet has been set up: an engine comes back as it was started."""
    started_with = {name: engine.scheduler.budget_tokens for name, engine in fleet.engines.items()}

    def die(now: float) -> None:
        for role in deaths.roles:
            ready = [engine for engine in fleet.engines.values() if engine.ready]
            engine = next((engine for engine in ready if engine.role is role), ready[0])
            fleet.fail(engine.name, deaths.back_after_seconds)
            if deaths.replaced:
                engine.role = Role.MIXED
            if deaths.back_after_seconds is not None:
                name = engine.name
                fleet.at(
                    now + deaths.back_after_seconds,
                    lambda then, name=name: fleet.set_limit(name, started_with[name]),  # type: ignore[misc]
                )

    fleet.at(BEGIN, die)


# ---------------------------------------------------------------- views


def _of_signals(change: Callable[[Signals], Signals | MetricsProblem]) -> View:
    def view(seen: Snapshot) -> Snapshot:
        return replace(seen, signals=change(seen.signals)) if isinstance(seen.signals, Signals) else seen

    return view


def _rates(value: float | None, lengths: Distribution | None) -> View:
    """Every rule over a window with this value; what engines are, and have learned of their steps, stays."""
    quantile = value if value != 0.0 else None  # an idle histogram has no quantiles
    phase = PhaseSignals(value, quantile, value, value)
    return _of_signals(
        lambda signals: replace(
            signals,
            requests_per_second=value,
            missed_ratio=value,
            first_token_late_ratio=value,
            gaps_late_ratio=value,
            decode_stall_ratio=value,
            time_to_first_token_p95_seconds=quantile,
            inter_token_p95_seconds=quantile,
            inter_token_p99_seconds=quantile,
            prompt_tokens=lengths,
            output_tokens=lengths,
            prefill=phase,
            decode=phase,
            kv_transfer_bytes_per_second=value,
            kv_transfer_failures_per_second=value,
        )
    )


NAN, MISSING, ZERO = _rates(nan, ((nan, 1.0),)), _rates(None, None), _rates(0.0, None)
NO_SERIES = _of_signals(lambda signals: MetricsProblem(NO_SAMPLES, "Prometheus has no recorded series of this fleet"))


def _misses(share: float) -> View:
    """Objectives that the engines were never told, or that nothing can meet: gaps are all in time, or all late."""
    return _of_signals(
        lambda signals: replace(signals, missed_ratio=share, first_token_late_ratio=0.0, gaps_late_ratio=share)
    )


def _longer(factor: float) -> View:
    def lengths(known: Distribution | None) -> Distribution | None:
        return known and tuple((factor * tokens, weight) for tokens, weight in known)

    return _of_signals(
        lambda signals: replace(
            signals, prompt_tokens=lengths(signals.prompt_tokens), output_tokens=lengths(signals.output_tokens)
        )
    )


def _peaks(compute: float, memory: float) -> View:
    def scaled(value: float | None, factor: float) -> float | None:
        return None if value is None else factor * value

    return _of_signals(
        lambda signals: replace(
            signals,
            peak_flops=scaled(signals.peak_flops, compute),
            peak_memory_bytes_per_second=scaled(signals.peak_memory_bytes_per_second, memory),
            ridge_flops_per_byte=scaled(signals.ridge_flops_per_byte, compute / memory),
        )
    )


def _link(factor: float) -> View:
    def view(seen: Snapshot) -> Snapshot:
        link = seen.link_bytes_per_second
        return replace(seen, link_bytes_per_second=None if link is None else factor * link)

    return view


def _first_engine_counts_tenfold(seen: Snapshot) -> Snapshot:
    """Engines of a role are taken to do the same: rates grow by its share of them, ratios and lengths stay."""
    liar = seen.engines[0]

    def inflated(value: float | None, roles: tuple[Role, ...]) -> float | None:
        pool = sum(engine.role in roles for engine in seen.serving)
        return value if value is None or liar.role not in roles else value * (pool + TENFOLD - 1) / pool

    def told(engine: EngineState) -> EngineState:
        if engine is not liar or engine.kv_bytes_received is None or engine.prompt_requests is None:
            return engine
        kv, prompts = TENFOLD * engine.kv_bytes_received, TENFOLD * engine.prompt_requests
        return replace(engine, kv_bytes_received=kv, prompt_requests=prompts)

    def counted(signals: Signals) -> Signals:
        first, second = (Role.MIXED, Role.PREFILL), (Role.MIXED, Role.DECODE)
        return replace(
            signals,
            requests_per_second=inflated(signals.requests_per_second, first),
            prefill=PhaseSignals(inflated(signals.prefill.tokens_per_second, first)),
            decode=PhaseSignals(inflated(signals.decode.tokens_per_second, second)),
        )

    return _of_signals(counted)(replace(seen, engines=tuple(told(engine) for engine in seen.engines)))


# ---------------------------------------------------------------- the list

UNDISTURBED = "undisturbed"
_PREFILL, _DECODE = Role.PREFILL, Role.DECODE


def _passing(tells: str, view: View = lambda seen: seen, late_seconds: float = 0.0) -> Disturbance:
    return Disturbance(tells, view, late_seconds, begin=BEGIN, end=END)


DISTURBANCES: dict[str, Disturbance] = {
    UNDISTURBED: Disturbance("nothing is wrong"),
    "nan": Disturbance("every rate is NaN, all the time", NAN),
    "nan-passing": _passing("every rate is NaN, minutes 8 to 13", NAN),
    "nan-misses": _passing(
        "only the share of misses is NaN, minutes 8 to 13",
        _of_signals(lambda signals: replace(signals, missed_ratio=nan)),
    ),
    "missing": Disturbance("the rules of rates return nothing, all the time", MISSING),
    "missing-passing": _passing("the rules of rates return nothing, minutes 8 to 13", MISSING),
    "missing-lengths": _passing(
        "only the prompt lengths return nothing, minutes 8 to 13",
        _of_signals(lambda signals: replace(signals, prompt_tokens=None)),
    ),
    "no-series": _passing("Prometheus knows nothing of the fleet, minutes 8 to 13", NO_SERIES),
    "zero": Disturbance("every rate is 0 while engines hold requests, all the time", ZERO),
    "zero-passing": _passing("every rate is 0 while engines hold requests, minutes 8 to 13", ZERO),
    "zero-arrivals": _passing(
        "only arrivals are 0, minutes 8 to 13",
        _of_signals(lambda signals: replace(signals, requests_per_second=0.0, prompt_tokens=None)),
    ),
    "late-30": Disturbance("samples come 30 s late, all the time", late_seconds=30.0),
    "late-300": Disturbance("samples come 5 min late, all the time", late_seconds=300.0),
    "late-300-passing": _passing("samples come 5 min late, minutes 8 to 13", late_seconds=300.0),
    "late-30-unseen": Disturbance(
        "samples come 30 s late and look fresh, all the time", late_seconds=30.0, clock_lies=True
    ),
    "late-300-unseen": Disturbance(
        "samples come 5 min late and look fresh, all the time", late_seconds=300.0, clock_lies=True
    ),
    "tenfold": Disturbance("one engine counts everything ten times", _first_engine_counts_tenfold),
    "misses-0": Disturbance("the share of misses is stuck at 0", _misses(0.0)),
    "misses-1": Disturbance("the share of misses is stuck at 1", _misses(1.0)),
    "misses-1-passing": _passing("the share of misses is stuck at 1, minutes 8 to 13", _misses(1.0)),
    "lengths-half": Disturbance("lengths are told at half", _longer(0.5)),
    "lengths-double": Disturbance("lengths are told at double", _longer(2.0)),
    "stall-90": Disturbance(
        "decode stall is stuck at 90 %", _of_signals(lambda signals: replace(signals, decode_stall_ratio=0.9))
    ),
    "prefill-dies": Disturbance("a prefill engine dies for 4 minutes", deaths=Deaths((_PREFILL,), DOWN_SECONDS)),
    "prefill-dies-for-good": Disturbance("a prefill engine dies for good", deaths=Deaths((_PREFILL,), None)),
    "decode-dies": Disturbance("a decode engine dies for 4 minutes", deaths=Deaths((_DECODE,), DOWN_SECONDS)),
    "decode-replaced": Disturbance(
        "a decode engine is replaced by a pod that is ready after 4 minutes, and mixed",
        deaths=Deaths((_DECODE,), DOWN_SECONDS, replaced=True),
    ),
    "decode-dies-for-good": Disturbance("a decode engine dies for good", deaths=Deaths((_DECODE,), None)),
    "two-die": Disturbance(
        "a prefill and a decode engine die for 4 minutes", deaths=Deaths((_PREFILL, _DECODE), DOWN_SECONDS)
    ),
    "two-die-for-good": Disturbance(
        "a prefill and a decode engine die for good", deaths=Deaths((_PREFILL, _DECODE), None)
    ),
    "two-decodes-die": Disturbance(
        "two decode engines die for 4 minutes", deaths=Deaths((_DECODE, _DECODE), DOWN_SECONDS)
    ),
    "link-tenth": Disturbance("the link is believed ten times slower than it is", _link(0.1)),
    "link-tenfold": Disturbance("the link is believed ten times faster than it is", _link(10.0)),
    "peaks-low": Disturbance("peaks are believed 30 % lower", _peaks(0.7, 0.7)),
    "peaks-high": Disturbance("peaks are believed 30 % higher", _peaks(1.3, 1.3)),
    "compute-high-memory-low": Disturbance("compute 30 % higher, bandwidth 30 % lower", _peaks(1.3, 0.7)),
    "compute-low-memory-high": Disturbance("compute 30 % lower, bandwidth 30 % higher", _peaks(0.7, 1.3)),
}
