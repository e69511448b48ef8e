"""Times as the Kubernetes API writes them: RFC 3339 in UTC, whole seconds.

Pure arithmetic on values that the caller passes in; no clock is read here.
"""

from __future__ import annotations

from datetime import UTC, datetime


def to_rfc3339(seconds: float) -> str:
    """Write Unix seconds as `metav1.Time` does, such as 2026-11-30T01:05:00Z; fractions are dropped."""
    return datetime.fromtimestamp(int(seconds // 1), tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def from_rfc3339(text: str) -> float:
    """Read an RFC 3339 time as Unix seconds.

    Raises:
        ValueError: the text is not a time with a zone.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return moment.timestamp()
