from __future__ import annotations

import pytest

from ridgeline_exporters.gpu.units import Activity, Pod, Unit, Window, holder, plain_device_id

A, B = Pod("n", "a"), Pod("n", "b")


def activity(seconds: float, dram: float | None) -> Activity:
    return Activity(seconds, dram, tensor=0.0, sm=1.0)


def test_a_mean_is_weighted_by_time() -> None:
    window = Window()
    window.add(1.0, activity(1.0, 0.8))
    window.add(4.0, activity(3.0, 0.4))
    assert window.mean(4.0, "dram") == pytest.approx((0.8 + 3 * 0.4) / 4)
    assert window.mean(4.0, "sm") == 1.0


def test_what_is_older_than_the_window_does_not_count() -> None:
    window = Window()
    window.add(1.0, activity(1.0, 0.8))
    window.add(10.0, activity(1.0, 0.2))
    assert window.mean(10.5, "dram") == pytest.approx(0.5)
    assert window.mean(11.5, "dram") == pytest.approx(0.2)
    assert window.mean(20.0, "dram") is None


def test_nothing_is_not_zero() -> None:
    window = Window()
    assert window.mean(0.0, "dram") is None
    window.add(1.0, activity(1.0, None))
    assert window.mean(1.0, "dram") is None
    assert window.mean(1.0, "tensor") == 0.0
    window.clear()
    assert window.mean(1.0, "tensor") is None


@pytest.mark.parametrize(
    ("device_id", "plain"),
    [
        ("GPU-8e3f", "GPU-8e3f"),
        ("GPU-8e3f::0", "GPU-8e3f"),
        ("MIG-8e3f::12", "MIG-8e3f"),
        ("nvidia0/vgpu3", "nvidia0"),
        ("nvidia0/gi5/vgpu3", "nvidia0/gi5"),
    ],
)
def test_a_share_of_a_device_is_the_device(device_id: str, plain: str) -> None:
    assert plain_device_id(device_id) == plain


def test_the_holder_is_the_one_pod_that_has_the_unit_by_any_of_its_names() -> None:
    unit = Unit(0, None, ("GPU-x", "nvidia0"))
    assert holder(unit, {"GPU-x": {A}}) == A
    assert holder(unit, {"nvidia0": {A}, "GPU-x": {A}}) == A
    assert holder(unit, {"GPU-y": {A}}) is None


def test_a_unit_that_pods_share_has_no_holder() -> None:
    assert holder(Unit(0, None, ("GPU-x",)), {"GPU-x": {A, B}}) is None
    part = Unit(0, 3, ("MIG-1", "MIG-2"))
    assert holder(part, {"MIG-1": {A}, "MIG-2": {B}}) is None
    assert holder(part, {"MIG-1": {A}, "MIG-2": {A}}) == A
