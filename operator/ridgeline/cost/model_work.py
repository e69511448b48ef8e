"""What the cost model asks of a model's shape: the coefficients of a step's work, over all GPUs of an engine."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline_exporters.roofline.model import ModelShape


@dataclass(frozen=True, slots=True)
class ModelWork:
    """Work of a step per unit of what the step holds; everything but attention is called GEMM here."""

    layers: int
    hidden: int
    gemm_flops_per_token: float
    gemm_flops_per_sample: float
    weight_bytes: float
    """Read by every step."""
    gemm_bytes_per_token: float
    """Activations read and written, KV written."""
    gemm_bytes_per_sample: float
    attention_flops_per_pair: float
    kv_bytes_per_token: float
    """Read per cached token, all copies together."""

    @classmethod
    def of(cls, shape: ModelShape, tensor_parallel: int) -> ModelWork:
        """The work of this model on so many GPUs; with fewer KV heads than GPUs, several GPUs hold the same head."""
        kv_bytes = shape.kv_bytes_per_token * max(1.0, tensor_parallel / shape.kv_heads)
        return cls(
            layers=shape.layers,
            hidden=shape.hidden,
            gemm_flops_per_token=shape.linear_flops_per_token,
            gemm_flops_per_sample=shape.lm_head_flops,
            weight_bytes=shape.weight_bytes,
            gemm_bytes_per_token=shape.activation_bytes_per_token + kv_bytes,
            gemm_bytes_per_sample=shape.activation_bytes_per_sample,
            attention_flops_per_pair=shape.attention_flops_per_pair,
            kv_bytes_per_token=kv_bytes,
        )
