"""What requests get: clocks their tokens and judges those that end.

Nearly every request of an engine gets one token from every step. Looking up and changing each of 256 states for that
was more than half of what a step cost. So requests that get their tokens together go in one rhythm, which is counted
once a step; only who joins or leaves it is looked at. Pipeline-parallel engines, whose steps take turns with different
requests, have a rhythm for each of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any

from ridgeline_exporters.engine.control import Control
from ridgeline_exporters.engine.metrics import OUTPUT_TOKENS, Totals
from ridgeline_exporters.engine.requests import ARRIVAL_FIELD, RequestState, Rhythm, admit


class TokenClock:
    """Clocks the tokens of all requests.

    Args:
        totals: where to add.
        states: every request that was scheduled; others are passed over.
        control: holds the objectives.
        wall: clock for arrival times, Unix seconds.
    """

    def __init__(
        self, totals: Totals, states: dict[str, RequestState], control: Control, wall: Callable[[], float]
    ) -> None:
        self._totals = totals
        self._states = states
        self._control = control
        self._wall = wall

    def note(self, results: Any, completed: float, single: bool) -> None:
        """Clock what a step gave. Tokens of one step arrive together: they are one gap.

        Args:
            results: what the scheduler gave out, client index → `EngineCoreOutputs`.
            completed: monotonic time at which the tokens were there.
            single: whether the step can have given each request one token at most.
        """
        rhythm = self._rhythm(results)
        members = rhythm.members
        if not single:
            self._leave(rhythm, members.copy())
        others = [
            output
            for outputs in results.values()
            for output in outputs.outputs
            if output.finish_reason is not None or output.request_id not in members
        ]
        if others:
            self._leave(rhythm, [output.request_id for output in others if output.request_id in members])
        given = sum([len(outputs.outputs) for outputs in results.values()])
        if given - len(others) < len(members):  # some got nothing
            got = [output.request_id for outputs in results.values() for output in outputs.outputs]
            self._leave(rhythm, members.difference(got))
        if members:
            gap = completed - rhythm.last_token
            self._totals.gaps.observe(gap, len(members))
            rhythm.tokens += 1
            rhythm.late_gaps += self._late(gap)
        rhythm.last_token = completed
        for output in others:
            self._note_output(output, completed, rhythm if single else None)

    def forget(self, request_id: str) -> None:
        """Let go of a request that the engine has let go of."""
        state = self._states.pop(request_id, None)
        if state is None:
            return
        if state.rhythm is not None:
            state.rhythm.members.discard(request_id)
        if not state.handed_off:
            self._totals.gone_outputs[bisect_left(OUTPUT_TOKENS, state.output_tokens)] += 1

    def output_lengths(self) -> list[int]:
        """Tokens that each request has got that the engine has for a client. Safe on any thread."""
        return [state.glance() for state in list(self._states.values()) if not state.handed_off]

    def judge_cut(self, requests: Iterable[Any]) -> None:
        """Judge requests that were ended from outside: aborted by the client, or failed."""
        now = self._wall()
        for request in requests:
            state = self._states.get(request.request_id)
            if state is None:  # it was never scheduled
                state = admit(request, request.num_prompt_tokens, 0)
            if state.handed_off:
                continue
            outcome = state.outcome_when_cut(self._control.objectives, now)
            if outcome is not None:
                self._totals.requests[outcome] += 1

    def _rhythm(self, results: Any) -> Rhythm:
        """The rhythm of the first that goes in one, of those that got something; else a new one, of nobody yet."""
        for outputs in results.values():
            for output in outputs.outputs:
                state = self._states.get(output.request_id)
                if state is not None and state.rhythm is not None:
                    return state.rhythm
        return Rhythm()

    def _leave(self, rhythm: Rhythm, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._states[request_id].leave()
            rhythm.members.discard(request_id)

    def _note_output(self, output: Any, completed: float, rhythm: Rhythm | None) -> None:
        """Clock what one request got, whatever it is; with one token it can join the rhythm, unless that is None."""
        state = self._states.get(output.request_id)
        if state is None:
            return
        if state.rhythm is not None:  # another one: steps are no longer shared out as they were
            self._leave(state.rhythm, (output.request_id,))
        tokens = len(output.new_token_ids)
        if tokens:
            last = state.last_token
            if last is None:
                state.note_tokens(tokens, completed)
                self._first_token(state)
            else:
                gap = completed - last
                state.note_tokens(tokens, completed, self._late(gap))
                self._totals.gaps.observe(gap)
        if output.finish_reason is not None:
            self._finished(state, output)
        elif tokens == 1 and rhythm is not None:
            state.join(rhythm)
            rhythm.members.add(output.request_id)

    def _late(self, gap: float) -> bool:
        promise = self._control.objectives.inter_token_seconds
        return promise is not None and gap > promise

    def _first_token(self, state: RequestState) -> None:
        if state.arrival is None:
            return
        state.time_to_first_token = max(0.0, self._wall() - state.arrival)
        if not state.handed_off:
            self._totals.first_tokens.observe(state.time_to_first_token)

    def _finished(self, state: RequestState, output: Any) -> None:
        if state.handed_off:
            if output.kv_transfer_params is not None and state.arrival is not None:
                # The decode engine's clock starts here. Connectors read the fields they know and leave the rest.
                output.kv_transfer_params[ARRIVAL_FIELD] = state.arrival
            return
        if not state.output_tokens or output.finish_reason.name in ("ABORT", "ERROR"):
            return
        totals = self._totals
        totals.requests[state.outcome(self._control.objectives)] += 1
        totals.output_tokens.observe(state.output_tokens)
