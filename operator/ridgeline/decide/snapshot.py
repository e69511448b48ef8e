"""What was seen of one fleet at one moment: the only input of `decide` beside the spec.

Every number is optional. `None` means that it was not measured (no sample, a stale one, NaN),
and is never to be read as zero: an idle fleet says `0.0`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

from ridgeline.api.fleet import Mode, Role, TopologyStatus

Distribution = tuple[tuple[float, float], ...]
"""Lengths in tokens with their weights, (tokens, weight) sorted by tokens; weights sum to 1."""


@dataclass(frozen=True, slots=True)
class EngineState:
    """One engine pod."""

    pod: str
    address: str | None
    """Pod IP; None before the pod has one."""
    role: Role
    ready: bool
    terminating: bool = False
    waiting_reason: str | None = None
    """Reason of a container that waits, such as ImagePullBackOff or CrashLoopBackOff."""
    message: str | None = None
    """What Kubernetes or the engine's last lines say about a pod that is not ready."""
    unschedulable: bool = False
    restarts: int = 0
    unready_since: float | None = None
    """Unix seconds since which it is not ready; None while it is, or when nobody knows."""
    running_requests: int | None = None
    """Requests that the engine holds now: the least busy engines change their role first."""
    waiting_requests: int | None = None
    """Those among them of which nothing has been computed here."""
    decoding_requests: int | None = None
    """Those among them that have their first token and get more here."""
    limit_tokens: int | None = None
    """Token budget in force (`max_num_scheduled_tokens`)."""
    maximum_tokens: int | None = None
    """Token budget at start: no limit can be above it."""
    kv_bytes_received: float | None = None
    """KV bytes this engine pulled from others since it started (`vllm:nixl_bytes_transferred`)."""
    kv_failures: float | None = None
    external_prompt_tokens: float | None = None
    """Prompt tokens that came by transfer (`vllm:prompt_tokens_by_source{source="external_kv_transfer"}`)."""
    prompt_requests: float | None = None
    """Requests whose prefill this engine finished since it started."""

    @property
    def decodes(self) -> int | None:
        """Requests that decode here; all that it holds, where it does not tell."""
        return self.running_requests if self.decoding_requests is None else self.decoding_requests


@dataclass(frozen=True, slots=True)
class PhaseSignals:
    """One phase over the rules' window."""

    tokens_per_second: float | None = None
    arithmetic_intensity_flops_per_byte: float | None = None
    memory_bandwidth_utilization_ratio: float | None = None
    compute_utilization_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Linear model of one engine's step: seconds = fixed + sum of the terms; measured, or from the roofline."""

    fixed_seconds: float
    seconds_per_decode_sequence: float
    seconds_per_kv_token: float
    seconds_per_prefill_token: float
    source: str
    """"measured" or "roofline"."""
    seconds_per_prefill_pair: float = 0.0
    """For each key that a prefill token attends to; 0 while the engines cannot tell it from the tokens."""
    hidden_seconds: float = 0.0
    """Part of `fixed_seconds` behind which prefill tokens hide: weights stream while a chunk is computed. Below 0 where
    engines find that a step with prefill takes longer for more than its tokens."""
    tried_prefill_tokens: float = inf
    """Largest chunk that the engines may have measured: what larger ones take, small ones do not tell."""
    untried: StepTimes | None = None
    """A model whose chunks are the least that larger ones take."""

    @classmethod
    def measured(cls, terms: Mapping[str, float]) -> StepTimes | None:
        """What engines have measured, by the names that their exporters give the terms.

        Returns:
            None as long as a term is not known, other than those of pairs and of a step with prefill: the engines have
            not seen every kind of step yet.
        """
        try:
            return cls(
                fixed_seconds=terms["fixed"],
                seconds_per_decode_sequence=terms["decode_sequence"],
                seconds_per_kv_token=terms["kv_token"],
                seconds_per_prefill_token=terms["prefill_token"],
                source="measured",
                seconds_per_prefill_pair=terms.get("prefill_pair", 0.0),
                hidden_seconds=-terms.get("prefill_step", 0.0),
            )
        except KeyError:
            return None

    def scaled(self, decode: float, prefill: float) -> StepTimes:
        """What a chunk adds to a step is `prefill` times as long, what it is added to `decode` times."""
        return replace(
            self,
            fixed_seconds=decode * self.fixed_seconds,
            seconds_per_decode_sequence=decode * self.seconds_per_decode_sequence,
            seconds_per_kv_token=decode * self.seconds_per_kv_token,
            seconds_per_prefill_token=prefill * self.seconds_per_prefill_token,
            seconds_per_prefill_pair=prefill * self.seconds_per_prefill_pair,
            hidden_seconds=prefill * self.hidden_seconds,
            untried=self.untried.scaled(decode, prefill) if self.untried is not None else None,
        )

    def growth_seconds(self, context_tokens: float) -> float:
        """What one more decoding sequence with so many tokens in its context adds to a step."""
        return self.seconds_per_decode_sequence + self.seconds_per_kv_token * context_tokens

    def prefill_seconds(self, tokens: float, depth: float = 0.0) -> float:
        """What a chunk of prefill tokens adds to a step, so many tokens into its prompt; nothing where there is none."""
        if tokens <= 0.0:
            return 0.0
        seconds, least = tokens * self.seconds_per_prefill_token - self.hidden_seconds, 0.0
        if tokens > self.tried_prefill_tokens and self.untried is not None:
            least = self.untried.prefill_seconds(tokens)
        longer = seconds if seconds > least else least  # asked for most of all: `max` takes as long as the rest
        return longer + self.seconds_per_prefill_pair * tokens * (depth + tokens / 2.0)


@dataclass(frozen=True, slots=True)
class StepsTaken:
    """Steps of one kind and what they held, per second over the rules' window, all engines together."""

    seconds: float
    """Time in such steps; above 1 when several engines take them."""
    steps: float
    decode_sequences: float
    kv_tokens: float
    """Read by the decodes."""
    prefill_tokens: float
    prefill_pairs: float
    """Pairs of a prefill token and a key that it attends to."""


@dataclass(frozen=True, slots=True)
class Signals:
    """The recording rules of one fleet, read in one pass."""

    sampled_at: float | None = None
    """Time of the oldest engine sample behind these numbers, Unix seconds."""
    engines_reporting: int | None = None
    requests_per_second: float | None = None
    """Requests that arrive, whether or not they have ended."""
    missed_ratio: float | None = None
    first_token_late_ratio: float | None = None
    gaps_late_ratio: float | None = None
    decode_stall_ratio: float | None = None
    time_to_first_token_p95_seconds: float | None = None
    inter_token_p95_seconds: float | None = None
    inter_token_p99_seconds: float | None = None
    prompt_tokens: Distribution | None = None
    output_tokens: Distribution | None = None
    prefill: PhaseSignals = PhaseSignals()
    decode: PhaseSignals = PhaseSignals()
    ridge_flops_per_byte: float | None = None
    measured_steps: StepTimes | None = None
    decode_steps: StepsTaken | None = None
    """Steps that only decoded."""
    prefill_steps: StepsTaken | None = None
    """Steps that held a prompt chunk, with decodes or without."""
    peak_flops: float | None = None
    peak_memory_bytes_per_second: float | None = None
    weight_bytes: float | None = None
    kv_bytes_per_token: float | None = None
    kv_capacity_tokens: float | None = None
    """KV tokens that one engine can hold."""
    flops_per_token: float | None = None
    """Linear FLOPs of one token, attention scores left out."""
    kv_transfer_bytes_per_second: float | None = None
    kv_transfer_failures_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class MetricsProblem:
    """Why there are no signals: reason and message of `MetricsAvailable`."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class RouterState:
    """One router pod, as its registrar tells."""

    pod: str
    ready: bool
    workers: Mapping[str, Role] | None
    """Engine pod → role in this router's worker table (healthy workers only); None: the registrar does not answer."""
    synchronized: bool = False
    message: str = ""


@dataclass(frozen=True)
class Snapshot:
    """One fleet at one moment."""

    engines: tuple[EngineState, ...] = ()
    routers: tuple[RouterState, ...] = ()
    signals: Signals | MetricsProblem = field(
        default_factory=lambda: MetricsProblem("NoSample", "no metrics have been read yet")
    )
    link_bytes_per_second: float | None = None
    """One-way speed between engines, from the accelerator or `spec.hardware.peaks`."""
    rules_window_seconds: float = 45.0
    """Window of the recording rules: for so long after a change the signals still show what was before it."""
    away: tuple[EngineState, ...] = ()
    """Engines that have been gone for so long that nothing is planned with them (`absent.py`); their counters go on."""

    @cached_property
    def live(self) -> tuple[EngineState, ...]:
        """Engines that are not on their way out, ready or not."""
        return tuple(e for e in self.engines if not e.terminating)

    @cached_property
    def serving(self) -> tuple[EngineState, ...]:
        """Engines that take requests."""
        return tuple(e for e in self.engines if e.ready and not e.terminating)

    @cached_property
    def topology(self) -> TopologyStatus:
        """How the live engines are divided, by their labels."""
        live = self.live
        count = {role: sum(e.role is role for e in live) for role in Role}
        budgets = [e.limit_tokens for e in live if e.role is Role.MIXED and e.limit_tokens]
        split = count[Role.PREFILL] + count[Role.DECODE] > 0
        return TopologyStatus(
            mode=Mode.SPLIT if split else Mode.MIXED,
            mixed=count[Role.MIXED],
            prefill=count[Role.PREFILL],
            decode=count[Role.DECODE],
            tokenBudget=min(budgets) if budgets else None,
        )
