"""Synthetic counterparts of vLLM's scheduler objects: only the fields that the exporter reads, and nothing runs.

The real ones are covered in tests/engines. Field names are vLLM 0.32's.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ridgeline_exporters.engine.control import Control, Limits
from ridgeline_exporters.engine.description import Description
from ridgeline_exporters.engine.exporter import Exporter
from ridgeline_exporters.engine.requests import Objectives
from ridgeline_exporters.roofline.bounds import Roof
from ridgeline_exporters.roofline.feed_forward import FeedForward
from ridgeline_exporters.roofline.layers import Decoder, Layer
from ridgeline_exporters.roofline.mixers import Attention
from ridgeline_exporters.roofline.model import ModelShape

LAYER = Layer(Attention(hidden=256, query_heads=4, kv_heads=2, head_size=64), FeedForward(256, 512), 0)
SHAPE = ModelShape(Decoder("SyntheticForCausalLM", (LAYER, LAYER), hidden=256, vocabulary=512))
ROOF = Roof(1e12, 1e11)
MAXIMUM = Limits(256, 0)


class SyntheticStatus(enum.Enum):
    WAITING = enum.auto()
    WAITING_FOR_REMOTE_KVS = enum.auto()
    RUNNING = enum.auto()


class SyntheticFinishReason(enum.Enum):
    STOP = enum.auto()
    LENGTH = enum.auto()
    ABORT = enum.auto()
    ERROR = enum.auto()


@dataclass
class SyntheticPrefillStats:
    num_local_cached_tokens: int = 0
    num_external_cached_tokens: int = 0


@dataclass(eq=False)
class SyntheticRequest:
    request_id: str
    num_prompt_tokens: int
    arrival_time: float | None = None
    kv_transfer_params: dict[str, Any] | None = None
    prefill_stats: SyntheticPrefillStats | None = None
    status: SyntheticStatus = SyntheticStatus.WAITING
    resumable: bool = False
    abort_immediately: bool = False


@dataclass
class SyntheticNewRequest:
    req_id: str
    prompt_len: int
    num_computed_tokens: int = 0


@dataclass
class SyntheticCachedRequests:
    req_ids: list[str] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)
    resumed_req_ids: set[str] = field(default_factory=set)


@dataclass
class SyntheticSchedulerOutput:
    scheduled_new_reqs: list[SyntheticNewRequest] = field(default_factory=list)
    scheduled_cached_reqs: SyntheticCachedRequests = field(default_factory=SyntheticCachedRequests)
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    scheduled_spec_decode_tokens: dict[str, list[int]] = field(default_factory=dict)
    finished_req_ids: set[str] = field(default_factory=set)
    total_num_scheduled_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.total_num_scheduled_tokens = sum(self.num_scheduled_tokens.values())


@dataclass
class SyntheticEngineOutput:
    request_id: str
    new_token_ids: list[int] = field(default_factory=list)
    finish_reason: SyntheticFinishReason | None = None
    kv_transfer_params: dict[str, Any] | None = None


@dataclass
class SyntheticEngineOutputs:
    outputs: list[SyntheticEngineOutput] = field(default_factory=list)


@dataclass
class SyntheticSchedulerConfig:
    long_prefill_token_threshold: int = 0


class SyntheticScheduler:
    """Gives out and takes back what the test puts into its queues, and counts the calls."""

    def __init__(self) -> None:
        self.max_num_scheduled_tokens = MAXIMUM.max_num_scheduled_tokens
        self.scheduler_config = SyntheticSchedulerConfig()
        self.requests: dict[str, SyntheticRequest] = {}
        self.running: list[SyntheticRequest] = []
        self.waiting: list[SyntheticRequest] = []
        self.kv_holding_waiting: list[SyntheticRequest] = []
        self.deferred_waiting: set[SyntheticRequest] = set()
        self.to_schedule: deque[SyntheticSchedulerOutput] = deque()
        self.calls: list[str] = []
        self.budgets: list[int] = []

    def schedule(self, throttle_prefills: bool = False) -> SyntheticSchedulerOutput:
        self.calls.append("schedule")
        self.budgets.append(self.max_num_scheduled_tokens)
        return self.to_schedule.popleft()

    def update_from_output(
        self, scheduler_output: SyntheticSchedulerOutput, model_runner_output: Any
    ) -> dict[int, SyntheticEngineOutputs]:
        self.calls.append("update")
        return {0: SyntheticEngineOutputs(model_runner_output or [])}

    def add_request(self, request: SyntheticRequest) -> None:
        self.calls.append("add")
        self.requests.setdefault(request.request_id, request)
        self._enqueue(request)

    def _enqueue(self, request: SyntheticRequest) -> None:
        pass

    def finish_requests(self, request_ids: Any, finished_status: Any) -> list[SyntheticRequest]:
        self.calls.append("finish")
        return [self.requests.pop(request_id) for request_id in request_ids if request_id in self.requests]

    def set_pause_state(self, state: str) -> None:
        self.calls.append(state)


class Clock:
    """A clock that the test moves."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def step(
    new: Mapping[str, tuple[int, int, int]] | None = None,
    cached: Mapping[str, tuple[int, int]] | None = None,
    resumed: set[str] | None = None,
    finished: set[str] | None = None,
    speculated: Mapping[str, int] | None = None,
) -> SyntheticSchedulerOutput:
    """A scheduler output.

    Args:
        new: request → (prompt length, first position, tokens).
        cached: request → (first position, tokens).
        resumed: which of the cached ones come back from preemption.
        finished: requests that ended since the last step.
        speculated: request → drafted tokens among its scheduled ones.
    """
    new, cached = new or {}, cached or {}
    return SyntheticSchedulerOutput(
        scheduled_new_reqs=[SyntheticNewRequest(name, prompt, start) for name, (prompt, start, _) in new.items()],
        scheduled_cached_reqs=SyntheticCachedRequests(
            list(cached), [start for start, _ in cached.values()], resumed or set()
        ),
        num_scheduled_tokens={name: n for name, (_, _, n) in new.items()}
        | {name: n for name, (_, n) in cached.items()},
        scheduled_spec_decode_tokens={name: [0] * count for name, count in (speculated or {}).items()},
        finished_req_ids=finished or set(),
    )


def token(request: str, **fields: Any) -> SyntheticEngineOutput:
    """An output with one token."""
    return SyntheticEngineOutput(request, [7], **fields)


class Bench:
    """An exporter on a synthetic scheduler, with clocks that the test moves."""

    def __init__(
        self, objectives: Objectives | None = None, shape: ModelShape | None = SHAPE, roof: Roof | None = ROOF
    ) -> None:
        self.scheduler = SyntheticScheduler()
        self.monotonic = Clock(1000.0)
        self.wall = Clock(1_800_000_000.0)
        description = Description("m", "synthetic", "0.32.0", "bfloat16", "bfloat16", shape, roof, 4096, MAXIMUM, 1)
        self.control = Control(MAXIMUM, 1, objectives or Objectives())
        self.exporter = Exporter(self.scheduler, description, self.control, self.monotonic, self.wall)

    @property
    def totals(self) -> Any:
        return self.exporter.totals

    def pass_time(self, seconds: float) -> None:
        self.monotonic.now += seconds
        self.wall.now += seconds

    def request(self, name: str, prompt: int, **fields: Any) -> SyntheticRequest:
        """Give a request to the scheduler; it arrives now unless told otherwise."""
        fields.setdefault("arrival_time", self.wall.now)
        request = SyntheticRequest(name, prompt, **fields)
        self.exporter.before_add(request)
        self.scheduler.add_request(request)
        return request

    def schedule(self, output: SyntheticSchedulerOutput) -> SyntheticSchedulerOutput:
        self.exporter.before_schedule()
        self.exporter.after_schedule(output, self.monotonic.now)
        return output

    def complete(self, output: SyntheticSchedulerOutput, *tokens: SyntheticEngineOutput) -> None:
        self.exporter.after_update(output, {0: SyntheticEngineOutputs(list(tokens))}, self.monotonic.now)

    def run(self, output: SyntheticSchedulerOutput, seconds: float, *tokens: SyntheticEngineOutput) -> None:
        """Schedule a step, let it take its time and complete it."""
        self.schedule(output)
        self.pass_time(seconds)
        self.complete(output, *tokens)
