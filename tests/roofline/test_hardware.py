"""Peaks of accelerators and how they are found."""

from __future__ import annotations

import pytest

from ridgeline_exporters.roofline.bounds import Roof
from ridgeline_exporters.roofline.hardware import ACCELERATORS, UnknownAccelerator, find


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        pytest.param("H100-SXM5-80GB", "H100-SXM5-80GB", id="name"),
        pytest.param("h100-sxm5-80gb", "H100-SXM5-80GB", id="any case"),
        pytest.param("h100", "H100-SXM5-80GB", id="short name"),
        pytest.param("NVIDIA-H100-80GB-HBM3", "H100-SXM5-80GB", id="node label"),
        pytest.param("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB", id="name the driver gives"),
        pytest.param("NVIDIA-H200", "H200-SXM-141GB", id="H200"),
        pytest.param("H100-PCIe-80GB", "H100-PCIe-80GB", id="H100 PCIe"),
        pytest.param("H100-NVL", "H100-NVL-94GB", id="H100 NVL"),
        pytest.param("NVIDIA-A100-SXM4-80GB", "A100-SXM4-80GB", id="A100"),
        pytest.param("NVIDIA-L40S", "L40S-48GB", id="L40S"),
        pytest.param("B200", "B200-SXM-180GB", id="B200"),
    ],
)
def test_an_accelerator_is_found_by(spelling: str, name: str) -> None:
    assert find(spelling) is ACCELERATORS[name]


def test_an_unknown_accelerator_is_answered_with_the_known_ones_and_the_cure() -> None:
    with pytest.raises(UnknownAccelerator) as caught:
        find("H101")
    message = str(caught.value)
    assert message.startswith("accelerator 'H101' is not known; known are H100-SXM5-80GB, ")
    assert "give its peaks" in message
    assert isinstance(caught.value, KeyError)


@pytest.mark.parametrize(
    ("name", "ridge"),
    [
        pytest.param("H100", 295, id="H100"),
        pytest.param("H200", 206, id="H200"),
        pytest.param("A100", 153, id="A100"),
        pytest.param("B200", 292, id="B200"),
        pytest.param("L40S", 419, id="L40S"),
    ],
)
def test_ridge_at_bf16(name: str, ridge: int) -> None:
    assert round(Roof.of(find(name)).ridge) == ridge


def test_fp8_weights_move_the_ridge_only_where_the_tensor_cores_have_fp8() -> None:
    assert Roof.of(find("H100"), activations="fp8").ridge == pytest.approx(2 * Roof.of(find("H100")).ridge)
    assert Roof.of(find("H100"), activations="fp4").ridge == Roof.of(find("H100")).ridge
    assert Roof.of(find("A100"), activations="fp8").ridge == Roof.of(find("A100")).ridge


def test_peaks_are_dense_and_labels_belong_to_one_accelerator_each() -> None:
    labels = [label for accelerator in ACCELERATORS.values() for label in accelerator.product_labels]
    assert len(labels) == len(set(labels))
    for accelerator in ACCELERATORS.values():
        assert accelerator.product_labels, accelerator.name
        if accelerator.fp8_flops is not None:
            # A sparse number in one of the two columns would double this ratio.
            assert accelerator.fp8_flops / accelerator.bf16_flops == pytest.approx(2, rel=0.02)
