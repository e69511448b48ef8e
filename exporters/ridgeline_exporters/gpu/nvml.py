"""The GPUs of this node, asked through NVML.

NVML is the driver's own library, and its GPM calls (Hopper and later) read counters of memory, tensor cores and SMs that
neither stop a kernel nor keep a profiler out. https://docs.nvidia.com/deploy/nvml-api has both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress

import pynvml

from ridgeline_exporters.gpu.units import Activity, NvLink, State, Unit

ALL_LINKS = 0xFFFF_FFFF
"""Scope of a field that adds up all NVLinks of a GPU."""
KIBIBYTE = 1024
PERCENT = 100.0
METRICS = (pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL, pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, pynvml.NVML_GPM_METRIC_SM_UTIL)
LINK_FIELDS = (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX)

STATES = {
    pynvml.NVML_ERROR_GPU_IS_LOST: State.LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED: State.LOST,
    pynvml.NVML_ERROR_GPU_NOT_FOUND: State.LOST,
    pynvml.NVML_ERROR_NOT_SUPPORTED: State.NO_GPM,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: State.NO_GPM,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: State.NO_GPM,
    pynvml.NVML_ERROR_NO_PERMISSION: State.NO_PERMISSION,
}
"""What an error of a GPM call says of a unit; any other says `driver_error`."""

CURES = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 is not in this container: run it with the runtime class of"
    " NVIDIA's container toolkit and NVIDIA_DRIVER_CAPABILITIES=utility",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the node's NVIDIA driver is not loaded: look at dmesg and lsmod there",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the library and the loaded driver have different versions: the driver"
    " was upgraded without a restart of the node, or of this pod",
    pynvml.NVML_ERROR_NO_PERMISSION: "the devices may not be opened: check that NVIDIA_VISIBLE_DEVICES=all is honoured",
}


class NvmlError(Exception):
    """NVML does not answer. The message says why and, where that is known, what helps."""


def explain(error: pynvml.NVMLError) -> str:
    """What NVML says of an error, and what helps."""
    code = getattr(error, "value", None)
    return f"{error}: {CURES[code]}" if code in CURES else str(error)


class Meter:
    """One unit, measured again and again.

    Attributes:
        unit: what is measured.
        state: what the last call said of it.
        problem: the driver's words where the state is an error, otherwise nothing.
    """

    def __init__(self, unit: Unit, device: object, state: State, problem: str = "") -> None:
        self.unit = unit
        self.state = state
        self.problem = problem
        self._device = device
        self._samples: list[object] = []
        self._sampled_at: float | None = None

    def read(self, now: float) -> Activity | None:
        """Take a sample.

        Args:
            now: time on a clock that never steps, in seconds.

        Returns:
            What was done since the last sample; None with the first one, and while there is nothing to measure.
        """
        if self.state is not State.MEASURED:
            return None
        try:
            return self._measure(now)
        except pynvml.NVMLError as error:
            self.state, self.problem = STATES.get(error.value, State.DRIVER_ERROR), str(error)
            return None

    def links(self) -> NvLink | None:
        """What went over NVLink; None where there is none, and for a part of a GPU."""
        if self.state not in (State.MEASURED, State.NO_GPM, State.NO_PERMISSION) or self.unit.gpu_instance is not None:
            return None
        try:
            fields = pynvml.nvmlDeviceGetFieldValues(self._device, [(field, ALL_LINKS) for field in LINK_FIELDS])
        except pynvml.NVMLError as error:
            if STATES.get(error.value) is State.LOST:
                self.state, self.problem = State.LOST, str(error)
            return None
        received, transmitted = (_number(field) for field in fields)
        if received is None or transmitted is None:
            return None
        return NvLink(received * KIBIBYTE, transmitted * KIBIBYTE)

    def close(self) -> None:
        """Give the buffers back."""
        for sample in self._samples:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlGpmSampleFree(sample)
        self._samples, self._sampled_at = [], None

    def _measure(self, now: float) -> Activity | None:
        while len(self._samples) < 2:
            self._samples.append(pynvml.nvmlGpmSampleAlloc())
        before, after = self._samples
        if self.unit.gpu_instance is None:
            pynvml.nvmlGpmSampleGet(self._device, after)
        else:
            pynvml.nvmlGpmMigSampleGet(self._device, self.unit.gpu_instance, after)
        self._samples = [after, before]
        since, self._sampled_at = self._sampled_at, now
        return None if since is None else _compare(before, after, now - since)


class Driver:
    """A session with NVML: open, find the units, close."""

    def __init__(self) -> None:
        self._open = False

    @property
    def version(self) -> str:
        """Version of the driver, or nothing if it does not say."""
        with suppress(pynvml.NVMLError):
            return str(pynvml.nvmlSystemGetDriverVersion())
        return ""

    def open(self) -> None:
        """Begin a session.

        Raises:
            NvmlError: there is no library, no driver, or they do not fit.
        """
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NvmlError(explain(error)) from error
        self._open = True

    def close(self) -> None:
        """End the session. Meters of it are of no use afterwards."""
        if self._open:
            self._open = False
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()

    def meters(self) -> list[Meter]:
        """A meter for each unit there is now, GPUs that only answer with an error included.

        Raises:
            NvmlError: the driver does not even say how many there are.
        """
        try:
            count = int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as error:
            raise NvmlError(explain(error)) from error
        return [meter for index in range(count) for meter in _meters(index)]


def _meters(index: int) -> Iterator[Meter]:
    """Meters of one GPU: of itself, and of its instances if it is divided."""
    unit, device = Unit(index, None, ()), None
    try:
        device = pynvml.nvmlDeviceGetHandleByIndex(index)
        unit = Unit(index, None, _names(device), str(pynvml.nvmlDeviceGetName(device)))
        if _divided(device):
            parts = list(_parts(device, unit))
            yield Meter(unit, device, State.MIG_PARENT)
            yield from parts
        else:
            supported = bool(pynvml.nvmlGpmQueryDeviceSupport(device).isSupportedDevice)
            yield Meter(unit, device, State.MEASURED if supported else State.NO_GPM)
    except pynvml.NVMLError as error:
        yield Meter(unit, device, STATES.get(error.value, State.DRIVER_ERROR), str(error))


def _names(device: object) -> tuple[str, ...]:
    """The UUID of a GPU and, for clusters whose device plug-in uses it, the name of its device node."""
    uuid = str(pynvml.nvmlDeviceGetUUID(device))
    with suppress(pynvml.NVMLError):
        return (uuid, f"nvidia{pynvml.nvmlDeviceGetMinorNumber(device)}")
    return (uuid,)


def _divided(device: object) -> bool:
    with suppress(pynvml.NVMLError):  # a GPU that cannot be divided says so with an error
        return bool(pynvml.nvmlDeviceGetMigMode(device)[0] == pynvml.NVML_DEVICE_MIG_ENABLE)
    return False


def _parts(device: object, gpu: Unit) -> Iterator[Meter]:
    """A meter for each GPU instance that holds a compute instance.

    GPM is not asked whether it is there: what it says of a divided GPU differs between drivers. The first sample tells.
    """
    ids: dict[int, list[str]] = {}
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(device)):
        try:
            part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index)
        except pynvml.NVMLError_NotFound:
            continue
        ids.setdefault(pynvml.nvmlDeviceGetGpuInstanceId(part), []).append(str(pynvml.nvmlDeviceGetUUID(part)))
    for instance, uuids in sorted(ids.items()):
        names = (*sorted(uuids), *(f"{name}/gi{instance}" for name in gpu.device_ids[1:]))
        yield Meter(Unit(gpu.gpu, instance, names, gpu.model), device, State.MEASURED)


def _compare(before: object, after: object, seconds: float) -> Activity:
    """What was done between two samples."""
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    request.numMetrics = len(METRICS)
    request.sample1, request.sample2 = before, after
    for position, metric in enumerate(METRICS):
        request.metrics[position].metricId = metric
    pynvml.nvmlGpmMetricsGet(request)
    dram, tensor, sm = (_ratio(request.metrics[position]) for position in range(len(METRICS)))
    return Activity(seconds, dram, tensor, sm)


def _ratio(metric: pynvml.c_nvmlGpmMetric_t) -> float | None:
    """A percentage as a ratio; None where the driver has no number."""
    if metric.nvmlReturn != pynvml.NVML_SUCCESS or not math.isfinite(metric.value) or metric.value < 0:
        return None
    return float(metric.value) / PERCENT


def _number(field: pynvml.c_nvmlFieldValue_t) -> int | None:
    """The value of a field, by the type that the driver gave it."""
    if field.nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    members = {
        pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    }
    member = members.get(field.valueType)
    return None if member is None else int(getattr(field.value, member))
