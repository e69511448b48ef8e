"""What works on each token alone in a layer: one block for all tokens, or experts of which each token takes some."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ridgeline_exporters.roofline.matrices import Activations, Matrix
from ridgeline_exporters.roofline.quantization import EXPERTS


@dataclass(frozen=True)
class FeedForward:
    """A feed-forward block of width F: 6 D F FLOPs a token when gated (SwiGLU, arXiv:2002.05202), 4 D F when plain."""

    hidden: int
    width: int
    gated: bool = True
    bias: bool = False
    module: str = "mlp"

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        """Weight matrices."""
        into = ("gate_proj", "up_proj") if self.gated else ("up_proj",)
        return (
            *(Matrix(f"{self.module}.{name}", self.hidden, self.width) for name in into),
            Matrix(f"{self.module}.down_proj", self.width, self.hidden),
        )

    @property
    def small_parameters(self) -> int:
        """Parameters of biases and norms."""
        return self.bias * sum(matrix.outputs for matrix in self.matrices)

    @property
    def activations(self) -> Activations:
        """What the GEMMs read and write per token."""
        return Activations(2 * self.hidden, (3 if self.gated else 2) * self.width)


@dataclass(frozen=True)
class MixtureOfExperts:
    """k of E experts of width F for each token (arXiv:2101.03961), beside shared ones that all tokens take.

    FLOPs per token: those of k experts, of the shared ones and of the router, 2 D E. A step of T tokens reads the
    experts that it hits. Under uniform and independent routing an expert is missed by all of them with probability
    (1 - k/E)^T, so E (1 - (1 - k/E)^T) experts are read on average. Real routers prefer some experts, which lowers the
    number for small batches: the assumption is an upper estimate there, and exact for one token and for many.
    """

    hidden: int
    experts: int
    experts_per_token: int
    width: int
    shared_width: int = 0
    """Width of all shared experts together."""
    shared_gate: bool = False
    """Whether a gate of one output weighs the shared expert (Qwen2-MoE, Qwen3-Next)."""
    expert_bias: bool = False
    router_bias: bool = False

    @cached_property
    def expert(self) -> FeedForward:
        """One routed expert."""
        return FeedForward(self.hidden, self.width, bias=self.expert_bias, module=EXPERTS)

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        """All but the routed experts."""
        parts = [Matrix("mlp.gate", self.hidden, self.experts, 1, quantized=False)]
        if self.shared_width:
            shared = FeedForward(self.hidden, self.shared_width, module="mlp.shared_expert")
            parts += shared.matrices
        if self.shared_gate:
            parts.append(Matrix("mlp.shared_expert_gate", self.hidden, 1, 1, quantized=False))
        return tuple(parts)

    @property
    def small_parameters(self) -> int:
        """All but those of the routed experts."""
        return self.experts * self.router_bias

    @property
    def activations(self) -> Activations:
        """What the GEMMs read and write per token."""
        taken = self.experts_per_token  # their rows are sent to one GPU each where whole experts are shared: the least
        whole = self.hidden + self.experts + 2 * self.hidden * bool(self.shared_width)
        return Activations(whole, (2 * self.hidden + 3 * self.width) * taken + 3 * self.shared_width)

    def distinct_experts(self, tokens: float) -> float:
        """Experts that a step of so many tokens reads, on average over uniform routing."""
        return float(self.experts * (1.0 - (1.0 - self.experts_per_token / self.experts) ** tokens))


Block = FeedForward | MixtureOfExperts
