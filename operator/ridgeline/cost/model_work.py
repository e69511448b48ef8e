"""What the cost model asks of a model's shape: the coefficients of a step's work, over all GPUs of an engine.

A step is told by sums over the whole contexts, and layers with a window see less of them. Decodes have to stay linear in
their KV tokens, so a layer with a short window counts as one whose window is full, a layer with a long one (from
`LONG_WINDOW_TOKENS` on) as one that sees the whole context: both are upper estimates.
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline_exporters.roofline.model import ModelShape

LONG_WINDOW_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class ModelWork:
    """Work of a step per unit of what the step holds; everything but attention is called GEMM here."""

    shape: ModelShape
    layers: int
    expert_layers: int
    hidden: int
    gemm_flops_per_token: tuple[float, float]
    """Of a prompt token and of a decode."""
    gemm_flops_per_cached_token: float
    """MLA: keys and values of earlier chunks are made anew."""
    gemm_flops_per_sample: float
    fixed_weight_bytes: tuple[float, float, float]
    """Of every step but for routed experts; more with prompts; more with decodes."""
    gemm_bytes_per_token: float
    """Activations read and written, KV written."""
    gemm_bytes_per_sample: float
    pair_flops: float
    """Attention of a prompt: of a pair, in layers that see the whole context or a long window of it."""
    windows: tuple[tuple[int, float, float], ...]
    """Short windows: their length, and FLOPs of a prompt's pair and bytes of a cached token in layers with them."""
    decode_pair_flops: float
    kv_bytes_per_token: float
    """Read per cached token, in layers that see the whole context or a long window of it."""
    decode_window_flops: float
    """Attention of one decode in layers with a short window."""
    decode_window_bytes: float
    """Read by one decode in these layers, and the states of linear attention, read and written."""

    @classmethod
    def of(cls, shape: ModelShape) -> ModelWork:
        """The work of this model on its GPUs."""
        prefill, decode = shape.prefill, shape.decode
        pair, decode_pair, kv_bytes = prefill.flops_per_pair, decode.flops_per_pair, shape.full_kv_bytes_per_token
        short, window_flops, window_bytes = [], 0.0, 2.0 * shape.state_bytes_per_sequence
        for index, window in enumerate(shape.windows):
            prompt_flops, decode_flops = prefill.flops_per_window_pair[index], decode.flops_per_window_pair[index]
            if window.tokens < LONG_WINDOW_TOKENS:
                short.append((window.tokens, prompt_flops, shape.window_kv_bytes_per_token[index]))
                window_flops += window.tokens * decode_flops
                window_bytes += window.tokens * shape.window_kv_bytes_per_token[index]
            else:
                pair, decode_pair = pair + prompt_flops, decode_pair + decode_flops
                kv_bytes += shape.window_kv_bytes_per_token[index]
        return cls(
            shape=shape,
            layers=len(shape.decoder.layers),
            expert_layers=sum(group.layers for group in shape.experts),
            hidden=shape.decoder.hidden,
            gemm_flops_per_token=(prefill.flops_per_token, decode.flops_per_token),
            gemm_flops_per_cached_token=prefill.flops_per_kv_token,
            gemm_flops_per_sample=shape.lm_head_flops,
            fixed_weight_bytes=(shape.fixed_weight_bytes, prefill.weight_bytes, decode.weight_bytes),
            gemm_bytes_per_token=prefill.activation_bytes_per_token + shape.kv_bytes_per_token,
            gemm_bytes_per_sample=shape.activation_bytes_per_sample,
            pair_flops=pair,
            windows=tuple(short),
            decode_pair_flops=decode_pair,
            kv_bytes_per_token=kv_bytes,
            decode_window_flops=window_flops,
            decode_window_bytes=window_bytes,
        )
