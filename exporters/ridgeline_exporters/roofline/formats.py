"""Number formats of weights and KV cache: bytes with their scales, and what the tensor cores can do with them.

| format | bits | scale | sources |
|---|---|---|---|
| bf16 (fp16), fp32 | 16, 32 | none | |
| fp8 | 8 | per tensor, 4 bytes per output channel, or 4 bytes per block (DeepSeek-V3: 128 x 128) | arXiv:2412.19437, 3.3 |
| int8 | 8 | 4 bytes per output channel (W8A8), or 2 per group of weights (GPTQ) | compressed-tensors, GPTQModel |
| int4 | 4 | 2 bytes per group of G inputs, half a byte more for a zero point: 0.515625 at G = 128 | AWQ, GPTQ |
| mxfp4 | 4 | 1 byte (E8M0) per 32 inputs: 0.53125 | OCP Microscaling Formats 1.0, table 1 |
| nvfp4 | 4 | 1 byte (E4M3) per 16 inputs, one number per tensor: 0.5625 | NVIDIA, arXiv:2509.25149, section 2 |

Which matrices of a checkpoint have which format is read in `quantization`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

SIXTEEN_BIT_BYTES = 2.0
INT4_GROUP_SIZE = 128


class UnsupportedModel(ValueError):  # noqa: N818 - names what is wrong, as the conditions of a fleet do
    """The roofline of this model is not known, and a guess would steer a fleet wrongly.

    Attributes:
        feature: What is not known, such as "MambaForCausalLM" or "linear attention".
        cure: What the reader can do about it.
    """

    def __init__(self, feature: str, cause: str, cure: str) -> None:
        self.feature = feature
        self.cure = cure
        super().__init__(f"{feature}: {cause}; {cure}")


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """Format of a weight matrix, with its scales."""

    name: str
    """bf16 (which stands for fp16 too), fp32, fp8, int8, int4, mxfp4 or nvfp4."""
    bits: int
    group_inputs: int = 0
    """Inputs that share a scale; 0: all of them."""
    group_outputs: int = 0
    """Outputs that share a scale; 0: all of them. Both 0: one scale per tensor, too little to count."""
    scale_bytes: float = 0.0
    """Of one group, a zero point included."""
    activations: str = "bf16"
    """What the tensor cores multiply with: bf16, fp8, int8 or fp4. Weight-only formats are widened to bf16 first."""

    def bytes_of(self, inputs: int, outputs: int) -> float:
        """Bytes of a matrix with its scales."""
        groups = 0
        if self.group_inputs or self.group_outputs:
            across = -(-inputs // self.group_inputs) if self.group_inputs else 1
            along = -(-outputs // self.group_outputs) if self.group_outputs else 1
            groups = across * along
        return inputs * outputs * self.bits / 8 + groups * self.scale_bytes


SIXTEEN_BIT = NumberFormat("bf16", 16)
THIRTY_TWO_BIT = NumberFormat("fp32", 32)
FP8 = NumberFormat("fp8", 8, activations="fp8")
FP8_PER_CHANNEL = replace(FP8, group_outputs=1, scale_bytes=4.0)
INT8_PER_CHANNEL = NumberFormat("int8", 8, group_outputs=1, scale_bytes=4.0, activations="int8")
MXFP4 = NumberFormat("mxfp4", 4, group_inputs=32, group_outputs=1, scale_bytes=1.0)
NVFP4 = NumberFormat("nvfp4", 4, group_inputs=16, group_outputs=1, scale_bytes=1.0, activations="fp4")


def fp8_in_blocks(inputs: int, outputs: int) -> NumberFormat:
    """FP8 with a 32-bit scale per block of so many inputs and outputs."""
    return replace(FP8, group_inputs=inputs, group_outputs=outputs, scale_bytes=4.0)


def grouped_integer(bits: int, group_size: int = INT4_GROUP_SIZE, zero_points: bool = False) -> NumberFormat:
    """Weight-only integers with a 16-bit scale per group of inputs; a group size of zero or less: per channel."""
    return NumberFormat(
        f"int{bits}", bits, group_inputs=max(0, group_size), group_outputs=1,
        scale_bytes=SIXTEEN_BIT_BYTES + (bits / 8 if zero_points else 0.0),
    )  # fmt: skip


# What a caller may ask for by name. Scales per channel of fp8 and int8 are left out here (below 0.1 %).
NAMED = {
    "bf16": SIXTEEN_BIT,
    "fp32": THIRTY_TWO_BIT,
    "fp8": FP8,
    "int8": replace(INT8_PER_CHANNEL, group_outputs=0, scale_bytes=0.0),
    "int4": grouped_integer(4),
    "mxfp4": MXFP4,
    "nvfp4": NVFP4,
}

_ALIASES = {
    "bf16": "bf16", "bfloat16": "bf16", "fp16": "bf16", "float16": "bf16", "half": "bf16",
    "fp32": "fp32", "float32": "fp32", "float": "fp32",
    "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
    "int8": "int8", "w8a8": "int8", "int4": "int4", "w4a16": "int4", "mxfp4": "mxfp4", "nvfp4": "nvfp4",
}  # fmt: skip
_KV_BYTES = {"bf16": 2.0, "fp32": 4.0, "fp8": 1.0}


def parse_format(name: str) -> NumberFormat:
    """The format for any usual spelling of its name.

    Raises:
        UnsupportedModel: for a format without a known roofline.
    """
    plain = name.lower().removeprefix("torch.")
    if plain not in _ALIASES:
        raise UnsupportedModel(f"number format {name!r}", "its bytes are not known", f"use one of {', '.join(NAMED)}")
    return NAMED[_ALIASES[plain]]


def parse_kv_format(name: str) -> float:
    """Bytes of one element of a KV cache in this format.

    Raises:
        UnsupportedModel: for a format whose bytes are not known, such as vLLM's packed 4-bit caches.
    """
    plain = _ALIASES.get(name.lower().removeprefix("torch."), "")
    if plain not in _KV_BYTES:
        raise UnsupportedModel(f"KV cache format {name!r}", "its bytes are not known", "use bf16 or fp8")
    return _KV_BYTES[plain]
