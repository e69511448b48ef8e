"""Layers that attend to a part of the context only, and the sums over a step's requests that attention needs.

*Sliding* windows of W tokens (Mistral, Gemma, gpt-oss): a token attends to itself and the W - 1 before it, so to
min(c, W) where c counts the context up to and with it (arXiv:2310.06825, section 2). *Chunked* attention over chunks
of W tokens (Llama 4's layers with rotary embeddings): to itself and those before it in its chunk, (c - 1) mod W + 1.
vLLM's kernels skip what lies outside, and so is it counted here. Both forms are summed in closed form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionWindow:
    """The part of the context that a layer's attention sees."""

    tokens: int
    """Length of the window, or of a chunk."""
    chunked: bool = False

    def attended(self, context: int) -> int:
        """Tokens that the `context`-th token of a sequence attends to, itself included."""
        if self.chunked:
            return (context - 1) % self.tokens + 1
        return min(context, self.tokens)

    def attended_pairs(self, scheduled: int, cached: int) -> int:
        """Pairs that `scheduled` new tokens make behind `cached` earlier ones."""
        return self._pairs_up_to(cached + scheduled) - self._pairs_up_to(cached)

    def cached_tokens_read(self, cached: int) -> int:
        """How many of `cached` earlier tokens the first new one attends to: those that a chunk reads from the cache."""
        return self.attended(cached + 1) - 1

    def kept(self, context: int) -> int:
        """Tokens of a context that later ones may still attend to: what the cache has to hold."""
        return min(context, self.tokens)

    def _pairs_up_to(self, context: int) -> int:
        if self.chunked:
            chunks, rest = divmod(context, self.tokens)
            return chunks * _triangle(self.tokens) + _triangle(rest)
        grown = min(context, self.tokens)
        return _triangle(grown) + (context - grown) * self.tokens


def _triangle(count: int) -> int:
    return count * (count + 1) // 2


def attended_pairs(scheduled: int, cached: int) -> int:
    """Causal pairs of `scheduled` new tokens on `cached` earlier ones, over the whole context.

    The sum over i = 1..n of (P + i), hence a prompt makes the same pairs however it is cut into chunks.
    """
    return scheduled * cached + _triangle(scheduled)


class PhaseSums:
    """What one step computes for one phase, summed over its requests. Grows by integer additions only.

    Args:
        windows: the distinct windows of the model (`ModelShape.windows`); empty for full attention everywhere.
    """

    __slots__ = (
        "attended_pairs",
        "kv_tokens",
        "sampled",
        "sequences",
        "tokens",
        "window_kv_tokens",
        "window_pairs",
        "windows",
    )

    def __init__(self, windows: tuple[AttentionWindow, ...] = ()) -> None:
        self.windows = windows
        self.tokens = 0
        self.attended_pairs = 0
        """(query, key) pairs that attention over the whole context scores."""
        self.kv_tokens = 0
        """Tokens whose KV such attention reads: those in the cache for a prompt chunk, whose own keys the kernel has
        just made; the context for a decode, which reads its own from the cache."""
        self.sampled = 0
        """Positions whose logits are used: none for a chunk that ends inside the prompt, and one more for each
        speculated token."""
        self.sequences = 0
        self.window_pairs = [0] * len(windows)
        """As `attended_pairs`, per window."""
        self.window_kv_tokens = [0] * len(windows)
        """As `kv_tokens`, per window."""

    def add_prefill(self, start: int, tokens: int, sampled: int) -> None:
        """Add `tokens` prompt positions of one request from position `start` on."""
        self._add(start, tokens, sampled)
        self.kv_tokens += start
        for i, window in enumerate(self.windows):
            self.window_kv_tokens[i] += window.cached_tokens_read(start)

    def add_decode(self, start: int, tokens: int, sampled: int) -> None:
        """Add `tokens` output positions of one request from position `start` on."""
        self._add(start, tokens, sampled)
        self.kv_tokens += start + tokens
        for i, window in enumerate(self.windows):
            self.window_kv_tokens[i] += window.cached_tokens_read(start) + tokens

    def add_decodes(self, starts: Sequence[int]) -> None:
        """Add decodes of one token each, given their positions: the tokens in their caches before the step.

        The way that nearly all requests take, so nothing is made for each of them unless a window asks for it.

        Args:
            starts: at least one.
        """
        count = len(starts)
        total = sum(starts) + count
        self.tokens += count
        self.sampled += count
        self.sequences += count
        self.attended_pairs += total
        self.kv_tokens += total
        if not self.windows:
            return
        shortest, longest = min(starts) + 1, max(starts) + 1
        for i, window in enumerate(self.windows):
            length = window.tokens
            if longest <= length:
                seen = total
            elif window.chunked:
                seen = sum([start % length for start in starts]) + count
            elif shortest >= length:
                seen = count * length
            else:
                seen = sum([start if start < length else length - 1 for start in starts]) + count
            self.window_pairs[i] += seen
            self.window_kv_tokens[i] += seen

    def _add(self, start: int, tokens: int, sampled: int) -> None:
        self.tokens += tokens
        self.attended_pairs += attended_pairs(tokens, start)
        self.sampled += sampled
        self.sequences += 1
        for i, window in enumerate(self.windows):
            self.window_pairs[i] += window.attended_pairs(tokens, start)
