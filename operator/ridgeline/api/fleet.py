"""InferenceFleet, the one resource a user writes, as pydantic models.

Field names are those of the Kubernetes API (camelCase, units in the name). The CRD is generated
from these models (`ridgeline.api.crd`); bounds here become OpenAPI bounds there, and each class's
`RULES` become CEL rules, so the API server refuses what these models refuse. A field without a
docstring of its own is described by the docstring of its class; the CRD has no undescribed field.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Name = Annotated[str, StringConstraints(min_length=1, max_length=253)]
Text = Annotated[str, StringConstraints(max_length=4096)]
Milliseconds = Annotated[int, Field(ge=1, le=3_600_000)]
Percent = Annotated[int, Field(ge=0, le=100)]
Count = Annotated[int, Field(ge=0, le=1024)]
TokenBudget = Annotated[int, Field(ge=1, le=1_000_000)]
Time = Annotated[str, StringConstraints(min_length=1, max_length=64), Field(json_schema_extra={"format": "date-time"})]
"""A moment as RFC 3339 text; the API server checks the form."""
Quantity = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti)?$", max_length=32)]


class Role(StrEnum):
    """What an engine does: the value of the `ridgeline.dev/role` label."""

    MIXED = "mixed"
    PREFILL = "prefill"
    DECODE = "decode"


class Mode(StrEnum):
    """Topology of a fleet."""

    MIXED = "Mixed"
    SPLIT = "Split"


class Action(StrEnum):
    """What a decision does."""

    TUNE = "Tune"
    SPLIT = "Split"
    MERGE = "Merge"
    REBALANCE = "Rebalance"
    HOLD = "Hold"
    ROLL_BACK = "RollBack"


class Policy(StrEnum):
    """Who changes the topology."""

    RECOMMEND = "Recommend"
    AUTO = "Auto"
    STATIC = "Static"


class Strategy(StrEnum):
    """How the topology is changed."""

    IN_PLACE = "InPlace"


class RouterType(StrEnum):
    """Which router carries the traffic."""

    SMG = "SMG"
    EXTERNAL = "External"


class Step(StrEnum):
    """Where a transition stands. Order: Precheck, Switch, SetLimits, Verify, Soak; or RollBack."""

    PRECHECK = "Precheck"
    SWITCH = "Switch"
    SET_LIMITS = "SetLimits"
    VERIFY = "Verify"
    SOAK = "Soak"
    ROLL_BACK = "RollBack"


class Rule(BaseModel):
    """One CEL rule of the CRD and the sentence a user reads when it refuses."""

    model_config = ConfigDict(frozen=True)
    rule: str
    message: str
    field_path: str | None = None
    """Field that the refusal names, relative to the class, such as ".model"; unset, the class itself."""


class Model(BaseModel):
    """Base of every part of the API: unknown fields are an error, values never change in place."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
    RULES: ClassVar[tuple[Rule, ...]] = ()
    LIST_KEYS: ClassVar[tuple[str, ...]] = ()
    """Fields that tell two entries of a list of this class apart; server-side apply merges by them."""


# ---------------------------------------------------------------- spec


class SecretKeyRef(Model):
    """A key of a Secret in the fleet's namespace."""

    name: Name
    """Name of the Secret."""
    key: Name = "token"
    """Key within the Secret."""


class ModelCache(Model):
    """Where weights are kept between starts of an engine: at most one kind."""

    RULES = (
        Rule(
            rule="[has(self.persistentVolumeClaimName), has(self.hostPath), has(self.sizeLimit)]"
            ".filter(x, x).size() <= 1",
            message="must set at most one of `persistentVolumeClaimName`, `hostPath` and `sizeLimit`",
        ),
    )
    persistentVolumeClaimName: Name | None = None
    """A claim that every node of the fleet can mount (ReadWriteMany, or one node)."""
    hostPath: Annotated[str, StringConstraints(pattern=r"^/.*", max_length=1024)] | None = None
    """A folder on each node."""
    sizeLimit: Quantity | None = None
    """Limit of an emptyDir: weights are fetched anew by each pod."""


class ModelSpec(Model):
    """The model that the fleet serves."""

    id: Annotated[str, StringConstraints(pattern=r"^[^-\s]\S*$", min_length=1, max_length=512)]
    """Repository on the model hub, or an absolute path inside the engine container."""
    servedName: Name
    """Name that clients send as `model`."""
    revision: Name | None = None
    """Branch, tag or commit of the repository."""
    cache: ModelCache | None = None
    """Where weights are kept; unset, each pod fetches them into an emptyDir."""
    tokenSecretRef: SecretKeyRef | None = None
    """Token for the model hub, for gated models."""


class Peaks(Model):
    """What the accelerator can do at best, per GPU, for one that Ridgeline does not know or knows differently."""

    computeTeraflops: Annotated[int, Field(ge=1, le=1_000_000)]
    """Dense peak of the matrix units at the type that the weights are computed in, in 10^12 FLOP/s."""
    memoryBandwidthGigabytesPerSecond: Annotated[int, Field(ge=1, le=1_000_000)]
    """Peak of the memory, in 10^9 bytes/s."""
    linkGigabytesPerSecond: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """One-way speed at which another engine can read this engine's KV cache."""


class Hardware(Model):
    """What one engine runs on."""

    accelerator: Name
    """Name of the accelerator, such as H100-SXM5-80GB; `ridgeline roofline --list` names all."""
    perEngine: Annotated[int, Field(ge=1, le=64)] = 1
    """GPUs of one engine: its tensor-parallel size."""
    peaks: Peaks | None = None


class EnvironmentVariable(Model):
    """One environment variable of the engine container."""

    LIST_KEYS = ("name",)
    name: Annotated[str, StringConstraints(pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$", min_length=1, max_length=253)]
    """Name of the variable."""
    value: Text = ""
    """Value of the variable."""


class Engine(Model):
    """How the engine is started."""

    RULES = (
        Rule(
            rule="!has(self.args) || self.args.all(a, !a.matches('^(--model|--served-model-name|--revision|--port"
            "|--tensor-parallel-size|-tp)(=.*)?$'))",
            message="must not set `--model`, `--served-model-name`, `--revision`, `--port` or `--tensor-parallel-size`:"
            " Ridgeline sets them from `model` and `hardware`",
            field_path=".args",
        ),
    )
    image: Name
    """A vLLM image with NIXL; the exporter is added to it at start."""
    args: Annotated[list[Text], Field(max_length=128)] = []
    """Further arguments of vLLM's API server."""
    env: Annotated[list[EnvironmentVariable], Field(max_length=128)] = []
    """Further environment variables of the engine container."""
    startupTimeoutSeconds: Annotated[int, Field(ge=30, le=14_400)] = 1800
    """How long loading the model may take before the pod is restarted."""
    podTemplate: dict[str, Any] | None = None
    """Fields of a pod template, merged over what Ridgeline renders (strategic for containers, by name)."""


class Topology(Model):
    """Who decides how engines are divided, and within which bounds."""

    # `has(self.policy)`: the API server tries the rules on the default `{}` before it fills in the defaults below it.
    RULES = (
        Rule(
            rule="!has(self.policy) || self.policy != 'Static' || has(self.prefillReplicas)",
            message='must set `prefillReplicas` when `policy` is "Static" (0 means mixed)',
        ),
        Rule(
            rule="has(self.policy) && self.policy == 'Static' || !has(self.prefillReplicas)",
            message='must not set `prefillReplicas` unless `policy` is "Static"',
        ),
    )
    policy: Policy = Policy.RECOMMEND
    """Recommend only tells what it would do, Auto does it, Static keeps `prefillReplicas`."""
    prefillReplicas: Count | None = None
    """Static only: engines that prefill; the rest decode; 0 keeps all mixed."""
    minPrefillReplicas: Annotated[int, Field(ge=1, le=1024)] = 1
    """Fewest prefill engines of a split."""
    minDecodeReplicas: Annotated[int, Field(ge=1, le=1024)] = 1
    """Fewest decode engines of a split."""


class Objectives(Model):
    """What a request is promised; it is missed by a late first token or by more than 5 % late gaps."""

    timeToFirstTokenMilliseconds: Milliseconds = 2000
    """Longest time from the arrival of a request to its first token, in milliseconds."""
    interTokenLatencyMilliseconds: Milliseconds = 50
    """Longest gap between two tokens of a request, in milliseconds."""
    percentile: Annotated[int, Field(ge=50, le=99)] = 95
    """Percentile of the latencies shown beside the objectives."""


class Rules(Model):
    """When the rules act."""

    missedRequestsPercent: Percent = 2
    """Share of requests that may miss the objectives before something is done."""
    decodeStallPercent: Percent = 10
    """Share of decode time lost to prefills before something is done."""
    tolerancePercent: Percent = 5
    """How much better, in points of requests met, another topology must be; half of it for a split that alone meets the limit of misses."""
    stabilizationWindowSeconds: Annotated[int, Field(ge=5, le=3600)] = 45
    """How long the same answer must stand before it is acted on."""
    cooldownSeconds: Annotated[int, Field(ge=0, le=3600)] = 30
    """Rest after a transition; doubled after each roll-back."""


class Transition(Model):
    """How a topology is changed."""

    strategy: Strategy = Strategy.IN_PLACE
    """InPlace gives live engines another role; no model is loaded again."""
    soakSeconds: Annotated[int, Field(ge=0, le=3600)] = 60
    """How long a new topology is watched before it is trusted: at least one window of the recording rules, or 0 to
    trust it at once."""
    maxConcurrentEngines: Annotated[int, Field(ge=1, le=64)] = 2
    """Engines that may change their role at once."""


class Router(Model):
    """The router in front of the engines."""

    type: RouterType = RouterType.SMG
    """SMG is deployed with the fleet; External leaves routing to whatever reads the role labels of the pods."""
    image: Name = "docker.io/lightseekorg/smg:1.13.0"
    """Image of the router."""
    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    """Router pods."""
    args: Annotated[list[Text], Field(max_length=64)] = []
    """Further arguments of the router."""


class FleetSpec(Model):
    """What the user wants."""

    RULES = (
        Rule(
            rule="self.model == oldSelf.model",
            message="`model` must not change; create another fleet for another model",
            field_path=".model",
        ),
        Rule(
            rule="self.topology.policy == 'Static' || self.replicas < 2"
            " || self.topology.minPrefillReplicas + self.topology.minDecodeReplicas <= self.replicas",
            message="`minPrefillReplicas` plus `minDecodeReplicas` must not exceed `replicas`",
            field_path=".topology",
        ),
        Rule(
            rule="!has(self.topology.prefillReplicas) || self.topology.prefillReplicas == 0"
            " || self.topology.prefillReplicas < self.replicas",
            message="`prefillReplicas` must be less than `replicas`: a split needs a decode engine",
            field_path=".topology.prefillReplicas",
        ),
    )
    model: ModelSpec
    hardware: Hardware
    engine: Engine
    replicas: Annotated[int, Field(ge=0, le=1024)] = 1
    """Engines of the fleet, whatever their role."""
    topology: Topology = Topology()
    objectives: Objectives = Objectives()
    rules: Rules = Rules()
    transition: Transition = Transition()
    router: Router = Router()


# ---------------------------------------------------------------- status


class TopologyStatus(Model):
    """How engines are divided: what the pod labels say."""

    mode: Mode
    mixed: Count
    """Engines that do both phases."""
    prefill: Count
    """Engines that only prefill."""
    decode: Count
    """Engines that only decode."""
    tokenBudget: TokenBudget | None = None
    """Tokens that a mixed engine may schedule in one step, where the engines tell."""


class Recommendation(Model):
    """The best topology by the what-if model, whether or not anyone acts on it."""

    mode: Mode
    prefill: Count
    """Engines that would only prefill."""
    decode: Count
    """Engines that would only decode."""
    tokenBudget: TokenBudget | None = None
    """Tokens that a mixed engine should schedule in one step."""
    enginesNeeded: Count | None = None
    """Fewest engines with which some topology should meet the objectives, with room for 15 % more requests: an estimate
    by the what-if model, from two engines to eight times those that there are. Unset where none of these would do.
    Ridgeline adds and removes no engines."""
    reason: Name
    """Why, in one CamelCase word."""
    message: Text
    """Why, with the evidence."""
    time: Time
    """When this was first recommended."""


class LastDecision(Model):
    """The last thing that was decided, and why."""

    action: Action
    reason: Name
    """Why, in one CamelCase word."""
    message: Text
    """Why, with the evidence."""
    time: Time
    """When it was decided."""


class TransitionStatus(Model):
    """A change under way: enough to resume or undo it after a crash at any point."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
    origin: TopologyStatus = Field(alias="from")
    """Where it came from, and where a roll-back returns to."""
    to: TopologyStatus
    """Where it goes."""
    step: Step
    action: Action
    reason: Name
    """Why, in one CamelCase word."""
    message: Text
    """Why, with the evidence."""
    startTime: Time
    """When the transition began."""
    stepTime: Time
    """When the current step began."""
    kvBytesAtSwitch: Annotated[int, Field(ge=0)] | None = None
    """Bytes of KV cache that the fleet's engines had received from each other when the roles were switched."""
    kvFailuresAtSwitch: Annotated[int, Field(ge=0)] | None = None
    """KV transfers that had failed when the roles were switched."""
    prefillsAtSwitch: Annotated[int, Field(ge=0)] | None = None
    """Requests whose prefill the prefill engines had finished when their traffic began to be judged."""
    requestsAtSwitch: Annotated[int, Field(ge=0)] | None = None
    """Requests that the engines held when the roles were switched: the queue that the new topology inherits."""
    missedPermilleAtStart: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Share of requests that missed their objectives when the transition began."""
    missedPermilleIfUnchanged: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Share that was forecast to miss them in the topology before, with room for the load to grow."""
    missedPermilleExpected: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Share that was forecast to miss them in the new topology, likewise."""


class Condition(Model):
    """A condition as `metav1.Condition` has it."""

    LIST_KEYS = ("type",)
    type: Name
    """What the condition is about."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, StringConstraints(pattern=r"^[A-Za-z]([A-Za-z0-9_]*[A-Za-z0-9])?$", max_length=253)]
    """Why, in one CamelCase word."""
    message: Text = ""
    """Why, for a person, with what to do."""
    lastTransitionTime: Time
    """When `status` last changed."""
    observedGeneration: Annotated[int, Field(ge=0)] = 0
    """Generation of the spec that this was said of."""


class FleetStatus(Model):
    """What was seen. Nothing here steers the operator but `transition`."""

    observedGeneration: Annotated[int, Field(ge=0)] = 0
    """Generation of the spec that the operator last worked from."""
    replicas: Count = 0
    """Engine pods that exist."""
    readyReplicas: Count = 0
    """Engine pods that are Ready."""
    selector: Text = ""
    """Label selector of the engine pods, as autoscalers read it through `/scale`."""
    topology: TopologyStatus | None = None
    recommendation: Recommendation | None = None
    lastDecision: LastDecision | None = None
    transition: TransitionStatus | None = None
    rolledBackTransitions: Annotated[int, Field(ge=0, le=1024)] = 0
    """Roll-backs in a row: each doubles the cooldown; a transition that holds resets it."""
    cooldownUntilTime: Time | None = None
    """No transition before this time, but repairs that cannot wait and the way out of a split that the load has outgrown."""
    arrivalBurstPercent: Annotated[int, Field(ge=100, le=10_000)] | None = None
    """How bursty arrivals were when the fleet was last mixed, in percent of independent ones; only while it is split,
    which cannot show it."""
    conditions: Annotated[list[Condition], Field(max_length=16)] = []
    """Ready, Available, MetricsAvailable, RouterSynchronized, Transitioning and Degraded."""

    def to_object(self) -> dict[str, Any]:
        """This status as the API server stores it: for server-side apply, in which a field left out is given up.

        A merge patch would keep what is left out (a finished `transition`, say): do not use one.
        """
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class InferenceFleet(Model):
    """A fleet of vLLM engines behind one router."""

    RULES = (
        Rule(
            # The longest name made of it is a Service's (names.engines_name), which may have 63 characters.
            rule="self.metadata.name.size() <= 50 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            message='the name must have at most 50 characters (lower-case letters, digits and "-") and start with a'
            " letter: the fleet's Services and labels are named after it",
        ),
    )
    model_config = ConfigDict(extra="ignore", frozen=True)
    namespace: str
    name: str
    uid: str
    generation: int
    spec: FleetSpec
    status: FleetStatus = FleetStatus()
    deleting: bool = False

    @classmethod
    def from_object(cls, raw: dict[str, Any]) -> InferenceFleet:
        """Read a fleet as the API server stores it.

        Raises:
            pydantic.ValidationError: the stored spec is one that this version does not understand.
        """
        metadata = raw["metadata"]
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            generation=metadata.get("generation", 0),
            spec=FleetSpec.model_validate(raw["spec"]),
            status=FleetStatus.model_validate(raw.get("status") or {}),
            deleting="deletionTimestamp" in metadata,
        )
