"""The operator's own metrics.

What a fleet is like at the moment is kept as one value per fleet and turned into families when Prometheus asks
(`_Fleets`), so a series that no longer holds, or a fleet that is gone, leaves nothing behind. What happened is
counted, and the counters of a deleted fleet are removed. Followers report no fleet: two replicas would give two
answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ridgeline.api.conditions import ConditionType, Verdict
from ridgeline.api.fleet import Action, Mode, Recommendation, Role, TopologyStatus

FLEET = ("namespace", "fleet")
TRANSITION_BUCKETS = (1, 2.5, 5, 10, 20, 30, 45, 60, 90, 120, 180, 300, 600, 1800)
ROUTED_BUCKETS = (0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30)
RECONCILE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

Key = tuple[str, str]
"""Namespace and name of a fleet."""


@dataclass(frozen=True, slots=True)
class FleetView:
    """What the gauges say about one fleet."""

    roles: Mapping[str, Role] = field(default_factory=dict)
    """Engine pod → role."""
    topology: TopologyStatus | None = None
    recommendation: Recommendation | None = None
    recommended_action: Action | None = None
    sampled_at: float | None = None
    """Time of the oldest sample behind the signals, Unix seconds."""
    seen_at: float = 0.0
    """Time of the pass, Unix seconds."""
    conditions: Mapping[ConditionType, Verdict] = field(default_factory=dict)
    step_time_corrections: Mapping[str, float] = field(default_factory=dict)
    """Kind of step → measured by modelled seconds; nothing for a kind that was not measured."""


class _Fleets(Collector):
    """Gauges of all fleets, from their views."""

    def __init__(self) -> None:
        self.views: dict[Key, FleetView] = {}

    def describe(self) -> Iterable[Metric]:
        return self._families({})

    def collect(self) -> Iterable[Metric]:
        return self._families(dict(self.views))

    @staticmethod
    def _families(views: Mapping[Key, FleetView]) -> Iterable[Metric]:
        def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"ridgeline_fleet_{name}", text, labels=[*FLEET, *labels])

        role_of = gauge("engine_role", "1 for the role that the label of an engine pod gives.", "pod", "role")
        engines = gauge("engines", "Engines of a fleet by role.", "role")
        mode = gauge("mode", "1 for the mode of a fleet, 0 for the other.", "mode")
        wanted = gauge("recommended_engines", "Engines by role in the best topology by the what-if model.", "role")
        needed = gauge(
            "engines_needed",
            "Fewest engines with which some topology should meet the objectives, by the what-if model; absent when unknown.",
        )
        advice = gauge("recommendation", "1 for the current recommendation.", "action", "reason")
        budget = gauge("token_budget", "Tokens that a mixed engine may schedule in one step.")
        age = gauge("signal_age_seconds", "Age of the oldest sample behind the last decision.")
        correction = gauge(
            "step_time_correction_ratio",
            "Measured by modelled seconds of the fleet's steps, by which the operator corrects the roofline's step times"
            " where it decides by them: steps that only decode (decode), and steps that hold a prompt chunk (prefill)."
            " Absent while not measured.",
            "kind",
        )
        condition = gauge("condition", "1 for the status that a condition has, 0 for the others.", "type", "status")
        for key, view in views.items():
            for pod, role in view.roles.items():
                role_of.add_metric([*key, pod, role], 1)
            if view.topology:
                counts = {Role.MIXED: view.topology.mixed, Role.PREFILL: view.topology.prefill}
                for role, count in (counts | {Role.DECODE: view.topology.decode}).items():
                    engines.add_metric([*key, role], count)
                for each in Mode:
                    mode.add_metric([*key, each], view.topology.mode is each)
                if view.topology.tokenBudget is not None:
                    budget.add_metric([*key], view.topology.tokenBudget)
            if view.recommendation:
                best = view.recommendation
                total = view.topology.mixed + view.topology.prefill + view.topology.decode if view.topology else 0
                mixed = total if best.mode is Mode.MIXED else 0
                for role, count in ((Role.MIXED, mixed), (Role.PREFILL, best.prefill), (Role.DECODE, best.decode)):
                    wanted.add_metric([*key, role], count)
                if best.enginesNeeded is not None:
                    needed.add_metric([*key], best.enginesNeeded)
                advice.add_metric([*key, view.recommended_action or Action.HOLD, best.reason], 1)
            if view.sampled_at is not None:
                age.add_metric([*key], max(0.0, view.seen_at - view.sampled_at))
            for step_kind, factor in view.step_time_corrections.items():
                correction.add_metric([*key, step_kind], factor)
            for kind, verdict in view.conditions.items():
                for status in ("True", "False", "Unknown"):
                    condition.add_metric([*key, kind, status], verdict.status == status)
        return (role_of, engines, mode, wanted, needed, advice, budget, age, correction, condition)


class OperatorMetrics:
    """All metrics of one operator process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._fleets = _Fleets()
        self.registry.register(self._fleets)
        self._decisions = self._counter("decisions", "Decisions by action and reason.", "action", "reason")
        self._transitions = self._counter("transitions", "Transitions by action and outcome.", "action", "outcome")
        self._seconds = self._histogram(
            "transition_seconds", "From the start of a transition to its end.", TRANSITION_BUCKETS
        )
        self._routed = self._histogram(
            "transition_routed_seconds", "From a decision until every router shows the roles.", ROUTED_BUCKETS
        )
        self.reconcile_seconds = Histogram(
            "ridgeline_reconcile_seconds", "Duration of one pass over one fleet.", buckets=RECONCILE_BUCKETS,
            registry=self.registry,
        )  # fmt: skip
        self.reconcile_errors = Counter(
            "ridgeline_reconcile_errors", "Passes over a fleet that failed.", registry=self.registry
        )
        self.leader = Gauge("ridgeline_leader", "1 while this process leads.", registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"ridgeline_fleet_{name}", text, [*FLEET, *labels], registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        labels = [*FLEET, "action"]
        return Histogram(f"ridgeline_fleet_{name}", text, labels, buckets=buckets, registry=self.registry)

    def show(self, key: Key, view: FleetView) -> None:
        """Replace what the gauges say about a fleet."""
        self._fleets.views[key] = view

    def decided(self, key: Key, action: Action, reason: str) -> None:
        """Count a decision."""
        self._decisions.labels(*key, action, reason).inc()

    def routed(self, key: Key, action: Action, seconds: float) -> None:
        """Note how long it took until every router showed the new roles."""
        self._routed.labels(*key, action).observe(seconds)

    def transition_over(self, key: Key, action: Action, outcome: str, seconds: float) -> None:
        """Count a transition and note how long it took."""
        self._transitions.labels(*key, action, outcome).inc()
        self._seconds.labels(*key, action).observe(seconds)

    def forget(self, key: Key) -> None:
        """Remove every series of a deleted fleet."""
        self._fleets.views.pop(key, None)
        labels = dict(zip(FLEET, key, strict=True))
        for metric in (self._decisions, self._transitions, self._seconds, self._routed):
            metric.remove_by_labels(labels)

    def forget_all(self) -> None:
        """Remove the series of all fleets: another process speaks for them now."""
        for key in list(self._fleets.views):
            self.forget(key)
