"""What a fleet's conditions say, from what was seen. Pure: no clock, no I/O.

`Ready` sums up: it is True when the fleet serves with all it was asked to have, and else repeats the first answer in
`PRIORITY` that is not as it should be: the reason that a person should read first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ridgeline.api.conditions import ConditionType, Verdict
from ridgeline.api.fleet import Condition, FleetSpec, Role, RouterType, TransitionStatus
from ridgeline.api.names import GPU_RESOURCE
from ridgeline.api.times import to_rfc3339
from ridgeline.decide.guards import metrics_verdict
from ridgeline.decide.snapshot import EngineState, Snapshot

IMAGE_REASONS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
)
START_REASONS = frozenset(
    {"CrashLoopBackOff", "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"}
)

CURES: tuple[tuple[str, str], ...] = (
    # what the engine's last lines say, and what helps
    (
        r"gated repo|401 client error|403 client error|unauthorized",
        "name a Secret with access in `spec.model.tokenSecretRef`",
    ),
    (
        r"out of memory|no available memory|larger than the (available|maximum)|kv cache is needed",
        "use more GPUs per engine (`spec.hardware.perEngine`), or lower `--max-model-len` in `spec.engine.args`",
    ),
    (
        r"repository not found|not a valid model identifier|does not appear to have|no such file|cannot find"
        r"|404 client error|can't load|invalid repository|repo id must|not a local folder",
        "check `spec.model.id` and `spec.model.revision`, and that the model cache holds the model",
    ),
    (r"unrecognized arguments|invalid choice|error: argument", "correct `spec.engine.args`"),
    (
        r"no module named|not supported|unsupported|architectures",
        "use a vLLM image (`spec.engine.image`) that supports the model",
    ),
    (
        r"connection error|name resolution|timed out|offline",
        "let the engines reach the model hub, or mount a cache that holds the model (`spec.model.cache`)",
    ),
)
MESSAGE_CHARACTERS = 1024
"""Longest message: conditions may hold more, events and people may not."""


@dataclass(frozen=True, slots=True)
class Facts:
    """All that the conditions depend on."""

    spec: FleetSpec | None
    """None when the stored spec cannot be understood."""
    snapshot: Snapshot = field(default_factory=Snapshot)
    now: float = 0.0
    """Unix seconds of the pass."""
    refusal: Verdict | None = None
    """Why this spec cannot work, from `validate` or from reading it."""
    replica_failure: str | None = None
    """Why the engine Deployment cannot create pods (quota, admission)."""
    transition: TransitionStatus | None = None
    hold: Verdict | None = None
    """Why nothing is being changed: reason and message of `decide`, or of a transition that has just ended."""


def assess(facts: Facts) -> dict[ConditionType, Verdict]:
    """Each condition's answer."""
    spec, refusal = facts.spec, facts.refusal
    answers = {
        ConditionType.METRICS_AVAILABLE: metrics_available(facts.snapshot, facts.now),
        ConditionType.ROUTER_SYNCHRONIZED: router_synchronized(spec, facts.snapshot),
        ConditionType.AVAILABLE: available(spec, facts.snapshot),
        ConditionType.TRANSITIONING: transitioning(facts.transition, facts.hold),
        ConditionType.DEGRADED: refusal
        if refusal
        else degraded(spec, facts.snapshot, facts.replica_failure)
        if spec
        else Verdict("Unknown", "NotObserved"),
    }
    return {ConditionType.READY: ready(spec, facts.snapshot, answers), **answers}


# ---------------------------------------------------------------- one function per condition


def metrics_available(snapshot: Snapshot, now: float) -> Verdict:
    """Whether there is something to decide on, by the very judgement of `decide`."""
    verdict = metrics_verdict(snapshot, now)
    if verdict.status == "True":  # without the age in seconds, which would make every status a new one
        return Verdict("True", verdict.reason, "the recording rules of this fleet are read and recent")
    return verdict


def router_synchronized(spec: FleetSpec | None, snapshot: Snapshot) -> Verdict:
    """Whether every router sends each engine what its role says."""
    if spec and spec.router.type is RouterType.EXTERNAL:
        return Verdict("True", "ExternalRouter", "the router is not Ridgeline's; it must follow the role labels")
    if not snapshot.routers:
        return Verdict("False", "NoRouter", "no router pod exists yet")
    for router in snapshot.routers:
        if router.workers is None:
            return Verdict(
                "False", "RouterUnreachable", _because(f"router {router.pod} does not answer", router.message)
            )
        if not router.synchronized:
            return Verdict("False", "TableDiffers", _because(f"router {router.pod} is not in step", router.message))
    count = len(snapshot.routers)
    return Verdict("True", "TablesMatchLabels", f"the worker tables of {_count(count, 'router')} equal the role labels")


def available(spec: FleetSpec | None, snapshot: Snapshot) -> Verdict:
    """Whether a request would be served now."""
    if not snapshot.serving:
        return Verdict("False", "NoEngineReady", _because("no engine is ready", _first_message(snapshot.engines)))
    if spec and spec.router.type is RouterType.EXTERNAL:
        return Verdict("True", "Serving", f"{_count(len(snapshot.serving), 'engine')} ready behind the external router")
    if not any(router.ready for router in snapshot.routers):
        message = next((router.message for router in snapshot.routers if router.message), "")
        return Verdict("False", "NoRouterReady", _because("no router pod is ready", message))
    if not any(
        _serves(router.workers.values()) for router in snapshot.routers if router.ready and router.workers is not None
    ):
        return Verdict(
            "False", "NoServingPair", "no ready router knows a mixed engine or a pair of a prefill and a decode engine"
        )
    return Verdict("True", "Serving", f"{_count(len(snapshot.serving), 'engine')} ready behind the router")


def transitioning(transition: TransitionStatus | None, hold: Verdict | None) -> Verdict:
    """Whether the topology is being changed; if not, why not."""
    if transition is None:
        if hold is None:
            return Verdict("False", "Settled", "no change of the topology is under way")
        return Verdict("False", hold.reason, hold.message)
    to = transition.to
    what = f"{transition.action} to {to.mixed} mixed, {to.prefill} prefill, {to.decode} decode"
    if hold is not None:
        what = f"{what}: {hold.message}"
    return Verdict("True", hold.reason if hold else str(transition.step), what)


def degraded(spec: FleetSpec, snapshot: Snapshot, replica_failure: str | None) -> Verdict:
    """Whether something is broken that will not mend itself."""
    for check in DEGRADATIONS:
        if verdict := check(spec, snapshot):
            return verdict
    if replica_failure:
        return Verdict(
            "True", "EnginesNotCreated",
            f"the cluster refuses to create engine pods: {replica_failure}; "
            "raise the quota or correct `spec.engine.podTemplate`",
        )  # fmt: skip
    return Verdict("False", "AsExpected", "nothing stands in the way")


def image_cannot_be_pulled(spec: FleetSpec, snapshot: Snapshot) -> Verdict | None:
    """A node cannot get an image."""
    for engine in snapshot.engines:
        if engine.waiting_reason not in IMAGE_REASONS or engine.terminating:
            continue
        said = engine.message or ""
        advice = f"check `spec.engine.image` ({spec.engine.image})"
        if '"' in said and spec.engine.image not in said:  # Kubernetes quotes the image it cannot get
            advice = (
                "it is not `spec.engine.image`: check the operator's `--operator-image` and `spec.engine.podTemplate`"
            )
        message = _because(f"engine {engine.pod} waits for an image ({engine.waiting_reason})", said)
        registry_hint = "name a pull secret in `spec.engine.podTemplate` if its registry needs one"
        return Verdict("True", "ImageCannotBePulled", f"{message}; {advice}, and {registry_hint}")
    return None


def engine_failing(spec: FleetSpec, snapshot: Snapshot) -> Verdict | None:
    """An engine ends again and again instead of becoming ready."""
    for engine in snapshot.engines:
        if engine.ready or engine.terminating:
            continue
        if engine.waiting_reason in START_REASONS or engine.restarts > 0:
            how = f" ({engine.waiting_reason})" if engine.waiting_reason else ""
            begun = f"engine {engine.pod} does not start{how}"
            if engine.restarts:
                begun = f"engine {engine.pod} ended and was restarted {_times(engine.restarts)}{how}"
            return Verdict(
                "True", "EngineFailing", f"{_because(begun, engine.message)}; {cure(engine.message, engine.pod)}"
            )
    return None


def insufficient_gpus(spec: FleetSpec, snapshot: Snapshot) -> Verdict | None:
    """The scheduler finds no node."""
    waiting = [e for e in snapshot.engines if e.unschedulable and not e.terminating]
    if not waiting:
        return None
    said = next((e.message for e in waiting if e.message), "") or ""
    if f"nsufficient {GPU_RESOURCE}" not in said:
        return Verdict(
            "True", "Unschedulable",
            f"{_because(f'{len(waiting)} of {spec.replicas} engines find no node', said)}; "
            "check that nodes carry the accelerator's label and that `spec.engine.podTemplate` tolerates their taints",
        )  # fmt: skip
    missing = len(waiting) * spec.hardware.perEngine
    fit = max(0, spec.replicas - len(waiting))
    return Verdict(
        "True", "InsufficientGPUs",
        f"{len(waiting)} of {spec.replicas} engines find no node with free GPUs: "
        f"{missing} {spec.hardware.accelerator} missing; "
        f"lower `spec.replicas` to {fit}, or add nodes for {_count(len(waiting), 'engine')} "
        f"of {_count(spec.hardware.perEngine, 'GPU')} (scheduler: {said.rstrip('.')})",
    )  # fmt: skip


DEGRADATIONS: tuple[Callable[[FleetSpec, Snapshot], Verdict | None], ...] = (
    image_cannot_be_pulled,
    engine_failing,
    insufficient_gpus,
)
"""Most specific first: the first that answers is told."""


def ready(spec: FleetSpec | None, snapshot: Snapshot, answers: Mapping[ConditionType, Verdict]) -> Verdict:
    """Sum of the others: serving, whole, in step, nothing broken."""
    for kind, wanted in PRIORITY:
        answer = answers[kind]
        if answer.status != wanted:
            return Verdict("False", answer.reason, answer.message)
    assert spec is not None, "a fleet without a spec is degraded"
    ready_count = len(snapshot.serving)
    if ready_count < spec.replicas:
        return Verdict("False", "EnginesStarting", f"{ready_count} of {spec.replicas} engines are ready")
    return Verdict("True", "AllReady", f"{_count(ready_count, 'engine')} ready and routed")


PRIORITY: tuple[tuple[ConditionType, str], ...] = (
    (ConditionType.DEGRADED, "False"),
    (ConditionType.AVAILABLE, "True"),
    (ConditionType.ROUTER_SYNCHRONIZED, "True"),
)
"""What `Ready` looks at, and the answer it wants. Metrics are not among them: a fleet serves without Prometheus."""


def cure(message: str | None, pod: str) -> str:
    """What to do about an engine whose last lines are `message`."""
    text = (message or "").lower()
    for pattern, advice in CURES:
        if re.search(pattern, text):
            return advice
    return f"read its log: kubectl logs {pod} -c engine --previous"


# ---------------------------------------------------------------- into the status


def conditions(
    answers: Mapping[ConditionType, Verdict], previous: Iterable[Condition], generation: int, now: float
) -> list[Condition]:
    """The list as the status holds it; a condition's time moves only when its status does."""
    before = {condition.type: condition for condition in previous}
    return [_condition(kind, answers[kind], before.get(kind), generation, now) for kind in ConditionType]


def _condition(kind: ConditionType, answer: Verdict, old: Condition | None, generation: int, now: float) -> Condition:
    status = answer.status if answer.status in ("True", "False") else "Unknown"
    since = old.lastTransitionTime if old and old.status == status else to_rfc3339(now)
    return Condition.model_validate(
        {
            "type": str(kind),
            "status": status,
            "reason": answer.reason,
            "message": shortened(answer.message),
            "lastTransitionTime": since,
            "observedGeneration": generation,
        }
    )


def shortened(message: str) -> str:
    """A message that fits everywhere; the end of a log matters more than its beginning, so the middle goes."""
    if len(message) <= MESSAGE_CHARACTERS:
        return message
    half = (MESSAGE_CHARACTERS - 3) // 2
    return f"{message[:half]} … {message[-half:]}"


def _serves(roles: Iterable[Role]) -> bool:
    known = set(roles)
    return Role.MIXED in known or {Role.PREFILL, Role.DECODE} <= known


def _first_message(engines: Iterable[EngineState]) -> str:
    return next((engine.message for engine in engines if engine.message), "")


def _because(statement: str, detail: str | None) -> str:
    detail = (detail or "").strip().rstrip(".;")
    return f"{statement}: {detail}" if detail else statement


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
