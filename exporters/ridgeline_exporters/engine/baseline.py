"""Step times learned online from the engine's own steps: how long a step takes for what it holds.

Until there are enough samples, and far outside of what was seen, the answer is None: unknown, never invented.
"""

from __future__ import annotations

from ridgeline_exporters.engine.regression import WARM_UP_STEPS, RobustRegression

STALE_STEPS = 200_000
"""What decodes take is learned anew after so many steps with prefill among which too few were without: an hour of a busy
engine, in which clocks may have changed unseen."""

Terms = tuple[float, float, float]


class DecodeBaseline:
    """dt0(n, KV): seconds of a step that holds n decodes with so many KV tokens, and no prefill."""

    def __init__(self) -> None:
        self._regression = RobustRegression(3)

    @property
    def samples(self) -> int:
        """Decode-only steps learned from."""
        return self._regression.samples

    def add(self, sequences: int, kv_tokens: int, seconds: float) -> None:
        """Learn from a step without prefill."""
        self._regression.add((1.0, float(sequences), float(kv_tokens)), seconds)

    def seconds(self, sequences: int, kv_tokens: int) -> float | None:
        """The expected seconds, or None while unknown."""
        return self._regression.predict((1.0, float(sequences), float(kv_tokens)))


class StepModel:
    """Seconds of any step: fixed + decode sequences + KV tokens of the decodes, and with prefill + step + tokens + pairs.

    A pair is a prefill token and a key that it attends to: deep in a long prompt they outweigh the tokens. The term of a
    step with prefill is below 0 where small chunks hide behind the reading of the weights, above it where such steps are
    launched more slowly. Where samples do not tell one of the two from the tokens, the term of the tokens stands for it.

    What decodes take is learned from steps without prefill, what chunks add to it from the others: in full steps
    decodes and chunks share the token budget, so that all terms at once take each for the other, and a line through
    chunks of two sizes would halve the steps between them. Until there were enough steps of decodes alone, all terms
    are learned at once nevertheless, without that of the step: little is better than nothing.

    Steps are bent where they turn from reading weights to computing, and a fleet that is divided anew meets other
    batches and chunks at once. So the lines go through all sizes seen lately: batches and chunks are remembered by their
    size, to powers of two, and steps count by their relative error. The stall's baseline has to be right for the batches
    of now alone, and is learned apart.
    """

    TERMS = ("fixed", "decode_sequence", "kv_token", "prefill_token", "prefill_pair")
    PREFILL_STEP = "prefill_step"

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._alone = RobustRegression(3)
        self._decode_terms: Terms | None = None
        """Of a step without prefill: fixed, per sequence, per KV token, as they were known last."""
        self._since_decodes = 0
        """Steps with prefill since then."""
        self._chunks = RobustRegression(3, spare=2, signed=frozenset({2}))
        self._chunk_terms: Terms | None = None
        """Of what prefill adds: per token, per pair, per step, as they were known last."""
        self._first_chunks: list[tuple[int, int, int, int, float]] = []
        """Steps with prefill from before it was known what decodes take: the largest chunks, from the start-up budget."""
        self._at_once = RobustRegression(len(self.TERMS), spare=1)

    def add(self, sequences: int, kv_tokens: int, prefill_tokens: int, prefill_pairs: int, seconds: float) -> None:
        """Learn from a step."""
        if not prefill_tokens:
            self._add_decodes(sequences, kv_tokens, seconds)
        elif self._decode_terms is not None:
            self._add_chunk(sequences, kv_tokens, prefill_tokens, prefill_pairs, seconds)
        elif len(self._first_chunks) < WARM_UP_STEPS:
            self._first_chunks.append((sequences, kv_tokens, prefill_tokens, prefill_pairs, seconds))
        if self._decode_terms is None:
            row = (1.0, float(sequences), float(kv_tokens), float(prefill_tokens), float(prefill_pairs))
            self._at_once.add(row, seconds)

    def terms(self) -> dict[str, float]:
        """The terms that are known; 0 for one that that of the prefill tokens stands for."""
        fixed, sequence, kv, token, pair = self._at_once.known_terms()
        step = None
        if decodes := self._decode_terms:
            fixed, sequence, kv = decodes
        if chunks := self._chunk_terms:
            token, pair, step = chunks
        if token is not None:
            pair, step = pair or 0.0, step or 0.0
        values = zip((*self.TERMS, self.PREFILL_STEP), (fixed, sequence, kv, token, pair, step), strict=True)
        return {name: value for name, value in values if value is not None}

    def _add_decodes(self, sequences: int, kv_tokens: int, seconds: float) -> None:
        if seconds <= 0.0:
            return
        # A step counts by its relative error, or those of the largest batches alone would.
        row = (1.0 / seconds, sequences / seconds, kv_tokens / seconds)
        if not self._alone.add(row, 1.0, sequences.bit_length()):
            return
        self._since_decodes = 0
        fixed, sequence, kv = self._alone.known_terms()
        if fixed is None or sequence is None or kv is None:
            return
        self._decode_terms = fixed, sequence, kv
        for step in self._first_chunks:
            self._add_chunk(*step)
        self._first_chunks.clear()

    def _add_chunk(
        self, sequences: int, kv_tokens: int, prefill_tokens: int, prefill_pairs: int, seconds: float
    ) -> None:
        self._since_decodes += 1
        if self._since_decodes > STALE_STEPS:
            self._begin()
            return
        assert self._decode_terms is not None
        if seconds <= 0.0:
            return
        fixed, sequence, kv = self._decode_terms
        longer = seconds - (fixed + sequence * sequences + kv * kv_tokens)
        row = (prefill_tokens / seconds, prefill_pairs / seconds, 1.0 / seconds)
        if not self._chunks.add(row, longer / seconds, prefill_tokens.bit_length()):
            return
        token, pair, step = self._chunks.known_terms()
        if token is not None:
            self._chunk_terms = token, pair or 0.0, step or 0.0
