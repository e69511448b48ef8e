"""What a checkpoint's `quantization_config` says: the format of each matrix, by the name of its module.

The methods differ in what they leave in 16 bit. Never quantised by vLLM 0.32, whatever a config says: embedding tables,
routers of experts (their modules are built without a quantisation config), and the LM head unless the config names it.
MXFP4 (gpt-oss) covers the experts only (`vllm/model_executor/layers/quantization/mxfp4.py`). Exceptions are listed as
`ignore` (compressed-tensors, ModelOpt), `exclude_modules` (ModelOpt), `modules_to_not_convert` (AWQ, FP8, MXFP4) or
`ignored_layers` (FP8).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ridgeline_exporters.roofline.formats import (
    FP8,
    FP8_PER_CHANNEL,
    INT4_GROUP_SIZE,
    INT8_PER_CHANNEL,
    MXFP4,
    NVFP4,
    SIXTEEN_BIT,
    SIXTEEN_BIT_BYTES,
    NumberFormat,
    UnsupportedModel,
    fp8_in_blocks,
    grouped_integer,
    parse_format,
    parse_kv_format,
)

LM_HEAD = "lm_head"
EXPERTS = "mlp.experts"
"""Module of the routed experts, under the name that most checkpoints use."""

# Where checkpoints put the decoder: alone, or inside a model that sees images too.
_PREFIXES = ("model.", "language_model.model.", "model.language_model.", "")
_NAMES_OF_EXPERTS = (EXPERTS, "block_sparse_moe.experts", "feed_forward.experts")
_PARTS_OF_EXPERTS = ("gate_proj", "w1", "gate_up_proj")


@dataclass(frozen=True, slots=True)
class Rule:
    """Modules that share a format."""

    format: NumberFormat
    targets: tuple[str, ...] = ()
    """Patterns of module names; none: all of them."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """Formats by module."""

    rules: tuple[Rule, ...] = ()
    """The first that matches holds."""
    ignored: tuple[str, ...] = ()
    """Patterns of modules that stay in 16 bit."""
    lm_head: NumberFormat = SIXTEEN_BIT
    experts_only: bool = False
    quantized_tied_head: bool = False
    """Whether `lm_head` holds for a table that is looked up in as well: only if the caller asked for it."""

    def of(self, layer: int, module: str) -> NumberFormat:
        """Format of a module, named as in `model.layers.<layer>.<module>` of a checkpoint."""
        if self.experts_only and module != EXPERTS:
            return SIXTEEN_BIT
        names = _names(layer, module)
        if any(_matches(pattern, names) for pattern in self.ignored):
            return SIXTEEN_BIT
        for rule in self.rules:
            if not rule.targets or any(_matches(target, names) for target in rule.targets):
                return rule.format
        return SIXTEEN_BIT


def _names(layer: int, module: str) -> list[str]:
    if module == EXPERTS:  # one expert stands for all: formats that differ between experts are not known to exist
        modules = list(_NAMES_OF_EXPERTS)
        modules += [f"{name}.0.{part}" for name in _NAMES_OF_EXPERTS for part in _PARTS_OF_EXPERTS]
    else:
        modules = [module]
        if module.startswith("mlp."):
            modules += [module.replace("mlp.", f"{other}.", 1) for other in ("block_sparse_moe", "feed_forward")]
    return [f"{prefix}layers.{layer}.{name}" for prefix in _PREFIXES for name in modules]


def _matches(pattern: str, names: Sequence[str]) -> bool:
    if pattern == "Linear":  # the class of all matrices, in compressed-tensors
        return True
    if pattern.startswith("re:"):
        found = re.compile(pattern[3:])
        return any(found.match(name) for name in names)
    if "*" in pattern:
        return any(fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*") for name in names)
    dotted = f".{pattern}."
    return any(dotted in f".{name}." for name in names)


def _ignores_lm_head(patterns: Sequence[str]) -> bool:
    return any(_matches(pattern, [LM_HEAD]) for pattern in patterns if pattern != "Linear")


def quantization(weights: str | None, lm_head: str | None, config: Mapping[str, object] | None) -> Quantization:
    """The formats in force: what the caller says, else the checkpoint's config, else 16 bit.

    `weights` alone stands for every matrix, the LM head included: the least that has to be read, hence a lower bound
    for every checkpoint in that format. Checkpoints usually keep the LM head in 16 bit, and their config says so.

    Raises:
        UnsupportedModel: naming the method or format that is not known.
    """
    head = None if lm_head is None else parse_format(lm_head)
    if weights is not None:
        chosen = parse_format(weights)
        return Quantization((Rule(chosen),), lm_head=head or chosen, quantized_tied_head=True)
    found = _from_config(config) if config else Quantization()
    if head is None:
        return found
    return Quantization(found.rules, found.ignored, head, found.experts_only, quantized_tied_head=True)


def kv_bytes_per_element(kv_cache: str | None, config: Mapping[str, object] | None = None) -> float:
    """Bytes of one element of the KV cache; None and "auto" mean what the checkpoint asks for, else 16 bit."""
    if kv_cache is None or kv_cache == "auto":
        return 1.0 if _asks_for_fp8_cache(config or {}) else SIXTEEN_BIT_BYTES
    return parse_kv_format(kv_cache)


def _asks_for_fp8_cache(config: Mapping[str, object]) -> bool:
    scheme = config.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        return (scheme.get("type"), scheme.get("num_bits")) == ("float", 8)
    return str(config.get("kv_cache_quant_algo", "")).upper() == "FP8"


def _from_config(config: Mapping[str, object]) -> Quantization:
    method = str(config.get("quant_method", "")).lower()
    ignored = tuple(
        str(entry)
        for field in ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers")
        for entry in _list(config.get(field))
    )
    if method in {"fp8", "fbgemm_fp8"}:
        return Quantization((Rule(_fp8(config, method)),), ignored)
    if method == "mxfp4" or method == "gpt_oss_mxfp4":
        return Quantization((Rule(MXFP4),), ignored, experts_only=True)
    if method.startswith("modelopt"):
        algorithm = str(config.get("quant_algo", "")).upper()
        formats = {"FP8": FP8, "NVFP4": NVFP4}
        if algorithm in formats:
            return Quantization((Rule(formats[algorithm]),), ignored)
        raise _unknown(f"modelopt with {algorithm or 'no quant_algo'}")
    if method in {"gptq", "gptq_marlin", "awq", "awq_marlin", "auto-round", "auto_round"}:
        return _integers(config, method, ignored)
    if method == "compressed-tensors":
        return _from_compressed_tensors(config, ignored)
    raise _unknown(method or "without quant_method")


def _fp8(config: Mapping[str, object], method: str) -> NumberFormat:
    block = _list(config.get("weight_block_size"))
    if len(block) == 2 and all(isinstance(size, int) for size in block):
        return fp8_in_blocks(int(str(block[1])), int(str(block[0])))  # the config says outputs first
    return FP8_PER_CHANNEL if method == "fbgemm_fp8" else FP8


def _integers(config: Mapping[str, object], method: str, ignored: tuple[str, ...]) -> Quantization:
    bits = _integer(config.get("bits", config.get("w_bit")))
    overrides = config.get("dynamic") or {}
    if bits not in {4, 8} or not isinstance(overrides, Mapping) or any(not str(k).startswith("-:") for k in overrides):
        raise _unknown(f"{method} with {'overrides per module' if overrides else f'{bits} bits'}")
    ignored += tuple(f"re:.*{str(pattern)[2:]}" for pattern in overrides)
    size = _integer(config.get("group_size", config.get("q_group_size")), INT4_GROUP_SIZE)
    asymmetric = config.get("zero_point", True) is True if method.startswith("awq") else config.get("sym") is False
    found = grouped_integer(bits, size, asymmetric)
    return Quantization((Rule(found),), ignored, found if config.get("lm_head") is True else SIXTEEN_BIT)


def _from_compressed_tensors(config: Mapping[str, object], ignored: tuple[str, ...]) -> Quantization:
    groups = config.get("config_groups")
    rules = []
    for group in groups.values() if isinstance(groups, Mapping) else ():
        scheme = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(scheme, Mapping):
            targets = tuple(str(target) for target in _list(group.get("targets"))) or ("Linear",)
            rules.append(Rule(_compressed(scheme, group.get("input_activations")), targets))
    if not rules:
        raise _unknown("compressed-tensors without weight formats")
    rules.sort(key=lambda rule: "Linear" in rule.targets)  # names are more precise than the class of all
    everything = next((rule.format for rule in rules if "Linear" in rule.targets), SIXTEEN_BIT)
    return Quantization(tuple(rules), ignored, SIXTEEN_BIT if _ignores_lm_head(ignored) else everything)


def _compressed(scheme: Mapping[str, object], inputs: object) -> NumberFormat:
    kind, bits = scheme.get("type"), scheme.get("num_bits")
    size, strategy = _integer(scheme.get("group_size")), str(scheme.get("strategy", ""))
    if (kind, bits) == ("float", 8):
        block = _list(scheme.get("block_structure"))
        if strategy == "block" and len(block) == 2:
            return fp8_in_blocks(_integer(block[1]), _integer(block[0]))
        return FP8_PER_CHANNEL if strategy == "channel" else FP8
    if (kind, bits) == ("float", 4):
        return NVFP4 if size == NVFP4.group_inputs else MXFP4
    if (kind, bits) == ("int", 8) and isinstance(inputs, Mapping):
        return INT8_PER_CHANNEL
    if kind == "int" and bits in {4, 8}:
        return grouped_integer(_integer(bits), size, scheme.get("symmetric") is False)
    raise _unknown(f"compressed-tensors with {bits}-bit {kind} weights")


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []


def _integer(value: object, default: int = 0) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _unknown(what: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"quantization {what}",
        "its bytes per weight are not known",
        "serve the model in bf16, FP8, INT8 (W8A8), 4-bit GPTQ or AWQ, MXFP4 or NVFP4",
    )
