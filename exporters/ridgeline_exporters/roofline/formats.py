"""Number formats of weights and KV cache, and what a checkpoint's `quantization_config` says about them.

Bytes per element: bf16 (and fp16) 2, fp32 4, fp8 1. An int4 weight is half a byte plus one 16-bit scale per group of
G weights, 0.5 + 2/G: 0.515625 at the usual G = 128. Left out, all below 1 %: zero points of asymmetric int4, FP8
scales (one per tensor, channel or 128 x 128 block), scales of an FP8 KV cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SIXTEEN_BIT_BYTES = 2.0
INT4_GROUP_SIZE = 128

_ALIASES = {
    "bf16": "bf16", "bfloat16": "bf16", "fp16": "bf16", "float16": "bf16", "half": "bf16",
    "fp32": "fp32", "float32": "fp32", "float": "fp32",
    "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
    "int4": "int4", "w4a16": "int4",
}  # fmt: skip
_KV_BYTES = {"bf16": 2.0, "fp32": 4.0, "fp8": 1.0}


class UnsupportedModel(ValueError):  # noqa: N818 - names what is wrong, as the conditions of a fleet do
    """The roofline of this model is not known, and a guess would steer a fleet wrongly.

    Attributes:
        feature: What is not known, such as "MixtralForCausalLM" or "sliding window attention".
        cure: What the reader can do about it.
    """

    def __init__(self, feature: str, cause: str, cure: str) -> None:
        self.feature = feature
        self.cure = cure
        super().__init__(f"{feature}: {cause}; {cure}")


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Format of the weights in the layers' matrices and in the LM head."""

    name: str
    """bf16 (which stands for fp16 too), fp32, fp8 or int4."""
    bytes_per_weight: float
    lm_head_bytes_per_weight: float


SIXTEEN_BIT_WEIGHTS = WeightFormat("bf16", SIXTEEN_BIT_BYTES, SIXTEEN_BIT_BYTES)


def weight_bytes_per_element(name: str, group_size: int = INT4_GROUP_SIZE) -> float:
    """Bytes of one weight; `group_size` counts for int4 only, where zero or less means no groups."""
    if name == "int4":
        return 0.5 + (SIXTEEN_BIT_BYTES / group_size if group_size > 0 else 0.0)
    return {"bf16": 2.0, "fp32": 4.0, "fp8": 1.0}[name]


def parse_format(name: str) -> str:
    """bf16, fp32, fp8 or int4 for any usual spelling of it.

    Raises:
        UnsupportedModel: for a format without a known roofline.
    """
    plain = name.lower().removeprefix("torch.")
    if plain not in _ALIASES:
        raise UnsupportedModel(f"number format {name!r}", "its bytes are not known", "use bf16, fp8 or int4")
    return _ALIASES[plain]


def kv_bytes_per_element(kv_cache: str | None, quantization: Mapping[str, object] | None = None) -> float:
    """Bytes of one element of the KV cache; None and "auto" mean what the checkpoint asks for, else 16 bit."""
    if kv_cache is None or kv_cache == "auto":
        return _KV_BYTES["fp8"] if _asks_for_fp8_cache(quantization or {}) else SIXTEEN_BIT_BYTES
    name = parse_format(kv_cache)
    if name not in _KV_BYTES:
        raise UnsupportedModel(f"KV cache format {kv_cache!r}", "vLLM has no such cache", "use bf16 or fp8")
    return _KV_BYTES[name]


def _asks_for_fp8_cache(quantization: Mapping[str, object]) -> bool:
    scheme = quantization.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        return (scheme.get("type"), scheme.get("num_bits")) == ("float", 8)
    return str(quantization.get("kv_cache_quant_algo", "")).upper() == "FP8"


def weight_format(weights: str | None, lm_head: str | None, quantization: Mapping[str, object] | None) -> WeightFormat:
    """The format in force: what the caller says, else the checkpoint's quantization, else 16 bit.

    `weights` alone stands for every matrix, the LM head included: the least that has to be read, hence a lower bound
    for every checkpoint in that format. Checkpoints usually keep the LM head at 16 bit, and their
    `quantization_config` says so.
    """
    if weights is not None:
        name = parse_format(weights)
        head = parse_format(lm_head) if lm_head is not None else name
        return WeightFormat(name, weight_bytes_per_element(name), weight_bytes_per_element(head))
    found = _from_quantization(quantization) if quantization else SIXTEEN_BIT_WEIGHTS
    if lm_head is None:
        return found
    return WeightFormat(found.name, found.bytes_per_weight, weight_bytes_per_element(parse_format(lm_head)))


def _from_quantization(quantization: Mapping[str, object]) -> WeightFormat:
    method = str(quantization.get("quant_method", "")).lower()
    if method in {"fp8", "fbgemm_fp8"}:
        return WeightFormat("fp8", 1.0, SIXTEEN_BIT_BYTES)
    if method == "modelopt" and str(quantization.get("quant_algo", "")).upper() == "FP8":
        return WeightFormat("fp8", 1.0, SIXTEEN_BIT_BYTES)
    if method in {"gptq", "gptq_marlin", "awq", "awq_marlin"} and _integer(quantization.get("bits")) == 4:
        size = weight_bytes_per_element("int4", _integer(quantization.get("group_size"), INT4_GROUP_SIZE))
        head = size if quantization.get("lm_head") is True else SIXTEEN_BIT_BYTES
        return WeightFormat("int4", size, head)
    if method == "compressed-tensors":
        return _from_compressed_tensors(quantization)
    raise _unknown_quantization(method or "without quant_method")


def _from_compressed_tensors(quantization: Mapping[str, object]) -> WeightFormat:
    groups = quantization.get("config_groups")
    schemes = [group.get("weights") for group in groups.values()] if isinstance(groups, Mapping) else []
    formats = {_compressed_weight(scheme) for scheme in schemes if isinstance(scheme, Mapping)}
    if len(formats) != 1:
        raise _unknown_quantization("compressed-tensors with several or no weight formats")
    name, size = formats.pop()
    ignored = quantization.get("ignore")
    head_ignored = isinstance(ignored, list) and any("lm_head" in str(entry) for entry in ignored)
    return WeightFormat(name, size, SIXTEEN_BIT_BYTES if head_ignored else size)


def _compressed_weight(scheme: Mapping[str, object]) -> tuple[str, float]:
    kind, bits = scheme.get("type"), scheme.get("num_bits")
    if (kind, bits) == ("float", 8):
        return "fp8", 1.0
    if (kind, bits) == ("int", 4):
        return "int4", weight_bytes_per_element("int4", _integer(scheme.get("group_size")))
    raise _unknown_quantization(f"compressed-tensors with {bits}-bit {kind} weights")


def _integer(value: object, default: int = 0) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _unknown_quantization(what: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"quantization {what}",
        "its bytes per weight are not known",
        "serve the model in bf16, fp8 or int4 (GPTQ, AWQ or compressed-tensors with 4 bits)",
    )
