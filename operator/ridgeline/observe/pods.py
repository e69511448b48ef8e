"""What a pod object says, as plain values. Pods are the dictionaries of the API server, never client models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ridgeline.api.times import from_rfc3339

Pod = dict[str, Any]

STARTING_REASONS = frozenset({"ContainerCreating", "PodInitializing"})
"""Reasons to wait that every healthy pod passes through."""

_MESSAGE_LINES = 8
_MESSAGE_CHARACTERS = 800


def name(pod: Pod) -> str:
    """Name of the pod."""
    return str(pod["metadata"]["name"])


def address(pod: Pod) -> str | None:
    """IP of the pod; None before it has one."""
    return _status(pod).get("podIP") or None


def is_ready(pod: Pod) -> bool:
    """Whether the pod's Ready condition is True."""
    return (_condition(pod, "Ready") or {}).get("status") == "True"


def unready_since(pod: Pod) -> float | None:
    """Unix seconds since which the pod is not ready, from the beginning if it never was; None while it is."""
    if is_ready(pod):
        return None
    since = (_condition(pod, "Ready") or {}).get("lastTransitionTime") or pod["metadata"].get("creationTimestamp")
    return from_rfc3339(since) if since else None


def has_ended(pod: Pod) -> bool:
    """Whether the pod is being deleted or has ended for good, as evicted pods have: it counts no longer."""
    return "deletionTimestamp" in pod["metadata"] or _status(pod).get("phase") in ("Failed", "Succeeded")


def is_unschedulable(pod: Pod) -> bool:
    """Whether no node takes the pod."""
    return (_condition(pod, "PodScheduled") or {}).get("reason") == "Unschedulable"


def restarts(pod: Pod) -> int:
    """Restarts of its containers since the pod was made."""
    return sum(int(container.get("restartCount") or 0) for container in _containers(pod))


def waiting_reason(pod: Pod) -> str | None:
    """Reason of the first container that waits for something that may never come."""
    for container in _containers(pod):
        reason = _state(container, "state", "waiting").get("reason")
        if reason and reason not in STARTING_REASONS:
            return str(reason)
    return None


def message(pod: Pod) -> str | None:
    """Why the pod is not ready, as exactly as Kubernetes knows: the engine's last words first, then what it waits for.

    None for a ready pod, and for one that simply starts.
    """
    if is_ready(pod):
        return None
    for text in _explanations(pod):
        if text:
            return _tail(text)
    return None


def _explanations(pod: Pod) -> Iterator[str | None]:
    for container in _containers(pod):
        yield _last_words(container)
    if is_unschedulable(pod):
        yield (_condition(pod, "PodScheduled") or {}).get("message")
    for container in _containers(pod):
        waiting = _state(container, "state", "waiting")
        if waiting.get("reason") not in STARTING_REASONS:
            yield waiting.get("message")
    yield _status(pod).get("message") or _status(pod).get("reason")


def _last_words(container: dict[str, Any]) -> str | None:
    """How a container ended: its reason, exit code and last lines."""
    for when in ("state", "lastState"):
        ended = _state(container, when, "terminated")
        if not ended or ended.get("exitCode") == 0:
            continue
        how = f"{container.get('name', 'container')} ended with {ended.get('reason', 'Error')}"
        how += f" (exit code {ended.get('exitCode', 'unknown')})"
        words = str(ended.get("message") or "").strip()
        return f"{how}: {_last_lines(words)}" if words else how
    return None


def _last_lines(text: str) -> str:
    return "\n".join([line for line in text.splitlines() if line.strip()][-_MESSAGE_LINES:])


def _tail(text: str) -> str:
    """The end of a long text: a traceback says at its end what went wrong. The first line keeps its beginning."""
    if len(text) <= _MESSAGE_CHARACTERS:
        return text
    head = text[:80].splitlines()[0]
    return f"{head} … {text[-(_MESSAGE_CHARACTERS - len(head) - 3) :]}"


def _status(pod: Pod) -> dict[str, Any]:
    return pod.get("status") or {}


def _condition(pod: Pod, kind: str) -> dict[str, Any] | None:
    return next((c for c in _status(pod).get("conditions") or [] if c.get("type") == kind), None)


def _containers(pod: Pod) -> list[dict[str, Any]]:
    """Container statuses in the order of their start."""
    status = _status(pod)
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


def _state(container: dict[str, Any], when: str, kind: str) -> dict[str, Any]:
    return (container.get(when) or {}).get(kind) or {}
