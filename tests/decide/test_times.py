"""Times as the Kubernetes API writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.api.times import from_rfc3339, to_rfc3339


def test_a_time_is_written_in_utc_with_whole_seconds() -> None:
    assert to_rfc3339(1_800_000_000.9) == "2027-01-15T08:00:00Z"


@given(st.integers(0, 4_000_000_000))
def test_what_is_written_reads_back(seconds: int) -> None:
    assert from_rfc3339(to_rfc3339(seconds)) == seconds


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        from_rfc3339("2027-01-15T08:00:00")
