"""How an engine's GPUs share a model, and what they then hold, read or compute more than once.

All sums of this room are over the GPUs of one engine (one data-parallel rank), as `bounds.Roof` is. Sharing leaves
most sums as they are, with these exceptions in vLLM 0.32:

- *Tensor parallelism* over t GPUs cuts matrices by heads or columns. K and V projections and their cache cannot be cut
  finer than KV heads, so each is kept max(1, t / KV heads) times (`QKVParallelLinear`). The latent KV of MLA and the
  projections that make it (`fused_qkv_a_proj`, `kv_a_proj_with_mqa`), routers of experts and norms are on every GPU.
- *Experts* are shared by all t · d GPUs of the data-parallel group, cut into slices or, with expert parallelism, as
  whole experts: the group reads the experts that the tokens of all d engines hit, and an engine's share is 1/d of it.
  An engine knows its own tokens only and takes the others to have as many. Shared experts stay within an engine.
- *Pipeline parallelism* puts layers on different GPUs and changes no sum; steps of different micro-batches overlap, so
  bounds over all GPUs hold for throughput, and a single step takes longer.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Sizes of an engine's groups of GPUs."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    """Engines that share the experts: the data-parallel size, of use with mixtures of experts only."""

    @property
    def gpus(self) -> int:
        """GPUs of one engine."""
        return self.tensor * self.pipeline

    def copies(self, shards: int | None) -> float:
        """How often something is kept that cuts into so many shards at most; None: into any number."""
        return 1.0 if shards is None else max(1.0, self.tensor / shards)


ONE_GPU = Parallelism()
