"""One fleet at one moment: pods, engines, routers and signals → Snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import aiohttp

from ridgeline.api.fleet import FleetSpec
from ridgeline.decide.snapshot import MetricsProblem, RouterState, Signals, Snapshot
from ridgeline.observe import pods
from ridgeline.observe.engines import EngineProbe, engine_state, probe_engines
from ridgeline.observe.links import link_bytes_per_second
from ridgeline.observe.pods import Pod
from ridgeline.observe.routers import read_routers


async def observe_fleet(
    session: aiohttp.ClientSession,
    spec: FleetSpec,
    *,
    engine_pods: Sequence[Pod],
    router_pods: Sequence[Pod],
    token: str | None,
    signals: Signals | MetricsProblem,
) -> Snapshot:
    """Ask every ready engine and every router of a fleet, and put all that is known into one Snapshot.

    Takes a few seconds at most, however many pods do not answer.

    Args:
        session: from `fetch.new_session`.
        spec: what the user wants.
        engine_pods: pods of the engine Deployment, as the API server has them.
        router_pods: pods of the router Deployment; none for an external router.
        token: control token of the fleet.
        signals: this fleet's entry of `MetricsReader.read`.
    """
    probes, routers = await asyncio.gather(
        probe_engines(session, engine_pods, token), read_routers(session, router_pods)
    )
    return assemble(spec, engine_pods=engine_pods, probes=probes, routers=routers, signals=signals)


def assemble(
    spec: FleetSpec,
    *,
    engine_pods: Sequence[Pod],
    probes: Mapping[str, EngineProbe],
    routers: Sequence[RouterState],
    signals: Signals | MetricsProblem,
) -> Snapshot:
    """The Snapshot of what was read; engines in the order of their names, so that equal worlds give equal snapshots."""
    return Snapshot(
        engines=tuple(engine_state(pod, probes.get(pods.name(pod))) for pod in sorted(engine_pods, key=pods.name)),
        routers=tuple(routers),
        signals=signals,
        link_bytes_per_second=link_bytes_per_second(spec.hardware),
    )
