"""Limits and objectives that the operator posts, and how they reach the scheduler.

The HTTP thread only replaces an immutable value here. The busy loop takes it over between two steps, before it
schedules: lowering the token budget in the middle of a step would break an assertion of the scheduler and end the
engine. An idle engine blocks on its input queue, so what was posted meanwhile governs the next step.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ridgeline_exporters.engine.requests import Objectives

MILLI = 1e-3
LARGEST_OBJECTIVE_MILLISECONDS = 86_400_000


class BadRequest(ValueError):  # noqa: N818  named as HTTP does
    """A body that cannot be accepted; the message says what must be different."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the scheduler may put into a step."""

    max_num_scheduled_tokens: int
    """Tokens of a step."""
    long_prefill_token_threshold: int
    """Tokens of one prompt in a step while other requests are there; 0 means no such limit."""

    def as_dict(self) -> dict[str, int]:
        """The JSON form."""
        return {
            "max_num_scheduled_tokens": self.max_num_scheduled_tokens,
            "long_prefill_token_threshold": self.long_prefill_token_threshold,
        }


class Control:
    """Holds what is wanted and what is in force.

    Args:
        maximum: the limits at start. Nothing posted may go above: buffers and graphs were made for them.
        smallest_tokens: the smallest token budget with which every request still makes progress.
        objectives: the objectives at start.
    """

    def __init__(self, maximum: Limits, smallest_tokens: int, objectives: Objectives) -> None:
        self.maximum = maximum
        self._smallest_tokens = smallest_tokens
        self._lock = threading.Lock()  # among HTTP threads; the busy loop never takes it
        self._wanted = maximum
        self._in_force = maximum
        self.objectives = objectives

    @property
    def wanted(self) -> Limits:
        """The limits accepted last; they govern the next step."""
        return self._wanted

    @property
    def in_force(self) -> Limits:
        """The limits of the last step."""
        return self._in_force

    def post_limits(self, body: Any) -> Limits:
        """Accept limits from another thread.

        Raises:
            BadRequest: the body cannot be accepted; nothing was changed.
        """
        fields = _fields(body, tuple(self.maximum.as_dict()))
        changes: dict[str, int] = {}
        if "max_num_scheduled_tokens" in fields:
            changes["max_num_scheduled_tokens"] = self._tokens(fields["max_num_scheduled_tokens"])
        if "long_prefill_token_threshold" in fields:
            changes["long_prefill_token_threshold"] = self._threshold(fields["long_prefill_token_threshold"])
        with self._lock:
            self._wanted = replace(self._wanted, **changes)
            return self._wanted

    def post_objectives(self, body: Any) -> Objectives:
        """Accept objectives from another thread. A field that is null withdraws that objective.

        Raises:
            BadRequest: the body cannot be accepted; nothing was changed.
        """
        names = {
            "time_to_first_token_milliseconds": "time_to_first_token_seconds",
            "inter_token_latency_milliseconds": "inter_token_seconds",
        }
        fields = _fields(body, tuple(names))
        changes = {names[name]: _milliseconds(name, value) for name, value in fields.items()}
        with self._lock:
            self.objectives = replace(self.objectives, **changes)
            return self.objectives

    def apply(self, scheduler: Any) -> None:
        """Put the wanted limits in force. Only ever called by the busy loop, between steps."""
        wanted = self._wanted
        if wanted is self._in_force:
            return
        scheduler.max_num_scheduled_tokens = wanted.max_num_scheduled_tokens
        scheduler.scheduler_config.long_prefill_token_threshold = wanted.long_prefill_token_threshold
        self._in_force = wanted

    def _tokens(self, value: Any) -> int:
        maximum = self.maximum.max_num_scheduled_tokens
        if not _is_integer(value) or not self._smallest_tokens <= value <= maximum:
            raise BadRequest(
                f"max_num_scheduled_tokens must be a whole number from {self._smallest_tokens} to {maximum}, "
                "the engine's own at start"
            )
        return int(value)

    def _threshold(self, value: Any) -> int:
        ceiling = self.maximum.long_prefill_token_threshold
        largest = ceiling or self.maximum.max_num_scheduled_tokens
        smallest = 1 if ceiling else 0  # without a threshold at start, 0 (none) is where it came from
        if not _is_integer(value) or not smallest <= value <= largest:
            raise BadRequest(f"long_prefill_token_threshold must be a whole number from {smallest} to {largest}")
        return int(value)


def objectives_as_dict(objectives: Objectives) -> dict[str, int | None]:
    """The JSON form, in milliseconds."""

    def milliseconds(seconds: float | None) -> int | None:
        return None if seconds is None else round(seconds / MILLI)

    return {
        "time_to_first_token_milliseconds": milliseconds(objectives.time_to_first_token_seconds),
        "inter_token_latency_milliseconds": milliseconds(objectives.inter_token_seconds),
    }


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _fields(body: Any, known: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(body, dict) or not body:
        raise BadRequest(f"the body must be a JSON object with at least one of {', '.join(known)}")
    unknown = [name for name in body if name not in known]
    if unknown:
        raise BadRequest(f"unknown field {unknown[0]!r:.80}; known are {', '.join(known)}")
    return body


def _milliseconds(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if not _is_integer(value) or not 1 <= value <= LARGEST_OBJECTIVE_MILLISECONDS:
        raise BadRequest(f"{name} must be a whole number from 1 to {LARGEST_OBJECTIVE_MILLISECONDS}, or null")
    return float(value) * MILLI
