"""A decoder's layers summed up: the coefficients that a step's work is made of, over all GPUs of one engine."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import fsum

from ridgeline_exporters.roofline.feed_forward import MixtureOfExperts
from ridgeline_exporters.roofline.formats import SIXTEEN_BIT, SIXTEEN_BIT_BYTES, NumberFormat
from ridgeline_exporters.roofline.layers import Decoder, Layer
from ridgeline_exporters.roofline.matrices import Matrix
from ridgeline_exporters.roofline.mixers import Attention, GatedDeltaNet, LatentAttention
from ridgeline_exporters.roofline.parallelism import Parallelism
from ridgeline_exporters.roofline.quantization import EXPERTS, Quantization
from ridgeline_exporters.roofline.windows import AttentionWindow


@dataclass(frozen=True, slots=True)
class ExpertGroup:
    """Routed experts of equal layers, seen from one engine."""

    layers: int
    block: MixtureOfExperts
    bytes_per_expert: float
    engines: int
    """Data-parallel engines whose tokens hit the same experts and which share the reading."""

    def bytes_read(self, tokens: float) -> float:
        """Bytes that this engine reads of them in a step of so many tokens."""
        distinct = self.block.distinct_experts(tokens * self.engines)
        return self.layers * distinct * self.bytes_per_expert / self.engines

    @property
    def resident_bytes(self) -> float:
        """Bytes of all of them in this engine's memory."""
        return self.layers * self.block.experts * self.bytes_per_expert / self.engines


@dataclass(slots=True)
class PhaseCoefficients:
    """What one phase costs, per unit of its sums (`windows.PhaseSums`)."""

    flops_per_token: float = 0.0
    """In the matrices and recurrences of all layers; attention scores and LM head left out."""
    flops_per_pair: float = 0.0
    """Of a query and a key that it attends to, in layers that see the whole context."""
    flops_per_window_pair: list[float] = field(default_factory=list)
    """The same in layers with a window, by window."""
    flops_per_kv_token: float = 0.0
    """Per cached token that is read: MLA's up-projection of earlier chunks."""
    activation_bytes_per_token: float = 0.0
    activation_bytes_per_kv_token: float = 0.0
    weight_bytes: float = 0.0
    """That only this phase reads: MLA's up-projection, or its absorbed copy."""


class Coefficients:
    """The sums over all layers.

    Args:
        decoder: The layers.
        formats: Of the matrices.
        kv_bytes_per_element: Of the KV cache.
        state_bytes_per_element: Of recurrent states.
        parallelism: How the engine's GPUs share the layers.
    """

    def __init__(
        self,
        decoder: Decoder,
        formats: Quantization,
        kv_bytes_per_element: float,
        state_bytes_per_element: float,
        parallelism: Parallelism,
    ) -> None:
        self._formats = formats
        self._parallelism = parallelism
        self._kv_bytes, self._state_bytes = kv_bytes_per_element, state_bytes_per_element
        self._in_format: Counter[NumberFormat] = Counter()
        self._experts: Counter[tuple[MixtureOfExperts, float]] = Counter()
        self.windows: tuple[AttentionWindow, ...] = tuple(
            dict.fromkeys(layer.mixer.window for layer in decoder.layers if layer.mixer.window is not None)
        )
        self.prefill = PhaseCoefficients(flops_per_window_pair=[0.0] * len(self.windows))
        self.decode = PhaseCoefficients(flops_per_window_pair=[0.0] * len(self.windows))
        self.parameters = self.active_parameters = 0
        self.fixed_weight_bytes = self.duplicate_bytes = 0.0
        self.full_kv_bytes_per_token = 0.0
        self.window_kv_bytes_per_token = [0.0] * len(self.windows)
        self.state_bytes_per_sequence = 0.0
        for index, layer in enumerate(decoder.layers):
            self._add_layer(index, layer)
        self._add_head(decoder)
        self.experts = tuple(
            ExpertGroup(count, block, size, parallelism.data) for (block, size), count in self._experts.items()
        )

    @property
    def weights(self) -> NumberFormat:
        """The format of most weights in the layers."""
        return self._in_format.most_common(1)[0][0] if self._in_format else SIXTEEN_BIT

    def _add_layer(self, index: int, layer: Layer) -> None:
        mixer, block = layer.mixer, layer.feed_forward
        for matrix in (*mixer.matrices, *block.matrices):
            self._add_matrix(index, matrix, own=matrix.module == LatentAttention.UP_PROJECTION)
        self._add_small(layer.norm_parameters + mixer.small_parameters + block.small_parameters)
        for activations in (mixer.activations, block.activations):
            elements = activations.whole * self._parallelism.tensor + activations.shared
            for phase in (self.prefill, self.decode):
                phase.activation_bytes_per_token += SIXTEEN_BIT_BYTES * elements
        if isinstance(block, MixtureOfExperts):
            self._add_experts(index, block)
        if isinstance(mixer, GatedDeltaNet):
            self.prefill.flops_per_token += mixer.prefill_flops
            self.decode.flops_per_token += mixer.decode_flops
            self.state_bytes_per_sequence += mixer.state_bytes(SIXTEEN_BIT_BYTES, self._state_bytes)
        else:
            self._add_attention(mixer)

    def _add_matrix(self, index: int, matrix: Matrix, own: bool) -> None:
        found = self._formats.of(index, matrix.module) if matrix.quantized else SIXTEEN_BIT
        self._in_format[found] += matrix.parameters
        copies = self._parallelism.copies(matrix.shards)
        size = found.bytes_of(matrix.inputs, matrix.outputs) * copies
        self._count(matrix.parameters)
        for phase in (self.prefill, self.decode):
            phase.flops_per_token += 2.0 * matrix.parameters * copies
        if own:
            absorbed = SIXTEEN_BIT_BYTES * matrix.parameters
            self.prefill.weight_bytes += size
            self.decode.weight_bytes += absorbed
            self.duplicate_bytes += absorbed
        else:
            self.fixed_weight_bytes += size

    def _add_small(self, parameters: int) -> None:
        self._count(parameters)
        self.fixed_weight_bytes += SIXTEEN_BIT_BYTES * parameters * self._parallelism.tensor

    def _add_experts(self, index: int, block: MixtureOfExperts) -> None:
        expert, found = block.expert, self._formats.of(index, EXPERTS)
        each = sum(matrix.parameters for matrix in expert.matrices)
        self._in_format[found] += block.experts * each
        size = fsum(found.bytes_of(matrix.inputs, matrix.outputs) for matrix in expert.matrices)
        size += SIXTEEN_BIT_BYTES * expert.small_parameters
        self._experts[(block, size)] += 1
        self.parameters += block.experts * (each + expert.small_parameters)
        self.active_parameters += block.experts_per_token * (each + expert.small_parameters)
        for phase in (self.prefill, self.decode):
            phase.flops_per_token += 2.0 * block.experts_per_token * each

    def _add_attention(self, mixer: Attention | LatentAttention) -> None:
        if isinstance(mixer, LatentAttention):
            up = mixer.up_projection
            self.prefill.flops_per_kv_token += 2.0 * up.parameters
            self.prefill.activation_bytes_per_kv_token += SIXTEEN_BIT_BYTES * (
                up.inputs * self._parallelism.tensor + up.outputs
            )
        kv_bytes = mixer.kv_elements * self._kv_bytes * self._parallelism.copies(mixer.kv_shards)
        if mixer.window is None:
            self.prefill.flops_per_pair += mixer.prefill_flops_per_pair
            self.decode.flops_per_pair += mixer.decode_flops_per_pair
            self.full_kv_bytes_per_token += kv_bytes
        else:
            i = self.windows.index(mixer.window)
            self.prefill.flops_per_window_pair[i] += mixer.prefill_flops_per_pair
            self.decode.flops_per_window_pair[i] += mixer.decode_flops_per_pair
            self.window_kv_bytes_per_token[i] += kv_bytes

    def _add_head(self, decoder: Decoder) -> None:
        """Embedding table, final norm and LM head."""
        table = decoder.vocabulary * decoder.hidden
        head = self._formats.lm_head
        if decoder.tied_embeddings and not self._formats.quantized_tied_head:
            head = SIXTEEN_BIT  # the table that is looked up in is never quantised, and here it is the LM head
        self.fixed_weight_bytes += head.bytes_of(decoder.hidden, decoder.vocabulary)
        self.embedding_bytes = 0.0 if decoder.tied_embeddings else SIXTEEN_BIT_BYTES * table
        self._count(table * (1 if decoder.tied_embeddings else 2))
        self._add_small(decoder.final_norm_parameters)
        self.lm_head_flops = 2.0 * table
        self.activation_bytes_per_sample = SIXTEEN_BIT_BYTES * (
            decoder.hidden * self._parallelism.tensor + decoder.vocabulary
        )

    def _count(self, parameters: int) -> None:
        self.parameters += parameters
        self.active_parameters += parameters
