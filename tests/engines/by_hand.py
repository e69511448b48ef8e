"""The work of requests counted token by token, from the sizes of the small model and nothing of the exporter's.

Written out on purpose: it shares no code with the roofline model that it is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass

LAYERS, HIDDEN, QUERY_HEADS, KV_HEADS, HEAD, FEED_FORWARD, VOCABULARY = 2, 256, 4, 2, 64, 512, 512
BYTES = 2
"""Of a float16 number."""

QKV = HIDDEN * (QUERY_HEADS + 2 * KV_HEADS) * HEAD
OUTPUT = QUERY_HEADS * HEAD * HIDDEN
MLP = 3 * HIDDEN * FEED_FORWARD
HEAD_MATRIX = HIDDEN * VOCABULARY
NORMS = LAYERS * 2 * HIDDEN + HIDDEN

STEP_WEIGHT_BYTES = BYTES * (LAYERS * (QKV + OUTPUT + MLP) + HEAD_MATRIX + NORMS)
KV_TOKEN_BYTES = BYTES * 2 * KV_HEADS * HEAD * LAYERS
TOKEN_ACTIVATION_BYTES = BYTES * LAYERS * (
    (HIDDEN + (QUERY_HEADS + 2 * KV_HEADS) * HEAD)
    + (QUERY_HEADS * HEAD + HIDDEN)
    + (HIDDEN + 2 * FEED_FORWARD)
    + (FEED_FORWARD + HIDDEN)
)  # fmt: skip
SAMPLE_ACTIVATION_BYTES = BYTES * (HIDDEN + VOCABULARY)


@dataclass
class Work:
    """What one phase should have done."""

    tokens: int = 0
    flops: int = 0
    kv_read: int = 0
    kv_write: int = 0
    activations: int = 0

    def position(self, position: int) -> None:
        """Compute one token at this position: every matrix once, attention to itself and all before it."""
        self.tokens += 1
        for _ in range(LAYERS):
            self.flops += 2 * (QKV + OUTPUT + MLP)
            self.flops += QUERY_HEADS * (position + 1) * (2 * HEAD + 2 * HEAD)  # scores, then values
        self.kv_write += KV_TOKEN_BYTES
        self.activations += TOKEN_ACTIVATION_BYTES

    def sample(self) -> None:
        """Turn one hidden state into logits."""
        self.flops += 2 * HEAD_MATRIX
        self.activations += SAMPLE_ACTIVATION_BYTES

    def decode(self, position: int) -> None:
        """A decode step of one request: one position, its whole context read, one token sampled."""
        self.position(position)
        self.kv_read += (position + 1) * KV_TOKEN_BYTES
        self.sample()

    def prompt(self, cached: int, length: int, chunk: int) -> int:
        """Prefill a prompt whose first `cached` tokens are in the cache; returns the number of chunks."""
        chunks = 0
        for start in range(cached, length, chunk):
            self.kv_read += start * KV_TOKEN_BYTES
            for position in range(start, min(start + chunk, length)):
                self.position(position)
            chunks += 1
        self.sample()
        return chunks
