"""What the exporter remembers of each request: where its prompt ends and when its tokens came.

A state lives from the step that first schedules the request until the engine says that the request is gone. With
asynchronous scheduling a step for a finished request can still be in flight, so finishing alone does not end it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ARRIVAL_FIELD = "ridgeline_arrival_time"
"""Field of `kv_transfer_params` that carries the time at which the first engine got the request, Unix seconds."""

OLDEST_CARRIED_ARRIVAL_SECONDS = 3600.0
"""A carried arrival older than this is not believed: the request would have timed out long before."""

LATE_GAP_SHARE = 0.05
"""A request's gaps are late when more than this share of them is above the objective."""


class Outcome(enum.StrEnum):
    """How a request did against the objectives."""

    MET = "met"
    FIRST_TOKEN_LATE = "first_token_late"  # noqa: S105  not a password
    GAPS_LATE = "gaps_late"


@dataclass(frozen=True, slots=True)
class Objectives:
    """What the fleet promises, in seconds. None means that nothing is promised, so nothing can be late."""

    time_to_first_token_seconds: float | None = None
    inter_token_seconds: float | None = None


class Rhythm:
    """Requests that get one token each from the same steps: what is the same for all of them is counted once."""

    __slots__ = ("last_token", "late_gaps", "members", "tokens")

    def __init__(self) -> None:
        self.members: set[str] = set()
        self.tokens = 0
        """Tokens that a request got which was a member from the beginning."""
        self.late_gaps = 0
        self.last_token = 0.0
        """Completion time of the step that gave the last tokens, on the monotonic clock."""


class RequestState:
    """One request as the exporter knows it."""

    __slots__ = (
        "_last_token",
        "_late_gaps",
        "_output_tokens",
        "arrival",
        "boundary",
        "earlier_output_tokens",
        "external_tokens",
        "handed_off",
        "prefill_counted",
        "prompt_tokens",
        "rhythm",
        "samples_from",
        "started",
        "time_to_first_token",
        "tokens_beside_others",
    )

    def __init__(
        self,
        prompt_tokens: int,
        arrival: float | None = None,
        handed_off: bool = False,
        boundary: int | None = None,
        external_tokens: int = 0,
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.arrival = arrival
        """When the first engine got the request, Unix seconds; None when the engine did not say."""
        self.handed_off = handed_off
        """Whether another engine will decode it: then this engine does not finish it for the client."""
        self.boundary = prompt_tokens if boundary is None else boundary
        """Positions below are prefill, the others decode."""
        self.samples_from = prompt_tokens
        """A chunk that ends here or later yields a token."""
        self.external_tokens = external_tokens
        """Prompt tokens that came by transfer."""
        self.started = False
        """Whether a chunk of it was computed here."""
        self.prefill_counted = False
        self.rhythm: Rhythm | None = None
        """The rhythm that it goes in. Its own counts are then what it had before, less the rhythm's at that time."""
        self._last_token: float | None = None
        self._output_tokens = 0
        self._late_gaps = 0
        self.tokens_beside_others = 0
        """Output tokens that came in the same step as one before them: no gap lies between the two."""
        self.earlier_output_tokens = 0
        """Output tokens of earlier turns of a streaming session: they belong to its prompt now."""
        self.time_to_first_token: float | None = None

    @property
    def last_token(self) -> float | None:
        """Completion time of the step that gave the last token, on the monotonic clock."""
        return self._last_token if self.rhythm is None else self.rhythm.last_token

    @property
    def output_tokens(self) -> int:
        """Tokens that it got so far."""
        return self._output_tokens if self.rhythm is None else self._output_tokens + self.rhythm.tokens

    def glance(self) -> int:
        """The tokens that it got so far, for another thread: too few while it joins or leaves a rhythm."""
        rhythm, own = self.rhythm, self._output_tokens
        if rhythm is None:
            return own
        told = own + rhythm.tokens
        return told if self.rhythm is rhythm else 0

    @property
    def late_gaps(self) -> int:
        """Gaps between its tokens that were longer than promised."""
        return self._late_gaps if self.rhythm is None else self._late_gaps + self.rhythm.late_gaps

    @property
    def gaps(self) -> int:
        """Gaps between its tokens so far."""
        return max(0, self.output_tokens - self.tokens_beside_others - 1)

    @property
    def next_position(self) -> int | None:
        """First position whose token is known and not yet computed; None before the first output token.

        Every output token but the last has been computed with, whatever was speculated and rejected in between.
        """
        decoded = self.output_tokens - self.earlier_output_tokens
        return self.prompt_tokens + decoded - 1 if decoded > 0 else None

    def note_tokens(self, count: int, completed: float, late: bool = False) -> None:
        """Note tokens that came at once, of a request that goes in no rhythm.

        Args:
            count: how many.
            completed: completion time of their step.
            late: whether the gap before them was longer than promised.
        """
        self.tokens_beside_others += count - 1
        self._last_token = completed
        self._output_tokens += count
        self._late_gaps += late

    def join(self, rhythm: Rhythm) -> None:
        """Go in a rhythm from its next step on.

        In this order, as in `leave`: whoever looks on from another thread may find too few tokens, never too many.
        """
        self._output_tokens -= rhythm.tokens
        self._late_gaps -= rhythm.late_gaps
        self.rhythm = rhythm

    def leave(self) -> None:
        """Take over from the rhythm what came in it; it still has to be taken from its members."""
        rhythm = self.rhythm
        if rhythm is not None:
            self.rhythm = None
            self._last_token = rhythm.last_token
            self._output_tokens += rhythm.tokens
            self._late_gaps += rhythm.late_gaps

    def go_on(self, prompt_tokens: int) -> None:
        """Note the next turn of a streaming session: what was there before is part of a longer prompt."""
        self.prompt_tokens = self.boundary = self.samples_from = prompt_tokens
        self.earlier_output_tokens = self.output_tokens
        self.prefill_counted = False

    def go_back(self) -> None:
        """Note that the request was preempted and starts again: what was computed before is prefill this time."""
        position = self.next_position
        self.boundary = self.prompt_tokens if position is None else position
        # A token was sampled last and never computed with, so only computing it gives a new one.
        self.samples_from = self.prompt_tokens if position is None else position + 1

    def outcome(self, objectives: Objectives) -> Outcome:
        """Judge the request. A late first token outweighs late gaps: it came first and is felt most."""
        promise = objectives.time_to_first_token_seconds
        if promise is not None and self.time_to_first_token is not None and self.time_to_first_token > promise:
            return Outcome.FIRST_TOKEN_LATE
        if self.late_gaps > LATE_GAP_SHARE * self.gaps:
            return Outcome.GAPS_LATE
        return Outcome.MET

    def outcome_when_cut(self, objectives: Objectives, now: float) -> Outcome | None:
        """Judge a request that was cut short (client gone, error): only what was already late counts.

        Without this, clients that give up on an overloaded fleet would make it look as if nothing was late.

        Args:
            objectives: what was promised.
            now: Unix seconds.
        """
        promise = objectives.time_to_first_token_seconds
        if self.time_to_first_token is None:
            waited = None if self.arrival is None else now - self.arrival
            late = promise is not None and waited is not None and waited > promise
            return Outcome.FIRST_TOKEN_LATE if late else None
        outcome = self.outcome(objectives)
        return None if outcome is Outcome.MET else outcome


def arrival_time(own: float | None, params: Mapping[str, Any] | None) -> float | None:
    """The time at which the first engine got a request, Unix seconds.

    A request whose prefill ran elsewhere brings that engine's time. It is believed only while it lies before this
    engine's own and is not absurdly old: clocks of two nodes differ a little, and a client could send anything.
    """
    carried = params.get(ARRIVAL_FIELD) if params else None
    if not isinstance(carried, (int, float)) or isinstance(carried, bool) or own is None:
        return own
    return float(carried) if own - OLDEST_CARRIED_ARRIVAL_SECONDS <= carried <= own else own


def arrives(request: Any, known: bool) -> bool:
    """Whether a request that is given to the scheduler arrives from a client, so that it counts once in the fleet.

    A turn of a streaming session is a request with the prompt that it adds; the session's end is none. Neither is a
    request whose prompt was computed elsewhere, as it arrived there, nor one that vLLM gives itself and ends at once
    for a connector to let go of KV.

    Args:
        request: vLLM's `Request`.
        known: whether the scheduler has one of its name already, as it has for a streaming session.
    """
    if request.abort_immediately or (known and not request.resumable):
        return False
    params = request.kv_transfer_params
    return not (params and params.get("do_remote_prefill"))


def admit(request: Any, prompt_tokens: int, start: int) -> RequestState:
    """Make the state of a request that is scheduled for the first time.

    Args:
        request: vLLM's `Request`, or None when the scheduler no longer has it.
        prompt_tokens: length of its prompt.
        start: first position that the step computes.

    A prompt that came whole by transfer leaves one thing to do: the last prompt token is computed once more, to sample
    from it. That step is a decode in everything but name (one row, the whole context read, a token for the client), and
    the prompt was already counted where it was computed, so it counts as decode: the boundary is put before it.
    """
    if request is None:
        return RequestState(prompt_tokens)
    params = request.kv_transfer_params
    stats = request.prefill_stats
    local = stats.num_local_cached_tokens if stats is not None else 0
    external = stats.num_external_cached_tokens if stats is not None else 0
    missing = local + external - start
    if external > 0 and missing > 1:  # the load failed, wholly or in part: only what arrived counts
        external = max(0, start - local)
    received_whole = external > 0 and local + external >= prompt_tokens and start == prompt_tokens - 1
    return RequestState(
        prompt_tokens,
        arrival=arrival_time(request.arrival_time, params),
        handed_off=bool(params) and bool(params.get("do_remote_decode")),
        boundary=start if received_whole else prompt_tokens,
        external_tokens=external,
    )
