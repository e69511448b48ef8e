"""The same seed gives the same bytes in every Python: here what can be tested in one; `make check-determinism` compares."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterable
from typing import Any

import pytest

from tests.simulate import determinism


def test_no_floats_are_added_by_a_sum_that_rounds_differently_between_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    """The built-in `sum` compensates its roundings from Python 3.12 on; `math.fsum` is exact in each."""
    added = sum
    offenders: set[str] = set()

    def watched(values: Iterable[Any], /, start: Any = 0) -> Any:
        total = added(values, start)
        caller = sys._getframe(1)
        module = str(caller.f_globals["__name__"])
        if isinstance(total, float) and module.startswith("ridgeline"):
            offenders.add(f"{module}:{caller.f_lineno}")
        return total

    monkeypatch.setattr(builtins, "sum", watched)
    told = determinism.replay()
    assert offenders == set()
    assert {"Split", "Merge"} <= {event["action"] for event in told["decisions"]}, "the replay exercises both ways"
    assert len(told["passes"]) > 100
