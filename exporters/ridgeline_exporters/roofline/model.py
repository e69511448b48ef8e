"""A model in certain formats on the GPUs of one engine: what `work` and everybody else asks it.

What a layer costs is told in `mixers` and `feed_forward`, how GPUs share it in `parallelism`, which format its matrices have in
`quantization`, how a config.json is read in `families`; `coefficients` sums all of it up:

    FLOPs per token        2 x matrices that a token goes through: of the experts, those that it takes  (LM head apart)
    FLOPs per pair         of a token and one that it attends to, apart for each window and for each phase (MLA)
    KV bytes per token     elements of a layer x bytes of the cache format x copies, apart for each window
    weight bytes           matrices in their formats with scales, biases and norms at 16 bit, LM head

The embedding table is a look-up of a few rows: no FLOPs and no bytes of a step, unless it is tied to the LM head and so
read as that. Biases and norms count as parameters and bytes, not as FLOPs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from math import fsum

from ridgeline_exporters.roofline.coefficients import Coefficients, ExpertGroup, PhaseCoefficients
from ridgeline_exporters.roofline.config_fields import text_config
from ridgeline_exporters.roofline.families import read_decoder
from ridgeline_exporters.roofline.formats import (
    SIXTEEN_BIT_BYTES,
    NumberFormat,
    UnsupportedModel,
    parse_kv_format,
)
from ridgeline_exporters.roofline.layers import Decoder, Layer
from ridgeline_exporters.roofline.mixers import Attention, LatentAttention
from ridgeline_exporters.roofline.parallelism import ONE_GPU, Parallelism
from ridgeline_exporters.roofline.quantization import Quantization, kv_bytes_per_element, quantization
from ridgeline_exporters.roofline.windows import AttentionWindow

__all__ = ["ExpertGroup", "ModelShape", "PhaseCoefficients", "UnsupportedModel"]


class ModelShape:
    """A model's coefficients, computed once. Not changed afterwards.

    Args:
        decoder: The layers.
        formats: Of the matrices; None means 16 bit.
        kv_bytes_per_element: Of the KV cache.
        parallelism: How the engine's GPUs share the layers. All sums are over these GPUs.
        state_bytes_per_element: Of the recurrent states of linear attention, which vLLM keeps in the model's format
            unless told otherwise (`--mamba-ssm-cache-dtype`).
    """

    def __init__(
        self,
        decoder: Decoder,
        formats: Quantization | None = None,
        kv_bytes_per_element: float = SIXTEEN_BIT_BYTES,
        parallelism: Parallelism = ONE_GPU,
        state_bytes_per_element: float = SIXTEEN_BIT_BYTES,
    ) -> None:
        sums = Coefficients(
            decoder, formats or Quantization(), kv_bytes_per_element, state_bytes_per_element, parallelism
        )
        self.decoder = decoder
        self.parallelism = parallelism
        self.kv_bytes_per_element = kv_bytes_per_element
        self.weights: NumberFormat = sums.weights
        """The format that most weights of the layers are in."""
        self.parameters: int = sums.parameters
        self.active_parameters: int = sums.active_parameters
        """Those that one token meets: without the experts that it does not take, with both embedding tables."""
        self.windows: tuple[AttentionWindow, ...] = sums.windows
        """Distinct windows; layers that see the whole context are counted apart from these."""
        self.prefill: PhaseCoefficients = sums.prefill
        self.decode: PhaseCoefficients = sums.decode
        self.lm_head_flops: float = sums.lm_head_flops
        """FLOPs of the LM head for one sampled position."""
        self.activation_bytes_per_sample: float = sums.activation_bytes_per_sample
        """Input and output of the LM head at 16 bit."""
        self.full_kv_bytes_per_token: float = sums.full_kv_bytes_per_token
        """KV bytes in layers that see the whole context."""
        self.window_kv_bytes_per_token: tuple[float, ...] = tuple(sums.window_kv_bytes_per_token)
        """KV bytes in layers with a window, by window."""
        self.state_bytes_per_sequence: float = sums.state_bytes_per_sequence
        """Of linear attention: read and written once a step and sequence."""
        self.fixed_weight_bytes: float = sums.fixed_weight_bytes
        """Bytes of weights that every step reads, whatever it holds."""
        self.experts: tuple[ExpertGroup, ...] = sums.experts
        self.kv_bytes_per_token: float = self.full_kv_bytes_per_token + fsum(self.window_kv_bytes_per_token)
        """What a token writes into the cache, over all layers and GPUs."""
        self.weight_bytes: float = (
            sums.fixed_weight_bytes + sums.prefill.weight_bytes + fsum(group.resident_bytes for group in sums.experts)
        )
        """Bytes that a step reads which hits all experts: all weights but an untied embedding table."""
        self.resident_bytes: float = self.weight_bytes + sums.embedding_bytes + sums.duplicate_bytes
        """Bytes that the weights take in memory: with the embedding table, and with MLA's absorbed copies."""

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, object],
        weights: str | None = None,
        kv_cache: str | None = None,
        *,
        lm_head: str | None = None,
        parallelism: Parallelism = ONE_GPU,
    ) -> ModelShape:
        """The shape that a Hugging Face `config.json` describes.

        Args:
            config: The parsed file, or `hf_config.to_dict()`.
            weights: Format of all matrices; None takes it from `quantization_config`, or 16 bit where there is none
                (vLLM serves float32 checkpoints in 16 bit too).
            kv_cache: Format of the KV cache; None and "auto" mean what the checkpoint asks for, else 16 bit.
            lm_head: Format of the LM head where it differs from `weights`: vLLM's own `--quantization fp8` leaves it
                at bf16.
            parallelism: How the engine's GPUs share the model.

        Raises:
            UnsupportedModel: naming the architecture or feature that has no known roofline, and the cure.
        """
        found = config.get("quantization_config")
        stored = found if isinstance(found, Mapping) else None
        states = text_config(config).get("mamba_ssm_dtype")  # Qwen3.5 asks for 32 bit
        return cls(
            read_decoder(config),
            quantization(weights, lm_head, stored),
            kv_bytes_per_element(kv_cache, stored),
            parallelism,
            SIXTEEN_BIT_BYTES if states is None else parse_kv_format(str(states)),
        )

    @property
    def architecture(self) -> str:
        """Name of the model's class."""
        return self.decoder.architecture

    @property
    def uncounted(self) -> tuple[str, ...]:
        """Parts of the model whose work is left out; empty when all is counted."""
        return self.decoder.uncounted

    @property
    def linear_flops_per_token(self) -> float:
        """FLOPs of a prompt token outside attention scores and LM head."""
        return self.prefill.flops_per_token

    @cached_property
    def groups(self) -> tuple[tuple[Layer, int], ...]:
        """Distinct layers and how many there are of each."""
        return tuple(Counter(self.decoder.layers).items())

    @property
    def query_heads(self) -> int:
        """Attention heads: what tensor parallelism has to divide."""
        return max(mixer.query_heads for mixer in self._attentions())

    @property
    def kv_heads(self) -> int:
        """KV heads; 1 for latent attention, whose cache serves all heads."""
        return max(mixer.kv_shards for mixer in self._attentions())

    def step_weight_bytes(self, prefill_tokens: float, decode_tokens: float) -> float:
        """Bytes of weights that a step of so many tokens reads, each once."""
        size = self.fixed_weight_bytes + self.expert_bytes(prefill_tokens + decode_tokens)
        size += self.prefill.weight_bytes if prefill_tokens else 0.0
        return size + (self.decode.weight_bytes if decode_tokens else 0.0)

    def expert_bytes(self, tokens: float) -> float:
        """Bytes of routed experts that a step of so many tokens reads, on average over uniform routing."""
        return fsum(group.bytes_read(tokens) for group in self.experts)

    def sequence_bytes(self, context: int) -> float:
        """Bytes of memory that one sequence takes with so many tokens: cache within each window, and states."""
        kept = self.full_kv_bytes_per_token * context + self.state_bytes_per_sequence
        for window, each in zip(self.windows, self.window_kv_bytes_per_token, strict=True):
            kept += each * window.kept(context)
        return kept

    def _attentions(self) -> list[Attention | LatentAttention]:
        return [layer.mixer for layer in self.decoder.layers if isinstance(layer.mixer, Attention | LatentAttention)]
