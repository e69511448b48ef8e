"""What the exporter reads once from vLLM's configuration: the model's shape, the peaks and the sizes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline_exporters.engine.control import Limits
from ridgeline_exporters.engine.settings import Settings
from ridgeline_exporters.roofline.bounds import Roof
from ridgeline_exporters.roofline.formats import UnsupportedModel
from ridgeline_exporters.roofline.hardware import UnknownAccelerator, find
from ridgeline_exporters.roofline.model import ModelShape
from ridgeline_exporters.roofline.parallelism import Parallelism

logger = logging.getLogger("vllm.plugins.ridgeline")

# Methods with which vLLM quantizes a 16-bit checkpoint while loading it: the checkpoint's config does not say so.
_ONLINE_QUANTIZATION = {"fp8": ("fp8", "bf16")}
_THIRTY_TWO_BIT = "float32"


@dataclass(frozen=True, slots=True)
class Description:
    """One engine, as far as the numbers depend on it."""

    model: str
    accelerator: str
    vllm_version: str
    dtype: str
    kv_dtype: str
    shape: ModelShape | None
    roof: Roof | None
    kv_capacity_tokens: int
    maximum: Limits
    smallest_tokens: int

    @property
    def coverage(self) -> str:
        """What is counted: `full`, `work` (no peaks, so no utilisation) or `partial`.

        Partial: some of the model's work, or all of it, is not known and a warning says which. Tokens and times always
        are counted.
        """
        if self.shape is None or self.shape.uncounted:
            return "partial"
        return "full" if self.roof is not None else "work"

    def labels(self) -> tuple[str, ...]:
        """Values of the `info` metric, in its order."""
        return (self.model, self.accelerator, self.vllm_version, self.dtype, self.kv_dtype, self.coverage)


def describe(scheduler: Any, settings: Settings) -> Description:
    """Read what is needed from a scheduler that has just been built."""
    config = scheduler.vllm_config
    model, parallel, scheduling = config.model_config, config.parallel_config, scheduler.scheduler_config
    dtype = str(model.dtype).removeprefix("torch.")
    kv_dtype = str(scheduler.cache_config.cache_dtype)
    shared = Parallelism(
        parallel.tensor_parallel_size, parallel.pipeline_parallel_size, getattr(parallel, "data_parallel_size", 1)
    )
    shape = _shape(model, dtype, kv_dtype, shared)
    accelerator, roof = _roof(settings, shape, shared.gpus)
    budget = int(scheduler.max_num_scheduled_tokens)
    whole_prompts = not scheduling.enable_chunked_prefill or getattr(scheduling, "disable_chunked_mm_input", False)
    return Description(
        model=_served_name(model),
        accelerator=accelerator,
        vllm_version=_vllm_version(),
        dtype=dtype,
        kv_dtype=dtype if kv_dtype == "auto" else kv_dtype,
        shape=shape,
        roof=roof,
        kv_capacity_tokens=_capacity(scheduler),
        maximum=Limits(budget, int(scheduling.long_prefill_token_threshold)),
        # A prompt that may not be cut would wait for ever under a smaller budget.
        smallest_tokens=budget if whole_prompts else 1,
    )


def rank(scheduler: Any) -> int:
    """Data-parallel rank of an engine; 0 where it is not told, so that something is served in any case."""
    parallel = getattr(getattr(scheduler, "vllm_config", None), "parallel_config", None)
    found = getattr(parallel, "data_parallel_index", None) or getattr(parallel, "data_parallel_rank", None)
    return found if isinstance(found, int) else 0


def _shape(model: Any, dtype: str, kv_dtype: str, shared: Parallelism) -> ModelShape | None:
    config = model.hf_text_config.to_dict()
    if not config.get("architectures"):
        config["architectures"] = list(model.architectures)
    if not config.get("quantization_config"):  # models that see images too say it of the whole
        config["quantization_config"] = getattr(getattr(model, "hf_config", None), "quantization_config", None)
    cache = dtype if kv_dtype == "auto" and dtype == _THIRTY_TWO_BIT else kv_dtype
    try:
        weights, head = _weights(model.quantization, config, dtype)
        shape = ModelShape.from_config(config, weights, cache, lm_head=head, parallelism=shared)
        if shape.uncounted:
            logger.warning("Ridgeline does not count the work of: %s", ", ".join(shape.uncounted))
        return shape
    except UnsupportedModel as problem:
        logger.warning("Ridgeline counts tokens and times of this engine, but no FLOPs and bytes: %s", problem)
        return None


def _weights(method: str | None, config: Mapping[str, Any], dtype: str) -> tuple[str | None, str | None]:
    if method is not None and not config.get("quantization_config"):
        if method not in _ONLINE_QUANTIZATION:
            raise UnsupportedModel(f"quantization {method}", "its bytes per weight are not known", "use fp8")
        return _ONLINE_QUANTIZATION[method]
    return (dtype, None) if method is None and dtype == _THIRTY_TWO_BIT else (None, None)


def _roof(settings: Settings, shape: ModelShape | None, gpus: int) -> tuple[str, Roof | None]:
    """Name of the accelerator and the peaks of all GPUs of the engine."""
    name = settings.accelerator or _device_name()
    flops, bandwidth = settings.peak_flops, settings.peak_memory_bytes_per_second
    try:
        accelerator = find(name)
    except UnknownAccelerator as problem:
        if flops is None or bandwidth is None:
            logger.warning("Ridgeline publishes no utilisation for this engine: %s", problem)
            return name, None
        return name, Roof(gpus * flops, gpus * bandwidth)
    known = Roof.of(accelerator, gpus, shape.weights.activations if shape is not None else "bf16")
    return accelerator.name, Roof(
        known.flops_per_second if flops is None else gpus * flops,
        known.memory_bytes_per_second if bandwidth is None else gpus * bandwidth,
    )


def _device_name() -> str:
    try:
        from vllm.platforms import current_platform

        return str(current_platform.get_device_name() or "unknown")
    except Exception:  # a platform without names is no reason to have no metrics
        return "unknown"


def _vllm_version() -> str:
    from vllm.version import __version__

    return str(__version__)


def _served_name(model: Any) -> str:
    served = model.served_model_name
    return str(served[0] if isinstance(served, list | tuple) and served else served or model.model)


def _capacity(scheduler: Any) -> int:
    tokens = getattr(scheduler.cache_config, "kv_cache_size_tokens", None)
    return int(tokens or scheduler.cache_config.num_gpu_blocks * scheduler.block_size)
