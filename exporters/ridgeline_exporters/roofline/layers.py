"""Decoder layers, and a decoder: what `families` reads from a config.json."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline_exporters.roofline.feed_forward import Block, MixtureOfExperts
from ridgeline_exporters.roofline.mixers import Attention, GatedDeltaNet, LatentAttention, Mixer


@dataclass(frozen=True)
class Layer:
    """One decoder layer."""

    mixer: Mixer
    feed_forward: Block
    norm_parameters: int
    """Of the norms around both."""

    @property
    def attention(self) -> str:
        """What the mixer is, in words."""
        window = self.mixer.window
        if window is not None:
            return f"{'chunks' if window.chunked else 'sliding window'} of {window.tokens:,} tokens"
        kinds = {Attention: "full attention", LatentAttention: "latent attention", GatedDeltaNet: "linear attention"}
        return kinds[type(self.mixer)]

    @property
    def feeding(self) -> str:
        """What the feed-forward block is, in words."""
        block = self.feed_forward
        if isinstance(block, MixtureOfExperts):
            return f"{block.experts_per_token} of {block.experts} experts{' and shared' if block.shared_width else ''}"
        return "dense"


@dataclass(frozen=True, slots=True)
class Decoder:
    """What a config.json says of a model, before formats and GPUs are chosen."""

    architecture: str
    layers: tuple[Layer, ...]
    hidden: int
    vocabulary: int
    tied_embeddings: bool = False
    final_norm_parameters: int = 0
    uncounted: tuple[str, ...] = ()
    """Parts of the model that are left out, such as "vision encoder"."""
