"""From a scheduler output to what its step computes in each phase. Pure: no clock, no vLLM.

The phase rule. Position p of a request is *prefill* when p lies in the prompt, or when it was computed before and had
to be computed again because the request was preempted. Any other position is *decode*: it comes from an output token.
One chunk can hold both (a preempted request catches up and goes on in the same step). A prompt that came by transfer
is not prefill here; see `requests.admit`.

Only sums over the requests are kept (`roofline.windows.PhaseSums`, which says what attends to what), so a step costs a
few integer operations a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ridgeline_exporters.engine.requests import RequestState
from ridgeline_exporters.roofline.windows import AttentionWindow, PhaseSums

StepKind = Literal["prefill", "decode", "mixed"]


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
            return "prefill"
        return "mixed" if self.prefill.tokens else "decode"


def read_step(
    output: Any,
    states: Mapping[str, RequestState],
    windows: tuple[AttentionWindow, ...] = (),
    in_prompt: set[str] | None = None,
) -> StepRecord:
    """Account for one `SchedulerOutput`, in the order in which steps complete, and advance the requests' states.

    Contexts are taken from the output, not from the live requests: with asynchronous scheduling those are ahead.

    Args:
        output: vLLM's `SchedulerOutput` (or anything with its fields).
        states: every request of the output must have one.
        windows: the distinct windows of the model's layers (`ModelShape.windows`).
        in_prompt: the requests whose last chunk ended below their boundary, kept up to date here. With it, and where
            nothing is speculated, single decoded tokens are summed up without looking at each request.
    """
    record = StepRecord(windows)
    scheduled: Mapping[str, int] = output.num_scheduled_tokens
    speculated: Mapping[str, list[int]] = output.scheduled_spec_decode_tokens
    behind = set() if in_prompt is None else in_prompt
    rest: int = output.total_num_scheduled_tokens  # of those that are not looked at one by one
    for new in output.scheduled_new_reqs:
        state = states[new.req_id]
        if new.prompt_len > state.prompt_tokens:
            state.go_on(new.prompt_len)
        elif state.started:  # known already: preempted, as the second model runner reports it
            state.go_back()
        start, tokens = new.num_computed_tokens, scheduled[new.req_id]
        rest -= tokens
        _add(record, new.req_id, state, start, tokens, len(speculated.get(new.req_id, ())), behind)
    cached = output.scheduled_cached_reqs
    resumed = cached.resumed_req_ids
    starts = cached.num_computed_tokens
    apart: set[str] = set()
    if behind or resumed:
        apart = ((behind | resumed) & scheduled.keys()).difference([new.req_id for new in output.scheduled_new_reqs])
        rest -= sum([scheduled[request_id] for request_id in apart])
    if in_prompt is None or speculated or rest != len(starts) - len(apart):
        apart = set(cached.req_ids)
    places = [i for i, request_id in enumerate(cached.req_ids) if request_id in apart] if apart else []
    for i in places:
        request_id, start = cached.req_ids[i], starts[i]
        state, tokens = states[request_id], scheduled[request_id]
        drafts = len(speculated.get(request_id, ())) if speculated else 0
        if request_id in resumed:
            state.go_back()
        elif start >= state.boundary:
            position = state.next_position
            if position is not None:  # scheduled before it was known which drafts of the step before were rejected
                start = min(start, position)
            record.decode.add_decode(start, tokens, 1 + drafts)
            behind.discard(request_id)
            continue
        _add(record, request_id, state, start, tokens, drafts, behind)
    if len(places) < len(starts):
        alone = starts.copy() if places else starts  # decodes of one token
        for i in reversed(places):
            del alone[i]
        record.decode.add_decodes(alone)
    return record


def _add(
    record: StepRecord, request_id: str, state: RequestState, start: int, tokens: int, speculated: int, behind: set[str]
) -> None:
    end = start + tokens
    prefill = min(tokens, max(0, state.boundary - start))
    sampled = 1 + speculated if end >= state.samples_from else 0  # the last positions of the chunk
    if prefill:
        record.prefill.add_prefill(start, prefill, max(0, sampled - (tokens - prefill)))
        if end >= state.prompt_tokens and not state.prefill_counted:
            state.prefill_counted = True
            record.prefills_finished += 1
    if prefill < tokens:
        record.decode.add_decode(start + prefill, tokens - prefill, min(sampled, tokens - prefill))
    state.started = True
    if end < state.boundary:
        behind.add(request_id)
    else:
        behind.discard(request_id)
