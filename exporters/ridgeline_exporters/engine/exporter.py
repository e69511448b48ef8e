"""The exporter of one engine: what happens around each call of the scheduler, and what the HTTP threads may ask.

The hooks run on the engine's busy loop. Accounting and control are guarded apart: a fault in the accounting makes the
numbers untrustworthy (`exporter_up` 0) and ends it, but limits that the operator posts still reach the scheduler.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry

from ridgeline_exporters.engine.accounting import Accounting, Window
from ridgeline_exporters.engine.control import Control, objectives_as_dict
from ridgeline_exporters.engine.description import Description
from ridgeline_exporters.engine.metrics import OUTPUT_TOKENS, EngineCollector, Totals, longer_than
from ridgeline_exporters.engine.requests import RequestState, admit, arrives
from ridgeline_exporters.engine.server import Unavailable
from ridgeline_exporters.engine.steps import read_step
from ridgeline_exporters.engine.tokens import TokenClock
from ridgeline_exporters.engine.weights import LoadedWeights
from ridgeline_exporters.metric_family import Sample

logger = logging.getLogger("vllm.plugins.ridgeline")

_WAITING_FOR_KV = "WAITING_FOR_REMOTE_KVS"


class Exporter:
    """Accounts for one scheduler's steps.

    Args:
        scheduler: the scheduler to watch.
        description: what it serves.
        control: the limits and objectives in force.
        monotonic: clock for durations, seconds.
        wall: clock for arrival times, Unix seconds.
    """

    def __init__(
        self,
        scheduler: Any,
        description: Description,
        control: Control,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._scheduler = scheduler
        self._description = description
        self._control = control
        self._monotonic = monotonic
        self.totals = Totals()
        self._accounting = Accounting(self.totals, description.shape, description.roof)
        self._window = Window(self.totals, monotonic())
        self._states: dict[str, RequestState] = {}
        self._tokens = TokenClock(self.totals, self._states, control, wall)
        self._in_prompt: set[str] = set()
        """Requests whose prompt, or what they repeat of it, is not yet computed to its end."""
        self._in_flight: deque[float] = deque()
        """When each step that was scheduled and is not complete was started."""
        self._last_completion: float | None = None
        """Completion of the last step, while the engine has been busy since then; None after an idle time."""
        self._prefilling = 0
        self._transferring = 0
        self._outputs_longer = [0] * len(OUTPUT_TOKENS)
        """As it was scraped last."""
        self._weights = "computed"
        """Where the bytes of the weights are from."""
        self.up = True
        self.controllable = True
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(self))

    # On the busy loop.

    def before_add(self, request: Any) -> None:
        """Count a request that arrives: before the scheduler has it, as a connector may shorten its prompt there."""
        if self.up:
            self._guard(self._note_arrival, request)

    def before_schedule(self) -> None:
        """Put posted limits in force: the only moment at which that is safe."""
        if not self.controllable:
            return
        try:
            self._control.apply(self._scheduler)
        except Exception:
            self.controllable = False
            self._disable("could not set a limit")

    def after_schedule(self, output: Any, started: float) -> None:
        """Note a step that has been scheduled.

        Args:
            output: the `SchedulerOutput`.
            started: monotonic time at which scheduling began.
        """
        if self.up:
            self._guard(self._note_scheduled, output, started)

    def after_update(self, output: Any, results: Any, completed: float) -> None:
        """Account for a completed step.

        Args:
            output: the `SchedulerOutput` of the step.
            results: what the scheduler made of it, client index → `EngineCoreOutputs`.
            completed: monotonic time at which the model's output was there.
        """
        if self.up:
            self._guard(self._account, output, results, completed)

    def after_finish(self, requests: Iterable[Any]) -> None:
        """Judge requests that were ended from outside: aborted by the client, or failed."""
        if self.up:
            self._guard(self._tokens.judge_cut, requests)

    def after_pause(self) -> None:
        """Note that the engine was paused or resumed: the time between is no step's. Requests may be kept meanwhile."""
        self._last_completion = None

    def take_weights(self, loaded: LoadedWeights | None) -> None:
        """Count weights by what was loaded, where that is known: before the first step."""
        shape = self._description.shape
        if loaded is not None and shape is not None:
            # Of experts the roofline says how many a step reads; what was loaded says how large all of them are.
            self._accounting.weight_scale = loaded.streamed / shape.weight_bytes
            self._weights = "loaded"

    def _guard(self, work: Callable[..., None], *arguments: Any) -> None:
        begun = time.perf_counter()
        try:
            work(*arguments)
        except Exception:
            self._disable("failed")
        self.totals.exporter_seconds += time.perf_counter() - begun

    def _disable(self, what: str) -> None:
        """Stop for good. The engine goes on as if there were no exporter."""
        self.totals.errors += 1
        if self.up:
            self.up = False
            logger.exception("The Ridgeline exporter %s and is off; the engine is not affected.", what)

    def _note_arrival(self, request: Any) -> None:
        if arrives(request, request.request_id in self._scheduler.requests):
            self.totals.prompt_tokens.observe(request.num_prompt_tokens)

    def _note_scheduled(self, output: Any, started: float) -> None:
        for new in output.scheduled_new_reqs:
            if new.req_id not in self._states:
                request = self._scheduler.requests.get(new.req_id)
                state = self._states[new.req_id] = admit(request, new.prompt_len, new.num_computed_tokens)
                self.totals.external_prompt_tokens += state.external_tokens
        if output.total_num_scheduled_tokens:
            self._in_flight.append(started)
        elif not self._in_flight:
            self._last_completion = None  # waits for KV, is paused, or keeps KV for a reader: not busy

    def _account(self, output: Any, results: Any, completed: float) -> None:
        if output.total_num_scheduled_tokens:
            started = self._in_flight.popleft()
            since = started if self._last_completion is None else self._last_completion
            self._window.mark(completed)
            record = read_step(output, self._states, self._accounting.windows, self._in_prompt)
            self._accounting.add(record, max(0.0, completed - since))
            self._prefilling = record.prefill.sequences
            running = bool(self._in_flight) or bool(self._scheduler.running)
            self._last_completion = completed if running else None
        self._tokens.note(results, completed, not output.scheduled_spec_decode_tokens)
        blocked = self._scheduler.deferred_waiting
        self._transferring = sum(request.status.name == _WAITING_FOR_KV for request in blocked) if blocked else 0
        for request_id in output.finished_req_ids:
            self._tokens.forget(request_id)
            self._in_prompt.discard(request_id)

    # On HTTP threads. Only lengths are read from the scheduler: they cannot change half way.

    def outputs_longer(self) -> list[int]:
        """Outputs that have become longer than each of `OUTPUT_TOKENS`, ended or not.

        The requests are looked at without stopping the busy loop. One that the engine lets go of meanwhile may be found
        neither among those that are gone nor among the others: then what was told before holds until the next scrape,
        as a counter that falls would be taken for a restart.
        """
        lengths = self.totals.gone_outputs[:]
        for tokens in self._tokens.output_lengths():
            lengths[bisect_left(OUTPUT_TOKENS, tokens)] += 1
        self._outputs_longer = [max(each) for each in zip(self._outputs_longer, longer_than(lengths), strict=True)]
        return self._outputs_longer

    def _counts(self) -> dict[str, int]:
        scheduler = self._scheduler
        running = len(scheduler.running)
        holding = len(scheduler.kv_holding_waiting)
        waiting = len(scheduler.waiting) + holding
        transferring = min(self._transferring, holding)
        prefilling = min(self._prefilling, running)
        return {
            "running": running,
            "waiting": waiting - transferring,
            "transferring": transferring,
            "prefilling": prefilling,
            "decoding": running - prefilling,
            "pinned_remote_reads": max(0, len(scheduler.requests) - running - waiting),
        }

    def state(self) -> dict[str, Any]:
        """What `GET /v1/state` answers. `limits` are those that govern the next step."""
        counts = self._counts()
        return {
            **{
                name: counts[name] for name in ("running", "waiting", "transferring", "decoding", "pinned_remote_reads")
            },
            "limits": self._control.wanted.as_dict(),
            "in_force": self._control.in_force.as_dict(),
            "maximum": {"max_num_scheduled_tokens": self._control.maximum.max_num_scheduled_tokens},
            "objectives": objectives_as_dict(self._control.objectives),
            "prefills_finished": self.totals.prefills_finished,
            "external_prompt_tokens": self.totals.external_prompt_tokens,
            "exporter_up": self.up,
        }

    def put_limits(self, body: Any) -> dict[str, Any]:
        """Accept limits; they govern the next step."""
        if not self.controllable:
            raise Unavailable("the exporter is off and no longer sets limits")
        return {"accepted": self._control.post_limits(body).as_dict()}

    def put_objectives(self, body: Any) -> dict[str, Any]:
        """Accept objectives; requests that end from now on are judged by them."""
        return {"accepted": objectives_as_dict(self._control.post_objectives(body))}

    def gauges(self) -> Mapping[str, Iterable[Sample]]:
        """Every gauge, with nothing for what is unknown; only that it is down when the engine cannot be read."""
        try:
            return self._gauges()
        except Exception:
            self._disable("could not read the engine")
            return {"exporter_up": [((), 0.0)]}

    def _gauges(self) -> Mapping[str, Iterable[Sample]]:
        def one(value: float | None) -> list[Sample]:
            return [] if value is None else [((), float(value))]

        description, counts = self._description, self._counts()
        shape, roof, accounting = description.shape, description.roof, self._accounting
        return {
            **self._window.gauges(self._monotonic(), roof),
            "requests": [
                ((name,), float(counts[name])) for name in ("waiting", "prefilling", "decoding", "transferring")
            ],
            "info": [((*description.labels(), self._weights), 1.0)],
            "peak_flops": one(roof.flops_per_second if roof else None),
            "peak_memory_bytes_per_second": one(roof.memory_bytes_per_second if roof else None),
            "ridge_flops_per_byte": one(roof.ridge if roof else None),
            "weight_bytes": one(accounting.weight_scale * shape.weight_bytes if shape else None),
            "kv_bytes_per_token": one(shape.kv_bytes_per_token if shape else None),
            "kv_capacity_tokens": one(description.kv_capacity_tokens),
            "flops_per_token": one(shape.linear_flops_per_token if shape else None),
            "limit_tokens": one(self._control.wanted.max_num_scheduled_tokens),
            "maximum_tokens": one(self._control.maximum.max_num_scheduled_tokens),
            "decode_baseline_samples": one(accounting.baseline_samples),
            "decode_baseline_seconds": one(accounting.baseline_seconds),
            "step_model_seconds": [((term,), value) for term, value in accounting.model_terms().items()],
            "exporter_up": one(float(self.up)),
        }
