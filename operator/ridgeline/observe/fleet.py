"""One fleet at one moment: pods, engines, routers and signals → Snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ridgeline.api.fleet import FleetSpec
from ridgeline.decide.snapshot import MetricsProblem, RouterState, Signals, Snapshot
from ridgeline.observe import pods
from ridgeline.observe.engines import EngineProbe, engine_state
from ridgeline.observe.links import link_bytes_per_second
from ridgeline.observe.pods import Pod


def assemble(
    spec: FleetSpec,
    *,
    engine_pods: Sequence[Pod],
    probes: Mapping[str, EngineProbe],
    routers: Sequence[RouterState],
    signals: Signals | MetricsProblem,
    rules_window_seconds: float,
) -> Snapshot:
    """The Snapshot of what was read; engines in the order of their names, so that equal worlds give equal snapshots.

    Args:
        spec: what the user wants.
        engine_pods: pods of the engine Deployment, as the API server has them.
        probes: what the engines answered, by pod.
        routers: what the routers show.
        signals: this fleet's entry of `MetricsReader.read`.
        rules_window_seconds: window of the recording rules behind them.
    """
    return Snapshot(
        engines=tuple(engine_state(pod, probes.get(pods.name(pod))) for pod in sorted(engine_pods, key=pods.name)),
        routers=tuple(routers),
        signals=signals,
        link_bytes_per_second=link_bytes_per_second(spec.hardware),
        rules_window_seconds=rules_window_seconds,
    )
