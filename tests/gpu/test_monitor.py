"""What the monitor knows of a node through good and bad days of its driver, played by the stand-in library."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread

import pynvml
import pytest

from ridgeline_exporters.gpu.monitor import LOOK_AGAIN_SECONDS, SILENT_SECONDS, Monitor, Reading
from ridgeline_exporters.gpu.nvml import Driver
from ridgeline_exporters.gpu.units import NvLink, State
from tests.gpu.stand_in import StandIn


@dataclass
class Node:
    """A monitor on a clock that the test moves."""

    stand_in: StandIn
    now: float = 1000.0
    monitor: Monitor = field(init=False)

    def __post_init__(self) -> None:
        self.monitor = Monitor(Driver(), lambda: self.now)

    def rounds(self, count: int = 1, seconds: float = 1.0, **shares: float) -> None:
        """Rounds, a while apart, in which GPU 0 is active for shares of the time."""
        for _ in range(count):
            self.now += seconds
            self.stand_in.work(seconds, **shares)
            self.monitor.round()

    def one(self) -> Reading:
        [reading] = self.monitor.readings()
        return reading

    def states(self) -> dict[str, State]:
        return {reading.unit.uuid: reading.state for reading in self.monitor.readings()}

    def close(self) -> None:
        stop = Event()
        stop.set()
        self.monitor.run(stop)


@contextmanager
def running(stand_in: StandIn) -> Iterator[Node]:
    with closing(Node(stand_in)) as node:
        yield node


def test_ratios_are_means_over_the_last_ten_seconds(stand_in: StandIn) -> None:
    with running(stand_in) as node:
        node.rounds(dram=1.0)
        assert (node.one().state, node.one().dram) == (State.MEASURED, None), "one sample is no measurement"
        node.rounds(10, dram=1.0, sm=1.0)
        node.rounds(5, dram=0.5, tensor=0.2, sm=1.0)
        reading = node.one()
        assert reading.dram == pytest.approx(0.75)
        assert reading.tensor == pytest.approx(0.1)
        assert reading.sm == pytest.approx(1.0)
        assert node.monitor.up
        assert node.monitor.errors == 0


def test_a_lost_gpu_has_a_state_and_no_values_and_the_others_go_on(stand_in: StandIn) -> None:
    stand_in.set(gpus=2, gpu0__nvlink=1)
    with running(stand_in) as node:
        node.rounds(3, dram=0.5)
        assert node.states() == {"GPU-0": State.MEASURED, "GPU-1": State.MEASURED}
        stand_in.set(gpu0__sample=pynvml.NVML_ERROR_GPU_IS_LOST)
        node.rounds(dram=0.5)
        lost, other = node.monitor.readings()
        assert (lost.state, lost.dram, lost.sm, lost.links) == (State.LOST, None, None, None)
        assert other.state is State.MEASURED
        assert node.monitor.up
        assert node.monitor.errors == 1


def test_a_gpu_that_comes_back_is_measured_again(stand_in: StandIn) -> None:
    with running(stand_in) as node:
        node.rounds(3, dram=0.5)
        stand_in.set(gpu0__sample=pynvml.NVML_ERROR_GPU_IS_LOST)
        node.rounds(dram=0.5)
        stand_in.set(gpu0__sample=None)
        node.rounds(dram=0.5)
        assert node.one().state is State.LOST, "only a new session can tell"
        node.rounds(seconds=LOOK_AGAIN_SECONDS, dram=0.5)
        assert node.one().state is State.MEASURED
        assert node.one().dram is None
        node.rounds(dram=0.25)
        assert node.one().dram == pytest.approx(0.25)


def test_a_gpu_that_fell_off_the_bus_keeps_its_name(stand_in: StandIn) -> None:
    with running(stand_in) as node:
        node.rounds(3, dram=0.5)
        stand_in.set(gpu0__handle=pynvml.NVML_ERROR_GPU_IS_LOST, gpu0__sample=pynvml.NVML_ERROR_GPU_IS_LOST)
        node.rounds(2, seconds=LOOK_AGAIN_SECONDS)
        assert node.states() == {"GPU-0": State.LOST}


def test_a_gpu_that_is_no_longer_listed_is_lost_also_when_the_others_are_counted_anew(stand_in: StandIn) -> None:
    stand_in.set(gpus=2)
    with running(stand_in) as node:
        node.rounds(3, dram=0.5)
        stand_in.set(gpus=1, gpu0__uuid="GPU-1")
        node.rounds(seconds=LOOK_AGAIN_SECONDS)
        assert node.states() == {"GPU-0": State.LOST, "GPU-1": State.MEASURED}
        assert {r.unit.uuid: r.unit.gpu for r in node.monitor.readings()}["GPU-1"] == 0
        stand_in.set(gpus=2, gpu0__uuid=None)
        node.rounds(seconds=LOOK_AGAIN_SECONDS)
        assert node.states() == {"GPU-0": State.MEASURED, "GPU-1": State.MEASURED}


def test_a_gpu_without_gpm_is_reported_as_such_and_never_as_idle(stand_in: StandIn) -> None:
    stand_in.set(gpu0__no_gpm=1, gpu0__nvlink=1, gpu0__received=1, gpu0__transmitted=2)
    with running(stand_in) as node:
        node.rounds(3)
        assert node.one() == Reading(node.one().unit, State.NO_GPM, None, None, None, NvLink(1024, 2048))
        assert node.monitor.errors == 0, "nothing went wrong"


def test_counters_that_are_refused_are_reported_once_and_stay_so(
    stand_in: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    stand_in.set(gpu0__sample=pynvml.NVML_ERROR_NO_PERMISSION)
    with running(stand_in) as node:
        node.rounds(70, dram=0.5)
        assert node.one().state is State.NO_PERMISSION
        assert node.monitor.errors == 1
        assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1


def test_a_gpu_that_is_divided_while_it_is_watched_is_reported_by_its_parts(stand_in: StandIn) -> None:
    with running(stand_in) as node:
        node.rounds(3, dram=0.5)
        stand_in.set(gpu0__mig=1, gpu0__mig0__instance=3)
        node.rounds(dram=0.5)
        assert node.states() == {"GPU-0": State.NO_GPM}, "until it is looked at again"
        node.rounds(seconds=LOOK_AGAIN_SECONDS)
        assert node.states() == {"GPU-0": State.MIG_PARENT, "MIG-0-0": State.MEASURED}
        stand_in.set(gpu0__mig=None)
        node.rounds(seconds=LOOK_AGAIN_SECONDS)
        assert node.states() == {"GPU-0": State.MEASURED}, "a part that is gone was not lost"


def test_without_a_driver_it_waits_says_why_once_and_begins_when_there_is_one(
    stand_in: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    stand_in.set(init=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    with running(stand_in) as node:
        node.rounds(4, seconds=LOOK_AGAIN_SECONDS)
        assert node.monitor.readings() == []
        assert not node.monitor.up
        assert node.monitor.started
        assert node.monitor.errors == 4
        assert [r.getMessage() for r in caplog.records if "Driver Not Loaded" in r.getMessage()] != []
        assert len(caplog.records) == 1
        stand_in.set(init=None)
        node.rounds(seconds=LOOK_AGAIN_SECONDS)
        node.rounds(dram=0.5)
        assert node.monitor.up
        assert node.one().dram == pytest.approx(0.5)


def test_a_driver_that_goes_away_takes_the_values_with_it_and_leaves_the_gpus_as_errors(stand_in: StandIn) -> None:
    stand_in.set(gpu0__nvlink=1)
    with running(stand_in) as node:
        node.rounds(3, dram=0.5)
        stand_in.set(count=pynvml.NVML_ERROR_UNKNOWN, init=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
        node.rounds(seconds=LOOK_AGAIN_SECONDS)
        assert node.one() == Reading(node.one().unit, State.DRIVER_ERROR)
        assert not node.monitor.up


def test_a_monitor_that_hangs_knows_nothing_any_more(stand_in: StandIn) -> None:
    stand_in.set(gpu0__nvlink=1)
    with running(stand_in) as node:
        node.rounds(3, dram=0.5)
        node.now += SILENT_SECONDS
        assert node.one() == Reading(node.one().unit, State.DRIVER_ERROR)
        assert not node.monitor.up
        assert node.monitor.silent_seconds == SILENT_SECONDS


def test_an_error_of_its_own_does_not_end_it(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, rounds = Event(), iter(range(2))
    monitor = Monitor(Driver())

    def round_that_fails_once() -> None:
        if next(rounds):
            stop.set()
        else:
            raise RuntimeError("planted")

    monkeypatch.setattr(monitor, "round", round_that_fails_once)
    thread = Thread(target=monitor.run, args=(stop,), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert monitor.errors == 1
