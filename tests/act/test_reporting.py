"""What a pass tells in logs and metrics of how far the roofline is from the fleet's steps."""

from __future__ import annotations

import logging
from dataclasses import replace
from unittest.mock import Mock

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from ridgeline.act.turn import take_turn
from ridgeline.api.fleet import FleetStatus, InferenceFleet
from ridgeline.decide.plan import History
from ridgeline.decide.snapshot import MetricsProblem, Signals, StepsTaken
from ridgeline.metrics import OperatorMetrics
from ridgeline.reporting import Reporter
from tests.decide.fleets import LLAMA_70B, NOW, idle, snapshot, spec

FLEET = InferenceFleet(namespace="ns", name="chat", uid="u", generation=1, spec=spec(), status=FleetStatus())
STEP_SECONDS = 141e9 / (0.80 * 4 * 3.35e12) + 0.003
"""A step of hardly anything, by the formula of `step_times.py`."""
NAME = "ridgeline_fleet_step_time_correction_ratio"


def taking(factor: float) -> Signals:
    """A fleet whose decode steps take so many times what the roofline says, and that computes no prompt."""
    taken = StepsTaken(factor * 1000.0 * STEP_SECONDS, 1000.0, 0.0, 0.0, 0.0, 0.0)
    return replace(idle(LLAMA_70B), decode_steps=taken, prefill_steps=StepsTaken(0.0, 0.0, 0.0, 0.0, 0.0, 0.0))


class Passes:
    """A reporter that is told of one pass after the other."""

    def __init__(self) -> None:
        self._metrics = OperatorMetrics()
        self._reporter = Reporter(self._metrics, Mock())

    def measure(self, signals: Signals | MetricsProblem) -> list[str]:
        """The lines that the metrics have of corrections afterwards."""
        seen = snapshot("mm", signals)
        turn = take_turn(FLEET, seen, History(), None, NOW, 5.0)
        self._reporter.measure(FLEET, seen, turn, FLEET.status, {}, NOW)
        return shown(self._metrics.registry)


def shown(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if line.startswith(NAME)]


def test_the_correction_is_shown_for_what_was_measured_and_goes_with_the_signals() -> None:
    passes = Passes()
    (line,) = passes.measure(taking(1.3))
    name, value = line.rsplit(" ", 1)
    assert 'kind="decode"' in name
    assert float(value) == pytest.approx(1.3, rel=0.01)
    assert passes.measure(MetricsProblem("NoSamples", "none")) == []
    assert passes.measure(idle(LLAMA_70B)) == []


def test_steps_too_far_from_the_roofline_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    passes = Passes()
    with caplog.at_level(logging.WARNING):
        passes.measure(taking(1.3))
        assert not caplog.records
        (line,) = passes.measure(taking(5.0))
        passes.measure(taking(4.0))
    assert line.endswith(" 2.0")
    (record,) = caplog.records
    assert "ns/chat: steps that only decode take more than 2 times as long as modelled" in record.getMessage()
