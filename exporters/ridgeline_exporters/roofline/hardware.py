"""Peaks of accelerators: dense FLOP/s, memory bandwidth, memory and the link to other engines.

Every FLOP/s value is dense; data sheets headline twice as much, with 2:4 sparsity, which vLLM does not use. Values
are per GPU and from NVIDIA's data sheets (H100, H100 NVL, H200, A100, L40S, L4, A10, H20, Blackwell and Grace Hopper
architecture papers), cross-checked against the system files of ai-dynamo/aiconfigurator where it has one (H100, H200,
B200, A100, L40S). Three choices: the L40S data sheet gives FP8 both as 733 (dense) and 1,466 (sparse), B200 bandwidth
is 7.7 TB/s as in aiconfigurator (vendors quote up to 8), and memory is what the label of the product says in powers
of ten, of which a driver keeps some back.

`link_bytes_per_second` is the way a KV cache takes between engines: one network card per GPU in the reference
servers, one way (400 Gb/s beside Hopper and L40S, 800 Gb/s beside Blackwell, 200 Gb/s beside A100, else PCIe-bound
100 Gb/s). Clusters differ most here; a fleet's `hardware.peaks.linkGigabytesPerSecond` overrides it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TERA = 1e12
GIGA = 1e9


class UnknownAccelerator(KeyError):  # noqa: N818 - names what is wrong, as the conditions of a fleet do
    """No accelerator has this name or product label."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.message = (
            f"accelerator {name!r} is not known; known are {', '.join(ACCELERATORS)}; "
            "use one of these, or give its peaks (teraflops and memory bandwidth) yourself"
        )
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message  # KeyError would print the repr


@dataclass(frozen=True, slots=True)
class Accelerator:
    """Peaks of one GPU."""

    name: str
    bf16_flops: float
    """Dense BF16 (and FP16) FLOP/s of the tensor cores."""
    fp8_flops: float | None
    """Dense FP8 FLOP/s; None where the tensor cores have no FP8."""
    memory_bytes_per_second: float
    memory_bytes: float
    link_bytes_per_second: float
    """One-way speed at which another engine can read from this GPU."""
    product_labels: tuple[str, ...] = ()
    """Values of the node label nvidia.com/gpu.product; time-slicing and MIG suffixes are left out."""
    fp4_flops: float | None = None
    """Dense FP4 FLOP/s; None where the tensor cores have no FP4."""

    @property
    def int8_flops(self) -> float:
        """Dense INT8 operations per second: twice BF16 on all tensor cores from Turing to Blackwell B200."""
        return 2.0 * self.bf16_flops

    def peak_flops(self, activations: str) -> float:
        """FLOP/s that GEMMs can reach with activations in this format (`formats.NumberFormat.activations`).

        The narrower of weights and activations does not count: 4-bit weights of a weight-only format are widened to
        16 bit before the tensor cores see them, and FP8 and FP4 are on hardware that lacks them.
        """
        peaks = {"fp8": self.fp8_flops, "int8": self.int8_flops, "fp4": self.fp4_flops}
        return peaks.get(activations) or self.bf16_flops


def _gpu(
    name: str, bf16_tera: float, fp8_tera: float | None, memory_giga_per_s: float, memory_giga: float,
    link_giga_per_s: float, *labels: str, fp4_tera: float | None = None,
) -> Accelerator:  # fmt: skip
    return Accelerator(
        name=name,
        bf16_flops=bf16_tera * TERA,
        fp8_flops=None if fp8_tera is None else fp8_tera * TERA,
        memory_bytes_per_second=memory_giga_per_s * GIGA,
        memory_bytes=memory_giga * GIGA,
        link_bytes_per_second=link_giga_per_s * GIGA,
        product_labels=labels,
        fp4_flops=None if fp4_tera is None else fp4_tera * TERA,
    )


# name, BF16 and FP8 TFLOPS, memory GB/s and GB, link GB/s, product labels
_ALL = (
    _gpu("H100-SXM5-80GB", 989, 1978, 3350, 80, 50, "NVIDIA-H100-80GB-HBM3"),
    _gpu("H100-PCIe-80GB", 756, 1513, 2039, 80, 50, "NVIDIA-H100-PCIe"),
    _gpu("H100-NVL-94GB", 835, 1671, 3900, 94, 50, "NVIDIA-H100-NVL"),
    _gpu("H200-SXM-141GB", 989, 1978, 4800, 141, 50, "NVIDIA-H200"),
    _gpu("H200-NVL-141GB", 835, 1671, 4800, 141, 50, "NVIDIA-H200-NVL"),
    _gpu("H20-SXM-96GB", 148, 296, 4000, 96, 50, "NVIDIA-H20"),
    _gpu("GH200-96GB", 989, 1978, 4000, 96, 50, "NVIDIA-GH200-480GB"),
    _gpu("B200-SXM-180GB", 2250, 4500, 7700, 180, 100, "NVIDIA-B200", fp4_tera=9000),
    _gpu("GB200-186GB", 2500, 5000, 8000, 186, 100, "NVIDIA-GB200", fp4_tera=10000),
    _gpu("A100-SXM4-80GB", 312, None, 2039, 80, 25, "NVIDIA-A100-SXM4-80GB"),
    _gpu("A100-SXM4-40GB", 312, None, 1555, 40, 25, "NVIDIA-A100-SXM4-40GB"),
    _gpu("A100-PCIe-80GB", 312, None, 1935, 80, 25, "NVIDIA-A100-80GB-PCIe"),
    _gpu("A100-PCIe-40GB", 312, None, 1555, 40, 25, "NVIDIA-A100-PCIE-40GB"),
    _gpu("L40S-48GB", 362, 733, 864, 48, 50, "NVIDIA-L40S"),
    _gpu("L4-24GB", 121, 242, 300, 24, 12.5, "NVIDIA-L4"),
    _gpu("A10-24GB", 125, None, 600, 24, 12.5, "NVIDIA-A10"),
    _gpu("A10G-24GB", 70, None, 600, 24, 12.5, "NVIDIA-A10G"),
)

ACCELERATORS: Mapping[str, Accelerator] = {accelerator.name: accelerator for accelerator in _ALL}

_SHORT_NAMES = {
    "h100": "H100-SXM5-80GB",
    "h100-sxm": "H100-SXM5-80GB",
    "h100-pcie": "H100-PCIe-80GB",
    "h100-nvl": "H100-NVL-94GB",
    "h200": "H200-SXM-141GB",
    "h200-nvl": "H200-NVL-141GB",
    "h20": "H20-SXM-96GB",
    "gh200": "GH200-96GB",
    "b200": "B200-SXM-180GB",
    "gb200": "GB200-186GB",
    "a100": "A100-SXM4-80GB",
    "l40s": "L40S-48GB",
    "l4": "L4-24GB",
    "a10": "A10-24GB",
    "a10g": "A10G-24GB",
}

_BY_SPELLING: Mapping[str, Accelerator] = {
    **{short: ACCELERATORS[name] for short, name in _SHORT_NAMES.items()},
    **{label.lower(): accelerator for accelerator in _ALL for label in accelerator.product_labels},
    **{name.lower(): accelerator for name, accelerator in ACCELERATORS.items()},
}


def find(name: str) -> Accelerator:
    """The accelerator with this name, short name (h100), product label or driver name, in any case.

    Raises:
        UnknownAccelerator: with the names that are known.
    """
    spelling = "-".join(name.lower().split())  # the driver writes blanks where the node label has dashes
    try:
        return _BY_SPELLING[spelling]
    except KeyError:
        raise UnknownAccelerator(name) from None
