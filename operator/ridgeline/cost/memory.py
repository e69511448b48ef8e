"""What the memory of an engine has room for beside the weights."""

from __future__ import annotations

from ridgeline_exporters.roofline.hardware import Accelerator
from ridgeline_exporters.roofline.model import ModelShape

USABLE_MEMORY = 0.9
"""Part of the memory that vLLM takes for weights and cache unless told otherwise."""


def cache_bytes(shape: ModelShape, accelerator: Accelerator) -> float:
    """Bytes that are left for KV cache and states on all GPUs of an engine; 0 or less: the weights do not fit."""
    return shape.parallelism.gpus * accelerator.memory_bytes * USABLE_MEMORY - shape.resident_bytes
