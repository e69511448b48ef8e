"""Fleets for the tests of this folder: values only, and a world in which labels, routers and limits follow at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ridgeline.api.fleet import (
    Action,
    Engine,
    FleetSpec,
    FleetStatus,
    Hardware,
    LastDecision,
    ModelSpec,
    Role,
    TransitionStatus,
)
from ridgeline.api.times import to_rfc3339
from ridgeline.decide import reasons
from ridgeline.decide.decision import decide
from ridgeline.decide.plan import Decision, History, Plan
from ridgeline.decide.roles import serves
from ridgeline.decide.snapshot import EngineState, MetricsProblem, RouterState, Signals, Snapshot, StepTimes
from ridgeline.decide.step_plan import StepPlan
from ridgeline.decide.transition import begin, next_step

NOW = 1_800_000_000.0
RULES_WINDOW_SECONDS = 5.0
"""Of the fleets of these tests, so that a transition is over in few rounds."""
MIXED, PREFILL, DECODE = Role.MIXED, Role.PREFILL, Role.DECODE
LETTERS = {"m": MIXED, "p": PREFILL, "d": DECODE}

ONE_THREAD = StepTimes(0.015, 0.001, 2e-7, 0.00065, "measured")
"""A small model on one CPU thread: decode steps of 16 ms, prefill of 0.65 ms a token."""
LLAMA_8B = Signals(
    weight_bytes=16e9,
    flops_per_token=16e9,
    kv_bytes_per_token=131_072,
    kv_capacity_tokens=441e3,
    peak_flops=989e12,
    peak_memory_bytes_per_second=3.35e12,
    ridge_flops_per_byte=295,
)
LLAMA_70B = replace(
    LLAMA_8B,
    weight_bytes=141e9,
    flops_per_token=141e9,
    kv_bytes_per_token=327_680,
    kv_capacity_tokens=470e3,
    peak_flops=4 * 989e12,
    peak_memory_bytes_per_second=4 * 3.35e12,
)
CHAT_PROMPTS = ((200.0, 0.2), (600.0, 0.25), (1050.0, 0.35), (2700.0, 0.15), (4100.0, 0.05))
CHAT_OUTPUTS = ((60.0, 0.3), (130.0, 0.3), (400.0, 0.35), (550.0, 0.05))
SHORT_PROMPTS = ((32.0, 0.5), (64.0, 0.5))
LONG_OUTPUTS = ((100.0, 0.4), (150.0, 0.4), (200.0, 0.2))


def spec(replicas: int = 2, policy: str = "Auto", **parts: Any) -> FleetSpec:
    """A spec; `parts` holds fields of topology, objectives, rules or transition by their own names."""
    sections: dict[str, dict[str, Any]] = {
        "topology": {"policy": policy},
        "objectives": {},
        "rules": {},
        "transition": {},
    }
    fields: dict[str, str] = {
        "prefillReplicas": "topology",
        "minPrefillReplicas": "topology",
        "minDecodeReplicas": "topology",
        "timeToFirstTokenMilliseconds": "objectives",
        "interTokenLatencyMilliseconds": "objectives",
        "soakSeconds": "transition",
        "maxConcurrentEngines": "transition",
    }
    for name, value in parts.items():
        sections[fields.get(name, "rules")][name] = value
    return FleetSpec.model_validate(
        {
            "model": ModelSpec(id="m", servedName="m"),
            "hardware": Hardware(accelerator="H100-SXM5-80GB"),
            "engine": Engine(image="vllm"),
            "replicas": replicas,
            **sections,
        }
    )


def engines(letters: str, *, limit: int | None = 2048, maximum: int | None = 2048) -> tuple[EngineState, ...]:
    """Ready engines, a letter each: `mpd`; a capital is one that is not ready."""
    return tuple(
        EngineState(
            pod=f"e{i}",
            address=f"10.0.0.{i}",
            role=LETTERS[letter.lower()],
            ready=letter.islower(),
            running_requests=0,
            limit_tokens=limit,
            maximum_tokens=maximum,
            prompt_requests=0.0,
            kv_bytes_received=0.0,
            kv_failures=0.0,
        )
        for i, letter in enumerate(letters)
    )


def router(of: Iterable[EngineState], pod: str = "r0") -> RouterState:
    """A router that shows exactly the labels of the ready engines."""
    return RouterState(pod=pod, ready=True, workers={e.pod: e.role for e in of if e.ready}, synchronized=True)


def snapshot(
    letters: str | Sequence[EngineState], signals: Signals | MetricsProblem | None = None, **parts: Any
) -> Snapshot:
    """A fleet whose router follows."""
    fleet = engines(letters) if isinstance(letters, str) else tuple(letters)
    given = signals if signals is not None else MetricsProblem("NoSamples", "no samples")
    return Snapshot(engines=fleet, routers=(router(fleet),), signals=given, **parts)


def idle(base: Signals = LLAMA_70B, **changes: Any) -> Signals:
    """A fleet that nobody uses: rates and ratios are zero, lengths do not exist."""
    zero = replace(base, sampled_at=NOW, requests_per_second=0.0, missed_ratio=0.0, decode_stall_ratio=0.0)
    return replace(zero, **changes)


def chat(rate: float, base: Signals = LLAMA_70B, **changes: Any) -> Signals:
    """Chat at so many requests a second."""
    busy = replace(
        base,
        sampled_at=NOW,
        requests_per_second=rate,
        missed_ratio=0.0,
        decode_stall_ratio=0.0,
        prompt_tokens=CHAT_PROMPTS,
        output_tokens=CHAT_OUTPUTS,
    )
    return replace(busy, **changes)


def long_answers(rate: float, **changes: Any) -> Signals:
    """Half the prompts of chat and four times its answers."""
    seen = chat(rate, **changes)
    assert seen.output_tokens is not None
    assert seen.prompt_tokens is not None
    return replace(
        seen,
        output_tokens=tuple((4.0 * tokens, share) for tokens, share in seen.output_tokens),
        prompt_tokens=tuple((0.5 * tokens, share) for tokens, share in seen.prompt_tokens),
    )


def small_fleet(steady: float, bursts: float, **changes: Any) -> Signals:
    """Steady decodes with bursts of long prompts, in requests a second each, on engines of one CPU thread."""
    total = steady + bursts
    prompts = [(tokens, share * steady / total) for tokens, share in SHORT_PROMPTS]
    outputs = [(tokens, share * steady / total) for tokens, share in LONG_OUTPUTS]
    if bursts:
        prompts += [(tokens, bursts / total / 3) for tokens in (600.0, 900.0, 1200.0)]
        outputs = [(tokens, bursts / total / 2) for tokens in (8.0, 16.0)] + outputs
    busy = Signals(
        sampled_at=NOW,
        requests_per_second=total,
        missed_ratio=0.0,
        decode_stall_ratio=0.0,
        prompt_tokens=tuple(prompts),
        output_tokens=tuple(outputs),
        measured_steps=ONE_THREAD,
        weight_bytes=40e6,
        kv_bytes_per_token=1024.0,
        kv_capacity_tokens=262_144.0,
    )
    return replace(busy, **changes)


@dataclass
class World:
    """A fleet in which every order is carried out; what moves and what does not is set by the test."""

    engines: dict[str, EngineState]
    spec: FleetSpec
    transition: TransitionStatus | None = None
    status: FleetStatus = field(default_factory=FleetStatus)
    now: float = NOW
    signals: Signals | MetricsProblem = field(default_factory=lambda: MetricsProblem("NoSamples", "none"))
    traffic: bool = True
    kv_moves: bool = True
    routers_follow: bool = True
    shown: dict[str, Role] = field(default_factory=dict)
    tables: list[str] = field(default_factory=list)
    """Every table on the way, as letters, single label by single label."""
    at_once: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, letters: str, spec: FleetSpec, **parts: Any) -> World:
        world = cls({e.pod: e for e in engines(letters)}, spec, **parts)
        world.shown = world.labels()
        return world

    def labels(self) -> dict[str, Role]:
        return {e.pod: e.role for e in self.engines.values() if e.ready}

    def snapshot(self) -> Snapshot:
        if self.routers_follow:
            self.shown = self.labels()
        workers = {pod: role for pod, role in self.shown.items() if pod in self.labels()}
        return Snapshot(
            engines=tuple(self.engines.values()),
            routers=(RouterState("r0", ready=True, workers=workers, synchronized=True),),
            signals=self.signals,
            rules_window_seconds=RULES_WINDOW_SECONDS,
        )

    def begin(self, plan: Plan) -> None:
        self.transition = begin(plan, self.snapshot(), self.now)

    def ask(self) -> StepPlan:
        assert self.transition is not None
        return next_step(self.transition, self.snapshot(), self.spec, self.status, self.now)

    def obey(self, step: StepPlan) -> None:
        if step.roles:
            self.at_once.append(len(step.roles))
        for pod, role in step.roles.items():
            self.engines[pod] = replace(self.engines[pod], role=role)
            self.tables.append(self.letters())
        for pod, tokens in step.limits.items():
            self.engines[pod] = replace(self.engines[pod], limit_tokens=tokens)
        self.transition = step.transition

    def serve(self) -> None:
        """One second of traffic."""
        roles = list(self.labels().values())
        pair = PREFILL in roles and DECODE in roles
        for pod, engine in self.engines.items():
            if not self.traffic or not pair:
                continue
            if engine.role is PREFILL:
                self.engines[pod] = replace(engine, prompt_requests=(engine.prompt_requests or 0.0) + 1)
            if engine.role is DECODE and self.kv_moves:
                self.engines[pod] = replace(engine, kv_bytes_received=(engine.kv_bytes_received or 0.0) + 1e6)

    def run(self, seconds: int = 600) -> StepPlan:
        """Carry out the transition until it is over."""
        for _ in range(seconds):
            step = self.ask()
            self.obey(step)
            if step.transition is None:
                return step
            self.serve()
            self.now += 1.0
        raise AssertionError(f"not over after {seconds} s: {step.verdict}")

    def letters(self) -> str:
        short = {MIXED: "m", PREFILL: "p", DECODE: "d"}
        return "".join(short[e.role] for e in self.engines.values())


def table_serves(letters: str) -> bool:
    return serves(LETTERS[letter] for letter in letters)


# ---------------------------------------------------------------- a large model, and passes of `decide`

STALLED: dict[str, Any] = {
    "missed_ratio": 0.3,
    "gaps_late_ratio": 0.3,
    "first_token_late_ratio": 0.0,
    "decode_stall_ratio": 0.4,
    "inter_token_p99_seconds": 0.8,
}


def big(letters: str, signals: Signals, budget: int | None = 512, link: float | None = 48e9) -> Snapshot:
    return snapshot(engines(letters, limit=budget, maximum=8192), signals, link_bytes_per_second=link)


def begun(seconds: float, reason: str = reasons.STARTING_BUDGET) -> FleetStatus:
    """A fleet that was given its last token budget so many seconds ago."""
    last = LastDecision(action=Action.TUNE, reason=reason, message="because", time=to_rfc3339(NOW - seconds))
    return FleetStatus(lastDecision=last)


LARGE = spec(8, interTokenLatencyMilliseconds=40, timeToFirstTokenMilliseconds=2000)


def once(
    seen: Snapshot,
    wanted: FleetSpec,
    *,
    history: History | None = None,
    status: FleetStatus | None = None,
    now: float = NOW,
) -> Decision:
    return decide(seen, wanted, status or FleetStatus(), history or History(), now)


def after(
    seen: Snapshot,
    wanted: FleetSpec,
    seconds: float,
    status: FleetStatus | None = None,
    *,
    history: History | None = None,
) -> Decision:
    """The decision after the same sight for so many seconds, a pass every five."""
    history, decision, passed, base = history or History(), None, 0.0, seen.signals
    while passed <= seconds:
        if isinstance(base, Signals) and base.sampled_at is not None:
            seen = replace(seen, signals=replace(base, sampled_at=base.sampled_at + passed))
        decision = once(seen, wanted, history=history, status=status, now=NOW + passed)
        if decision.plan.action is not Action.HOLD:
            return decision
        history, passed = decision.history, passed + 5.0
    assert decision is not None
    return decision
