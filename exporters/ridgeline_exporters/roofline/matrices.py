"""What layers are made of: matrices, and what their GEMMs move.

FLOPs count a multiplication and an addition as two, as `torch.utils.flop_counter` does: 2 x inputs x outputs for a token
and a matrix. Softmax, norms, activation functions, rotary embeddings and residual sums are left out (below 1 %).
Activations are the inputs and outputs of the GEMMs at 16 bit, once each.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight matrix of a layer."""

    module: str
    """Its name within the layer, as in checkpoints: self_attn.q_proj."""
    inputs: int
    outputs: int
    shards: int | None = None
    """Parts into which tensor parallelism can cut it at most; None: any number, 1: it is kept whole on every GPU."""
    quantized: bool = True
    """Whether a checkpoint's quantisation covers it, unless it is listed as an exception."""

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return self.inputs * self.outputs


@dataclass(frozen=True, slots=True)
class Activations:
    """Elements that the GEMMs read and write per token.

    The input of a matrix that is cut by columns and the output of one that is cut by rows are whole on every
    tensor-parallel GPU.
    """

    whole: int
    """On every tensor-parallel GPU."""
    shared: int
    """In all GPUs together."""
