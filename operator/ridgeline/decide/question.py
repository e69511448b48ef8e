"""Everything one pass of `decide` looks at, and what follows from it alone."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.api.fleet import FleetSpec, FleetStatus, Mode, TopologyStatus
from ridgeline.api.times import from_rfc3339
from ridgeline.decide.plan import History
from ridgeline.decide.snapshot import Signals, Snapshot
from ridgeline.decide.step_times import step_times
from ridgeline.decide.whatif import Load, mean_context

LEAST_MODELLED_LIMIT = 0.005
"""Share of requests."""
DEFAULT_MAXIMUM_TOKENS = 2048
"""Token budget taken for granted where no engine tells its own."""


@dataclass(frozen=True, slots=True)
class Question:
    """One fleet at one moment, as `decide` got it."""

    snapshot: Snapshot
    spec: FleetSpec
    status: FleetStatus
    history: History
    now: float

    @property
    def signals(self) -> Signals | None:
        """The recording rules, when they could be read."""
        return self.snapshot.signals if isinstance(self.snapshot.signals, Signals) else None

    @property
    def engines(self) -> int:
        """Engines to divide: all that are not on their way out."""
        return len(self.snapshot.live)

    @property
    def today(self) -> TopologyStatus:
        """How they are divided now."""
        return self.snapshot.topology

    @property
    def split(self) -> bool:
        """Whether the fleet is split now."""
        return self.today.mode is Mode.SPLIT

    @property
    def maximum_tokens(self) -> int:
        """Largest token budget that every engine can take."""
        known = [e.maximum_tokens for e in self.snapshot.live if e.maximum_tokens]
        return min(known) if known else (self.today.tokenBudget or DEFAULT_MAXIMUM_TOKENS)

    @property
    def budget(self) -> int:
        """Token budget of mixed engines now; of a split fleet, the one that was recommended for them."""
        recommended = self.status.recommendation.tokenBudget if self.status.recommendation else None
        return min(
            self.today.tokenBudget or (recommended if self.split else None) or self.maximum_tokens, self.maximum_tokens
        )

    @property
    def missed_limit(self) -> float:
        """Share of requests that may miss the objectives."""
        return self.spec.rules.missedRequestsPercent / 100.0

    @property
    def modelled_limit(self) -> float:
        """The same of what is modelled: tails never come to nothing, so that no forecast would do for a limit of 0."""
        return max(LEAST_MODELLED_LIMIT, self.missed_limit)

    @property
    def pending(self) -> bool:
        """Whether an earlier pass already wants a change that has not been made."""
        return self.history.wanted is not None

    @property
    def cooldown_until(self) -> float | None:
        """End of the rest after the last transition, if any."""
        times = [self.history.cooldown_until]
        if self.status.cooldownUntilTime:
            times.append(from_rfc3339(self.status.cooldownUntilTime))
        known = [t for t in times if t is not None]
        return max(known) if known else None

    @property
    def cooling_down(self) -> bool:
        """Whether the rest after the last transition is not over."""
        return self.cooldown_until is not None and self.now < self.cooldown_until

    @property
    def prompts_waited_lately(self) -> bool:
        """Whether engines got a larger budget for prompts that waited, and the signals do not show it alone yet."""
        since = self.history.prompts_waited_at
        return since is not None and 0.0 <= self.now - since < self.snapshot.rules_window_seconds

    def load(self) -> Load | None:
        """The measured load for the what-if model; None when a part of it is not known."""
        signals = self.signals
        if signals is None or signals.requests_per_second is None:
            return None
        prompts, outputs = signals.prompt_tokens or (), signals.output_tokens or ()
        context = mean_context(prompts, outputs)
        steps = step_times(signals, self.maximum_tokens if self.split else self.budget, context)
        if steps is None:
            return None
        objectives = self.spec.objectives
        return Load(
            requests_per_second=max(0.0, signals.requests_per_second),
            prompts=prompts,
            outputs=outputs,
            steps=steps,
            first_token_objective_seconds=objectives.timeToFirstTokenMilliseconds / 1000.0,
            inter_token_objective_seconds=objectives.interTokenLatencyMilliseconds / 1000.0,
            maximum_tokens=self.maximum_tokens,
            kv_capacity_tokens=signals.kv_capacity_tokens,
            kv_bytes_per_token=signals.kv_bytes_per_token,
            link_bytes_per_second=self.snapshot.link_bytes_per_second,
        )
