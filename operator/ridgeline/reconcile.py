"""One pass over one fleet: observe, render and apply, decide, act.

Level-triggered: a pass looks at the world as it is and at `status.transition`, never at what woke it. What it keeps in
memory is a cache, or history that `decide` takes from status or soon learns again, so that an
operator that was killed anywhere goes on where it stood.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import aiohttp

from ridgeline.act import apply, conditions, status, turn
from ridgeline.act.api import DEPLOYMENTS, FLEETS, POD_MONITORS, PODS, ApiError, KubernetesApi, Object
from ridgeline.act.conditions import Facts
from ridgeline.act.engines import Engine, EngineControl
from ridgeline.act.roles import set_roles
from ridgeline.act.secret import Keys, UnusableSecretError, ensure_secret
from ridgeline.act.stored import as_refusal, read_fleet, replica_failure, stored_status
from ridgeline.api.conditions import ConditionType, Verdict
from ridgeline.api.fleet import FleetStatus, InferenceFleet, RouterType, Step
from ridgeline.api.names import API_VERSION, COMPONENT_ENGINE, COMPONENT_ROUTER, KIND, LABEL_COMPONENT, LABEL_FLEET
from ridgeline.decide.plan import History
from ridgeline.decide.snapshot import Snapshot
from ridgeline.metrics import OperatorMetrics
from ridgeline.observe import pods as pod_facts
from ridgeline.observe.engines import EngineProbe, probe_engines, with_counters_of
from ridgeline.observe.fleet import assemble
from ridgeline.observe.routers import read_routers
from ridgeline.render import render_fleet, validate
from ridgeline.reporting import Reporter
from ridgeline.signals_source import Key, SharedSignals

PROBE_SECONDS = 1.0
"""Answers of engines this young are used again: passes may come ten times a second."""
SWITCHING_PROBE_SECONDS = 3.0
"""The same while roles are switched: routers are waited for then, and a busy engine must not hold that up."""
REFUSED_AGAIN_SECONDS = 10.0
"""When manifests that the API server refused are tried again."""
MONITORS_AGAIN_SECONDS = 300.0
"""When the cluster is asked again whether it knows PodMonitors."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """How the operator renders fleets and how often it looks at them."""

    operator_image: str
    operator_image_pull_policy: str = "IfNotPresent"
    interval_seconds: float = 5.0
    scrape_interval_seconds: int = 5
    rules_window_seconds: float = 45.0
    """Window of the recording rules."""
    monitors: bool = True
    """Whether fleets get PodMonitors where the cluster knows them."""


@dataclass(slots=True)
class _Memory:
    """What is kept of a fleet between passes."""

    uid: str
    history: History = field(default_factory=History)
    keys: Keys | None = None
    applied: apply.Applied | None = None
    refused: Verdict | None = None
    refused_at: tuple[int, float] = (0, 0.0)
    """Generation and time of the refusal."""
    probes: dict[str, EngineProbe] = field(default_factory=dict)
    probed_at: float = 0.0
    counters: dict[str, tuple[int, EngineProbe]] = field(default_factory=dict)
    """Pod → restarts and the last counters told since, for passes in which the engine does not answer."""
    objectives: dict[str, tuple[int, object]] = field(default_factory=dict)
    """Pod → restarts and the objectives it was told."""
    written_at: float | None = None


class Reconciler:
    """Passes over fleets."""

    def __init__(
        self,
        api: KubernetesApi,
        session: aiohttp.ClientSession,
        signals: SharedSignals,
        metrics: OperatorMetrics,
        reporter: Reporter,
        options: Options,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._session = session
        self._signals = signals
        self._metrics = metrics
        self._reporter = reporter
        self._options = options
        self._clock = clock
        self._memory: dict[Key, _Memory] = {}
        self._monitors = False
        self._monitors_asked_at = float("-inf")

    async def reconcile(self, key: Key) -> float | None:
        """One pass.

        Returns:
            Seconds until the next one, or None when the fleet is gone.

        Raises:
            ApiError: the API server did not do what it was asked; nothing is lost by trying again.
        """
        with self._metrics.reconcile_seconds.time():
            raw = await self._api.get(FLEETS, *key)
            if raw is None or "deletionTimestamp" in raw["metadata"]:
                self._forget(key)
                return None
            uid = raw["metadata"]["uid"]
            if key in self._memory and self._memory[key].uid != uid:  # deleted and made again under the same name
                self._forget(key)
            memory = self._memory.setdefault(key, _Memory(uid))
            fleet, refusal = read_fleet(raw)
            if fleet is None:
                assert refusal is not None
                return await self._refuse(key, raw, memory, refusal)
            return await self._pass(key, raw, fleet, memory)

    def _forget(self, key: Key) -> None:
        """A fleet is gone: the garbage collector deletes what it owned, here its memory and its series go."""
        if self._memory.pop(key, None):
            log.info("%s/%s is deleted", *key)
        self._reporter.forget(key)

    async def _refuse(self, key: Key, raw: Object, memory: _Memory, refusal: Verdict) -> float:
        """Say why a stored spec cannot be worked with; everything else of its status stays as it is."""
        now = self._clock()
        before = stored_status(raw)
        answers = conditions.assess(Facts(None, now=now, refusal=refusal))
        after = status.with_conditions(
            before.model_copy(update={"observedGeneration": raw["metadata"].get("generation", 0)}),
            conditions.conditions(answers, before.conditions, raw["metadata"].get("generation", 0), now),
        )
        await self._write(key, raw, memory, after, now)
        self._reporter.refused(key, answers, now)
        await self._reporter.announce(key, memory.uid, None, before, after, None, now)
        return max(self._options.interval_seconds, REFUSED_AGAIN_SECONDS)

    async def _pass(self, key: Key, raw: Object, fleet: InferenceFleet, memory: _Memory) -> float:
        now = self._clock()
        refusal = as_refusal(validate(fleet))
        if memory.keys is None or apply.is_old(memory.applied, now):
            try:
                memory.keys = await ensure_secret(self._api, fleet.namespace, fleet.name, fleet.uid)
            except UnusableSecretError as error:
                memory.keys = None
                refusal = refusal or Verdict("True", "UnusableSecret", str(error))
        listed, deployments = await asyncio.gather(
            self._api.select(PODS, fleet.namespace, {LABEL_FLEET: fleet.name}),
            self._api.select(DEPLOYMENTS, fleet.namespace, {LABEL_FLEET: fleet.name}),
        )
        if refusal is None:
            refusal = await self._apply(fleet, deployments, memory, now)
        snapshot = await self._observe(key, fleet, listed, memory, now)
        chosen = turn.take_turn(fleet, snapshot, memory.history, refusal, now, self._options.interval_seconds)
        memory.history = chosen.history
        answers = conditions.assess(
            Facts(fleet.spec, snapshot, now, refusal, replica_failure(deployments), chosen.transition, chosen.verdict)
        )
        after = self._status(fleet, snapshot, chosen, answers, now)
        if chosen.transition is not None and fleet.status.transition is None:
            self._reporter.decided(key)
        await self._write(key, raw, memory, after, now)  # first the record, then the deed
        await self._act(fleet, snapshot, chosen, memory)
        self._reporter.measure(fleet, snapshot, chosen, after, answers, now)
        policy = fleet.spec.topology.policy
        await self._reporter.announce(key, fleet.uid, policy, fleet.status, after, chosen, now)
        return chosen.again_seconds

    # ------------------------------------------------------------ the parts of a pass

    async def _apply(
        self, fleet: InferenceFleet, deployments: Sequence[Object], memory: _Memory, now: float
    ) -> Verdict | None:
        """Bring the rendered manifests into the cluster; a refusal by the API server is a verdict, not an error."""
        generation, refused_at = memory.refused_at
        if memory.refused and generation == fleet.generation and now - refused_at < REFUSED_AGAIN_SECONDS:
            return memory.refused
        manifests = render_fleet(
            fleet,
            operator_image=self._options.operator_image,
            operator_image_pull_policy=self._options.operator_image_pull_policy,
            monitors=await self._knows_monitors(now),
            scrape_interval_seconds=self._options.scrape_interval_seconds,
        )
        present = [("Deployment", deployment["metadata"]["name"]) for deployment in deployments]
        if not apply.is_due(memory.applied, manifests, present, now):
            return None
        try:
            memory.applied = await apply.apply(
                self._api, fleet.namespace, fleet.name, fleet.uid, manifests, memory.applied, now
            )
        except apply.NameTakenError as error:
            memory.refused = Verdict("True", "NameTaken", str(error))
        except ApiError as error:
            if error.status not in (400, 403, 409, 422, 500):
                raise
            message = f"the API server refuses a part of the fleet: {error}; correct `spec` or the operator's rights"
            memory.refused = Verdict("True", "ManifestsRefused", message)
        else:
            memory.refused = None
            return None
        memory.applied, memory.refused_at = None, (fleet.generation, now)
        return memory.refused

    async def _knows_monitors(self, now: float) -> bool:
        if not self._options.monitors:
            return False
        if now - self._monitors_asked_at >= MONITORS_AGAIN_SECONDS:
            self._monitors_asked_at = now
            self._monitors = await self._api.serves(POD_MONITORS)
        return self._monitors

    async def _observe(
        self, key: Key, fleet: InferenceFleet, listed: Sequence[Object], memory: _Memory, now: float
    ) -> Snapshot:
        engines = [pod for pod in listed if pod["metadata"]["labels"].get(LABEL_COMPONENT) == COMPONENT_ENGINE]
        routers = [pod for pod in listed if pod["metadata"]["labels"].get(LABEL_COMPONENT) == COMPONENT_ROUTER]
        if fleet.spec.router.type is RouterType.EXTERNAL:
            routers = []
        token = memory.keys.control_token if memory.keys else None
        states = asyncio.create_task(read_routers(self._session, routers))
        ready = {pod_facts.name(pod) for pod in engines if pod_facts.is_ready(pod)}
        moving = fleet.status.transition
        switching = moving is not None and moving.step in (Step.PRECHECK, Step.SWITCH, Step.ROLL_BACK)
        old = now - memory.probed_at >= (SWITCHING_PROBE_SECONDS if switching else PROBE_SECONDS)
        if old or not ready <= set(memory.probes):
            memory.probes = await probe_engines(self._session, engines, token)
            memory.probed_at = now
        memory.counters = _counters(engines, memory)
        return assemble(
            fleet.spec,
            engine_pods=engines,
            probes={pod: probe for pod, (_, probe) in memory.counters.items()},
            routers=await states,
            signals=self._signals.of(key, now),
            rules_window_seconds=self._options.rules_window_seconds,
        )

    def _status(
        self,
        fleet: InferenceFleet,
        snapshot: Snapshot,
        chosen: turn.Turn,
        answers: dict[ConditionType, Verdict],
        now: float,
    ) -> FleetStatus:
        after = turn.status_after(fleet, snapshot, chosen, now)
        told = conditions.conditions(answers, fleet.status.conditions, fleet.generation, now)
        return status.with_conditions(after, told)

    async def _write(self, key: Key, raw: Object, memory: _Memory, after: FleetStatus, now: float) -> None:
        wanted = status.as_object(after)
        since = None if memory.written_at is None else now - memory.written_at
        if not status.must_write(raw.get("status") or {}, wanted, since):
            return
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": key[1], "namespace": key[0]}}
        await self._api.apply(FLEETS, key[0], key[1], {**body, "status": wanted}, subresource="status")
        memory.written_at = now

    async def _act(self, fleet: InferenceFleet, snapshot: Snapshot, chosen: turn.Turn, memory: _Memory) -> None:
        """Carry out what the turn asks of engines; what fails shows in the next snapshot and is asked again."""
        problems = await set_roles(self._api, fleet.namespace, chosen.roles) if chosen.roles else {}
        if memory.keys is not None:
            problems |= await self._order(fleet, snapshot, chosen, memory, memory.keys)
        for pod, problem in problems.items():
            log.warning("%s/%s: engine %s did not take an order: %s", fleet.namespace, fleet.name, pod, problem)

    async def _order(
        self, fleet: InferenceFleet, snapshot: Snapshot, chosen: turn.Turn, memory: _Memory, keys: Keys
    ) -> dict[str, str]:
        """Set limits, and tell the objectives to engines that do not know them yet."""
        control = EngineControl(self._session, keys.control_token)
        known = {e.pod: Engine(e.pod, e.address) for e in snapshot.serving if e.address}
        limits = {known[pod]: tokens for pod, tokens in chosen.limits.items() if pod in known}
        problems: dict[str, str] = {}
        if limits:
            problems = await control.set_limits(limits)
            memory.probed_at = 0.0  # the next pass must see what came of it
        wanted = {e.pod: (e.restarts, fleet.spec.objectives) for e in snapshot.serving if e.pod in known}
        untold = [known[pod] for pod, objectives in wanted.items() if memory.objectives.get(pod) != objectives]
        if untold:
            failed = await control.set_objectives(untold, fleet.spec.objectives)
            memory.objectives = {p: o for p, o in memory.objectives.items() if p in wanted}
            memory.objectives |= {e.pod: wanted[e.pod] for e in untold if e.pod not in failed}
            problems |= failed
        return problems


def _counters(engines: Sequence[Object], memory: _Memory) -> dict[str, tuple[int, EngineProbe]]:
    """The last probe of each engine, with the counters that its container has told before and not now."""
    found = {}
    for pod in engines:
        name, restarts = pod_facts.name(pod), pod_facts.restarts(pod)
        probe = memory.probes.get(name, EngineProbe()) if pod_facts.is_ready(pod) else EngineProbe()
        restarts_before, before = memory.counters.get(name, (restarts, EngineProbe()))
        found[name] = (restarts, with_counters_of(before, probe) if restarts_before == restarts else probe)
    return found
