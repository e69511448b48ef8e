"""Measures every unit of the node once a second, and goes on through whatever the driver does."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from threading import Event
from typing import Protocol

from ridgeline_exporters.gpu.nvml import Meter, NvmlError
from ridgeline_exporters.gpu.units import NvLink, State, Unit, Window

logger = logging.getLogger(__name__)

SAMPLE_SECONDS = 1.0
"""Time between two samples of a unit. NVML refreshes its counters ten times a second at most."""
LOOK_AGAIN_SECONDS = 30.0
"""Time after which a driver that failed is tried again, and units are counted anew: GPUs come back, MIG changes."""
SILENT_SECONDS = 10.0
"""A monitor that has not finished a round for so long hangs in the driver, and what it knows is no longer true."""
_Key = str
TROUBLED = frozenset({State.LOST, State.DRIVER_ERROR})


class Session(Protocol):
    """What the monitor needs of the driver; `nvml.Driver` is it."""

    @property
    def version(self) -> str:
        """Version of the driver."""

    def open(self) -> None:
        """Begin; raises NvmlError."""

    def close(self) -> None:
        """End."""

    def meters(self) -> list[Meter]:
        """A meter for each unit; raises NvmlError."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known of one unit."""

    unit: Unit
    state: State
    dram: float | None = None
    tensor: float | None = None
    sm: float | None = None
    """The three are means over the last ten seconds; None where nothing was measured in them."""
    links: NvLink | None = None


@dataclass(slots=True)
class _Tracked:
    """A unit between rounds."""

    unit: Unit
    state: State
    problem: str
    window: Window
    meter: Meter | None = None
    links: NvLink | None = None


class Monitor:
    """The state of a node's GPUs, kept by one thread and read by others.

    Args:
        driver: where units come from.
        monotonic: a clock that never steps, in seconds.
    """

    def __init__(self, driver: Session, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._driver = driver
        self._monotonic = monotonic
        self._open = False
        self._look_again_at = float("-inf")
        self._round_ended_at = monotonic()
        self._tracked: Mapping[_Key, _Tracked] = {}
        self._told: dict[_Key, tuple[State, str]] = {}
        self._complaint = ""
        self.started = False
        """Whether the first round is over."""
        self.driver_version = ""
        self.errors = 0
        """Failures that began: of the driver as a whole, or of one unit."""

    @property
    def silent_seconds(self) -> float:
        """Time since the last round ended, or since the monitor was made."""
        return self._monotonic() - self._round_ended_at

    @property
    def up(self) -> bool:
        """Whether the driver answers."""
        return self._open and self.started and self.silent_seconds < SILENT_SECONDS

    def readings(self) -> list[Reading]:
        """What is known of each unit now."""
        now, silent = self._monotonic(), self.silent_seconds >= SILENT_SECONDS
        return [
            Reading(
                unit=each.unit,
                state=State.DRIVER_ERROR if silent else each.state,
                dram=each.window.mean(now, "dram"),
                tensor=each.window.mean(now, "tensor"),
                sm=each.window.mean(now, "sm"),
                links=None if silent else each.links,
            )
            for each in self._tracked.values()
        ]

    def run(self, stop: Event) -> None:
        """Measure until told to stop, and leave the driver in order."""
        try:
            while not stop.is_set():
                began = self._monotonic()
                try:
                    self.round()
                except Exception:
                    self.errors += 1
                    logger.exception("A round of samples failed; the next one is tried.")
                stop.wait(max(0.1, SAMPLE_SECONDS - (self._monotonic() - began)))
        finally:
            self._close()

    def round(self) -> None:
        """Sample each unit once; first look at what there is, where it is time to."""
        if self._monotonic() >= self._look_again_at:
            self._look()
        for each in self._tracked.values():
            self._sample(each)
        self._tell()
        self._round_ended_at = self._monotonic()
        self.started = True

    def _sample(self, each: _Tracked) -> None:
        meter = each.meter
        if meter is None:
            return
        now = self._monotonic()
        if activity := meter.read(now):
            each.window.add(now, activity)
        each.links = meter.links()
        each.state, each.problem = meter.state, meter.problem
        if meter.state is not State.MEASURED:
            each.window.clear()

    def _look(self) -> None:
        """Find the units; with a new session where there is none, or where one of them is in trouble."""
        self._look_again_at = self._monotonic() + LOOK_AGAIN_SECONDS
        if any(each.state in TROUBLED for each in self._tracked.values()):
            self._close()
        try:
            if not self._open:
                self._driver.open()
                self._open = True
                self.driver_version = self._driver.version
            meters = self._driver.meters()
        except NvmlError as error:
            self._fail(str(error))
            return
        if self._complaint:
            logger.info("NVML answers again.")
        self._complaint = ""
        self._track(meters)

    def _fail(self, complaint: str) -> None:
        """NVML as a whole does not answer: nothing can be said of any unit."""
        self._close()
        self.errors += 1
        if complaint != self._complaint:
            logger.error("NVML does not answer; it is tried again every %d s. %s", LOOK_AGAIN_SECONDS, complaint)
        self._complaint = complaint
        for each in self._tracked.values():
            each.state, each.problem = State.DRIVER_ERROR, complaint
            each.window.clear()

    def _track(self, meters: Iterable[Meter]) -> None:
        """Go on with units that are still there, begin with new ones, and keep GPUs that were there as lost."""
        before, now = self._tracked, dict[_Key, _Tracked]()
        nameless = {each.unit.gpu: each.unit for each in before.values() if each.unit.gpu_instance is None}
        for meter in meters:
            unit = meter.unit
            if not unit.device_ids:  # it no longer tells its name, and is still the GPU that was there
                unit = nameless.get(unit.gpu, unit)
            each = before.get(_key(unit))
            if each and each.unit == unit and _goes_on(each, meter):
                meter.close()
                now[_key(unit)] = each
                continue
            if each and each.meter:
                each.meter.close()
            window = each.window if each and meter.state is State.MEASURED else Window()
            now[_key(unit)] = _Tracked(unit, meter.state, meter.problem, window, meter)
        for key, each in before.items():
            if key in now:
                continue
            if each.meter:
                each.meter.close()
            if each.unit.gpu_instance is None and each.unit.uuid:
                now[key] = _Tracked(each.unit, State.LOST, "the driver no longer lists it", Window())
        self._tracked = now

    def _tell(self) -> None:
        """Log what has become of each unit, once, and count what went wrong."""
        told = {}
        for key, each in self._tracked.items():
            told[key] = (each.state, each.problem)
            if self._told.get(key) == told[key]:
                continue
            if each.problem and each.problem != self._complaint:
                self.errors += 1
                logger.warning("%s: %s (%s)", _name(each.unit), each.state, each.problem)
            elif not each.problem:
                logger.info("%s: %s", _name(each.unit), each.state)
        self._told = told

    def _close(self) -> None:
        for each in self._tracked.values():
            if each.meter:
                each.meter.close()
            each.meter, each.links = None, None
        self._driver.close()
        self._open = False


def _goes_on(each: _Tracked, meter: Meter) -> bool:
    """Whether a unit is kept with its last sample: a meter that was found out to measure nothing is not tried again."""
    found_out = each.state in (State.NO_GPM, State.NO_PERMISSION) and meter.state is State.MEASURED
    return each.meter is not None and (each.state is meter.state or found_out)


def _key(unit: Unit) -> _Key:
    return unit.uuid or f"GPU {unit.gpu}"


def _name(unit: Unit) -> str:
    part = "" if unit.gpu_instance is None else f", GPU instance {unit.gpu_instance}"
    return f"GPU {unit.gpu}{part} [{unit.uuid or 'id unknown'}, {unit.model or 'model unknown'}]"
