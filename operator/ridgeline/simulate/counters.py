"""What the engine exporters of a fleet count, summed over its engines: the raw material of the recording rules.

Names, bounds and meanings are those of `ridgeline_exporters.engine.metrics` and of `vllm:`; only what decisions and
reports read is kept.
"""

from __future__ import annotations

from bisect import bisect_left
from enum import StrEnum

from ridgeline.api.fleet import Role
from ridgeline.simulate.decode_run import DecodeRun
from ridgeline.simulate.phase_use import PhaseCounters
from ridgeline_exporters.engine.metrics import FINE_SECONDS, FIRST_TOKEN_SECONDS, OUTPUT_TOKENS, PROMPT_TOKENS


class Outcome(StrEnum):
    """How a request ended. The first three are those of `ridgeline_engine_requests_total`."""

    MET = "met"
    FIRST_TOKEN_LATE = "first_token_late"  # noqa: S105  not a password
    GAPS_LATE = "gaps_late"
    FAILED = "failed"
    """Its engine died under it: a miss for the client, unknown to the exporters."""
    REFUSED = "refused"
    """No engine could take it: none with the right role, or none that could ever hold its KV."""


class StepSums:
    """Steps of one kind: their time and what they held, as `StepsTaken` has it by the second."""

    __slots__ = ("decode_sequences", "kv_tokens", "prefill_pairs", "prefill_tokens", "seconds", "steps")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.steps = self.decode_sequences = self.kv_tokens = self.prefill_tokens = self.prefill_pairs = 0

    def copy(self) -> StepSums:
        """The sums as they are now."""
        twin = StepSums.__new__(StepSums)
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        return twin


class Counters:
    """Counters since the start of a simulation."""

    __slots__ = (
        "arrivals",
        "cached_tokens",
        "cut_buckets",
        "decode_seconds",
        "decode_steps",
        "decode_tokens",
        "engine_seconds",
        "first_token_buckets",
        "gap_buckets",
        "kv_bytes_moved",
        "kv_transfer_failures",
        "outcomes",
        "output_buckets",
        "output_tokens",
        "outputs_longer",
        "phases",
        "preemptions",
        "prefill_steps",
        "prefill_tokens",
        "prompt_buckets",
        "prompt_tokens",
        "stall_seconds",
    )

    def __init__(self) -> None:
        self.arrivals = 0
        self.outcomes = dict.fromkeys(Outcome, 0)
        self.first_token_buckets = [0] * (len(FIRST_TOKEN_SECONDS) + 1)
        """Requests by time to first token; the last bucket has no upper bound."""
        self.gap_buckets = [0] * (len(FINE_SECONDS) + 1)
        """Gaps between two tokens of a sequence."""
        self.prompt_buckets = [0] * (len(PROMPT_TOKENS) + 1)
        self.prompt_tokens = 0
        self.output_buckets = [0] * (len(OUTPUT_TOKENS) + 1)
        self.output_tokens = 0
        self.cut_buckets = [0] * (len(OUTPUT_TOKENS) + 1)
        """Requests that failed, by the output tokens that they had got."""
        self.outputs_longer = [0] * len(OUTPUT_TOKENS)
        """Requests whose output has become longer than each bound, ended or not: as of the scrape that this copy is."""
        self.prefill_tokens = 0
        """Computed, neither cached nor transferred; recomputed ones again."""
        self.decode_tokens = 0
        self.cached_tokens = 0
        self.decode_seconds = 0.0
        """Steps that held decodes."""
        self.stall_seconds = 0.0
        """Of these, more than the decodes alone would have taken."""
        self.decode_steps = StepSums()
        """Steps that only decode."""
        self.prefill_steps = StepSums()
        """Steps that hold a prompt chunk."""
        self.phases = PhaseCounters()
        """Nothing is counted in it where the fleet does not know its model."""
        self.engine_seconds = dict.fromkeys(Role, 0.0)
        """Time of engines that were ready, by role label."""
        self.preemptions = 0
        self.kv_bytes_moved = 0.0
        self.kv_transfer_failures = 0

    def copy(self) -> Counters:
        """The counters as they are now."""
        twin = Counters.__new__(Counters)
        for name in self.__slots__:
            value = getattr(self, name)
            setattr(twin, name, value.copy() if isinstance(value, (list, dict, PhaseCounters, StepSums)) else value)
        return twin

    def first_token(self, seconds: float) -> None:
        """Count the first token of a request."""
        self.first_token_buckets[bisect_left(FIRST_TOKEN_SECONDS, seconds)] += 1

    def gap(self, seconds: float, sequences: int) -> None:
        """Count the same gap of so many sequences; a negative number takes them back."""
        self.gap_buckets[bisect_left(FINE_SECONDS, seconds)] += sequences

    def step(
        self, seconds: float, sequences: int, kv_tokens: int, prefill_tokens: int = 0, prefill_pairs: int = 0
    ) -> None:
        """Count a step and what it holds; arguments as of the exporter's `StepModel.add`."""
        sums = self.prefill_steps if prefill_tokens else self.decode_steps
        sums.seconds += seconds
        sums.steps += 1
        sums.decode_sequences += sequences
        sums.kv_tokens += kv_tokens
        sums.prefill_tokens += prefill_tokens
        sums.prefill_pairs += prefill_pairs

    def decode_run(self, run: DecodeRun, steps: int, sequences: int, kv_tokens: int) -> None:
        """Count the first steps of a run.

        Args:
            run: its steps follow one another, and each brings one more KV token to each sequence.
            steps: how many of them.
            sequences: that decode.
            kv_tokens: in their contexts in the first step.
        """
        seconds = run.seconds(steps)
        self.decode_seconds += seconds
        self.decode_steps.seconds += seconds
        self.decode_steps.steps += steps
        self.decode_steps.decode_sequences += steps * sequences
        self.decode_steps.kv_tokens += steps * kv_tokens + sequences * (steps * (steps - 1) // 2)
        self.decode_tokens += steps * sequences
        first = run.first_seconds
        bucket = bisect_left(FINE_SECONDS, first)
        last = first + (steps - 1) * run.growth_seconds
        below = 0
        while bucket < len(FINE_SECONDS) and last > FINE_SECONDS[bucket]:
            within = run.steps_up_to(FINE_SECONDS[bucket], steps)
            self.gap_buckets[bucket] += (within - below) * sequences
            below = within
            bucket += 1
        self.gap_buckets[bucket] += (steps - below) * sequences

    def arrived(self, prompt_tokens: int) -> None:
        """Count a request that comes."""
        self.arrivals += 1
        self.prompt_buckets[bisect_left(PROMPT_TOKENS, prompt_tokens)] += 1
        self.prompt_tokens += prompt_tokens

    def finished(self, outcome: Outcome, output_tokens: int) -> None:
        """Count a request that has all its tokens."""
        self.outcomes[outcome] += 1
        self.output_buckets[bisect_left(OUTPUT_TOKENS, output_tokens)] += 1
        self.output_tokens += output_tokens

    def cut(self, outcome: Outcome, output_tokens: int) -> None:
        """Count a request that failed or was refused, with the tokens that it had got."""
        self.outcomes[outcome] += 1
        self.cut_buckets[bisect_left(OUTPUT_TOKENS, output_tokens)] += 1
