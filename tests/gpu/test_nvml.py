"""NVIDIA's own Python binding against the stand-in library: what is read, and what each failure is taken for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pynvml
import pytest

from ridgeline_exporters.gpu.nvml import Driver, Meter, NvmlError
from ridgeline_exporters.gpu.units import Activity, NvLink, State
from tests.gpu.stand_in import StandIn


@contextmanager
def session() -> Iterator[list[Meter]]:
    driver = Driver()
    driver.open()
    meters = driver.meters()
    try:
        yield meters
    finally:
        for meter in meters:
            meter.close()
        driver.close()


def test_activity_is_what_was_done_between_two_samples(stand_in: StandIn) -> None:
    stand_in.work(100.0, dram=1.0, tensor=1.0, sm=1.0)
    with session() as [meter]:
        assert meter.read(10.0) is None
        stand_in.work(1.0, dram=0.75, tensor=0.25, sm=0.5)
        assert meter.read(11.0) == Activity(1.0, 0.75, 0.25, 0.5)
        stand_in.work(2.0, dram=0.25, tensor=0.0, sm=0.5)
        assert meter.read(13.0) == Activity(2.0, 0.25, 0.0, 0.5)


def test_each_gpu_is_measured_by_itself(stand_in: StandIn) -> None:
    stand_in.set(gpus=2)
    with session() as meters:
        assert [meter.read(0.0) for meter in meters] == [None, None]
        stand_in.work(1.0, "gpu0", dram=0.5)
        stand_in.work(1.0, "gpu1", dram=0.25)
        assert [meter.read(1.0).dram for meter in meters] == [0.5, 0.25]  # type: ignore[union-attr]
        assert [meter.unit.device_ids for meter in meters] == [("GPU-0", "nvidia0"), ("GPU-1", "nvidia1")]
        assert {meter.unit.model for meter in meters} == {"NVIDIA stand-in"}


def test_a_metric_that_the_driver_refuses_is_unknown_and_the_others_are_not(stand_in: StandIn) -> None:
    stand_in.set(gpu0__dram_error=pynvml.NVML_ERROR_NOT_SUPPORTED)
    with session() as [meter]:
        meter.read(0.0)
        stand_in.work(1.0, dram=0.5, tensor=0.5, sm=0.5)
        assert meter.read(1.0) == Activity(1.0, None, 0.5, 0.5)


def test_a_number_that_is_none_is_unknown(stand_in: StandIn) -> None:
    with session() as [meter]:
        meter.read(0.0)
        assert meter.read(1.0) == Activity(1.0, None, None, None), "the counters did not move: 0 / 0"


@pytest.mark.parametrize(
    ("played", "state"),
    [
        pytest.param({"gpu0__no_gpm": 1}, State.NO_GPM, id="an older GPU"),
        pytest.param({"gpu0__query": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}, State.NO_GPM, id="an older driver"),
        pytest.param({"gpu0__query": pynvml.NVML_ERROR_NO_PERMISSION}, State.NO_PERMISSION, id="no right to ask"),
        pytest.param({"gpu0__handle": pynvml.NVML_ERROR_GPU_IS_LOST}, State.LOST, id="off the bus"),
        pytest.param({"gpu0__query": pynvml.NVML_ERROR_RESET_REQUIRED}, State.LOST, id="waits for a reset"),
        pytest.param({"gpu0__handle": pynvml.NVML_ERROR_UNKNOWN}, State.DRIVER_ERROR, id="an unknown error"),
    ],
)
def test_a_gpu_that_cannot_be_measured_is_found_with_the_reason(
    stand_in: StandIn, played: dict[str, object], state: State
) -> None:
    stand_in.set(**played)
    with session() as [meter]:
        assert meter.state is state
        assert meter.read(0.0) is None
        assert meter.read(1.0) is None
        assert bool(meter.problem) is (played != {"gpu0__no_gpm": 1})


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (pynvml.NVML_ERROR_GPU_IS_LOST, State.LOST),
        (pynvml.NVML_ERROR_NO_PERMISSION, State.NO_PERMISSION),
        (pynvml.NVML_ERROR_NOT_SUPPORTED, State.NO_GPM),
        (pynvml.NVML_ERROR_TIMEOUT, State.DRIVER_ERROR),
    ],
)
def test_a_gpu_that_fails_while_it_is_measured_says_so_and_is_left_alone(
    stand_in: StandIn, code: int, state: State
) -> None:
    with session() as [meter]:
        meter.read(0.0)
        stand_in.set(gpu0__sample=code)
        assert meter.read(1.0) is None
        assert meter.state is state
        assert meter.problem
        stand_in.set(gpu0__sample=None)
        assert meter.read(2.0) is None, "its session is over; the monitor begins another"


def test_a_gpu_divided_by_mig_is_measured_by_gpu_instance(stand_in: StandIn) -> None:
    # Devices 0 and 2 are compute instances of one GPU instance; places 1 and 3 to 6 are free.
    stand_in.set(gpu0__mig=3, gpu0__mig0__instance=2, gpu0__mig2__instance=2, gpu0__mig5__instance=9)
    with session() as meters:
        assert [(m.unit.gpu_instance, m.unit.device_ids, m.state) for m in meters] == [
            (None, ("GPU-0", "nvidia0"), State.MIG_PARENT),
            (2, ("MIG-0-0", "MIG-0-2", "nvidia0/gi2"), State.MEASURED),
            (9, ("MIG-0-5", "nvidia0/gi9"), State.MEASURED),
        ]
        assert [meter.read(0.0) for meter in meters] == [None, None, None]
        stand_in.work(1.0, "gpu0.gi2", dram=0.5)
        stand_in.work(1.0, "gpu0.gi9", dram=0.125)
        parent, first, second = (meter.read(1.0) for meter in meters)
        assert parent is None
        assert first is not None
        assert second is not None
        assert (first.dram, second.dram) == (0.5, 0.125)
        assert [meter.links() for meter in meters] == [None, None, None]


def test_gpu_instances_of_an_older_gpu_have_no_gpm(stand_in: StandIn) -> None:
    stand_in.set(gpu0__mig=1, gpu0__mig0__instance=1, gpu0__no_gpm=1)
    with session() as [parent, part]:
        assert part.read(0.0) is None
        assert (parent.state, part.state) == (State.MIG_PARENT, State.NO_GPM)


def test_nvlink_is_counted_in_bytes_also_where_gpm_is_missing(stand_in: StandIn) -> None:
    with session() as [meter]:
        assert meter.links() is None, "a GPU without NVLink has moved nothing, and not 0 bytes"
        stand_in.set(gpu0__nvlink=1, gpu0__received=3, gpu0__transmitted=5_000_000_000)
        assert meter.links() == NvLink(3 * 1024, 5_000_000_000 * 1024)
    stand_in.set(gpu0__no_gpm=1)
    with session() as [meter]:
        assert meter.links() == NvLink(3 * 1024, 5_000_000_000 * 1024)


@pytest.mark.parametrize(
    ("code", "cure"),
    [
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "dmesg"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "different versions"),
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "runtime class"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "NVIDIA_VISIBLE_DEVICES"),
    ],
)
def test_a_driver_that_does_not_answer_is_explained(stand_in: StandIn, code: int, cure: str) -> None:
    stand_in.set(init=code)
    with pytest.raises(NvmlError, match=cure):
        Driver().open()


def test_the_driver_says_its_version_while_it_is_open(stand_in: StandIn) -> None:
    driver = Driver()
    assert driver.version == ""
    driver.open()
    assert driver.version == "580.00.stand-in"
    driver.close()
    driver.close()
    assert driver.version == ""
    with pytest.raises(NvmlError):
        driver.meters()
