"""From a scheduler output to what its step computes in each phase. Pure: no clock, no vLLM.

The phase rule. Position p of a request is *prefill* when p lies in the prompt, or when it was computed before and had
to be computed again because the request was preempted. Any other position is *decode*: it comes from an output token.
One chunk can hold both (a preempted request catches up and goes on in the same step). A prompt that came by transfer
is not prefill here; see `requests.admit`.

Only sums over the requests are kept (`roofline.windows.PhaseSums`, which says what attends to what), so a step costs a
few integer operations a request.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from ridgeline_exporters.engine.requests import RequestState
from ridgeline_exporters.roofline.windows import AttentionWindow, PhaseSums


class Phase(enum.StrEnum):
    """What a token is computed for."""

    PREFILL = "prefill"
    DECODE = "decode"


class StepKind(enum.StrEnum):
    """What a step holds."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


class StepRecord:
    """What one step computes."""

    __slots__ = ("decode", "prefill", "prefills_finished")

    def __init__(self, windows: tuple[AttentionWindow, ...] = ()) -> None:
        self.prefill = PhaseSums(windows)
        self.decode = PhaseSums(windows)
        self.prefills_finished = 0
        """Requests whose prompt was completed by this step."""

    @property
    def kind(self) -> StepKind:
        """Whether the step holds prefill, decode or both."""
        if not self.decode.tokens:
            return StepKind.PREFILL
        return StepKind.MIXED if self.prefill.tokens else StepKind.DECODE


def read_step(output: Any, states: Mapping[str, RequestState], windows: tuple[AttentionWindow, ...] = ()) -> StepRecord:
    """Account for one `SchedulerOutput`, in the order in which steps complete, and advance the requests' states.

    Contexts are taken from the output, not from the live requests: with asynchronous scheduling those are ahead.

    Args:
        output: vLLM's `SchedulerOutput` (or anything with its fields).
        states: every request of the output must have one.
        windows: the distinct windows of the model's layers (`ModelShape.windows`).
    """
    record = StepRecord(windows)
    scheduled: Mapping[str, int] = output.num_scheduled_tokens
    speculated: Mapping[str, list[int]] = output.scheduled_spec_decode_tokens
    for new in output.scheduled_new_reqs:
        state = states[new.req_id]
        if state.computed:  # known already: preempted (second model runner) or a session that went on
            state.prompt_tokens = max(state.prompt_tokens, new.prompt_len)
            state.go_back()
        _add(record, state, new.num_computed_tokens, scheduled[new.req_id], len(speculated.get(new.req_id, ())))
    cached = output.scheduled_cached_reqs
    resumed = cached.resumed_req_ids
    contexts: list[int] = []  # of decodes of one token
    for request_id, start in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
        state = states[request_id]
        tokens = scheduled[request_id]
        if resumed and request_id in resumed:
            state.go_back()
        if tokens == 1 and start >= state.boundary:  # by far the most frequent case, written out
            state.computed = context = start + 1
            contexts.append(context)
        else:
            _add(record, state, start, tokens, len(speculated.get(request_id, ())))
    if contexts:
        record.decode.add_decodes(contexts)
    return record


def _add(record: StepRecord, state: RequestState, start: int, tokens: int, speculated: int) -> None:
    end = start + tokens
    prefill = min(tokens, max(0, state.boundary - start))
    sampled = 1 + speculated if end >= state.samples_from else 0
    if prefill:
        record.prefill.add_prefill(start, prefill, sampled if prefill == tokens else 0)
        if end >= state.prompt_tokens and not state.prefill_counted:
            state.prefill_counted = True
            record.prefills_finished += 1
    if prefill < tokens:
        record.decode.add_decode(start + prefill, tokens - prefill, sampled)
    state.computed = end
