"""Adds the work and the time of each step to the totals, per phase."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from ridgeline_exporters.engine.baseline import DecodeBaseline, StepModel
from ridgeline_exporters.engine.metrics import PHASES, Totals
from ridgeline_exporters.engine.steps import StepRecord
from ridgeline_exporters.metric_family import Sample
from ridgeline_exporters.roofline.bounds import Roof
from ridgeline_exporters.roofline.model import ModelShape
from ridgeline_exporters.roofline.windows import AttentionWindow, PhaseSums
from ridgeline_exporters.roofline.work import Phase, PhaseWork, phase_work

WINDOW_SECONDS = 10.0
WINDOW_STEP_SECONDS = 0.25

Work = tuple[tuple[float, ...], tuple[float, ...]]
"""FLOPs and bytes, by phase."""


class Accounting:
    """Turns step records and durations into totals.

    Args:
        totals: where to add.
        shape: the model, or None when its roofline is not known: then only tokens and times are counted.
        roof: the engine's peaks, or None when they are not known.
    """

    def __init__(self, totals: Totals, shape: ModelShape | None, roof: Roof | None) -> None:
        self._totals = totals
        self._shape = shape
        self._roof = roof
        self._baseline = DecodeBaseline()
        self._model = StepModel()
        self._decodes: tuple[int, int] | None = None
        """Sequences and KV tokens of the last step that held decodes."""
        self.weight_scale = 1.0
        """Bytes of the weights that were loaded, by those that the roofline computes."""

    @property
    def windows(self) -> tuple[AttentionWindow, ...]:
        """Windows for which a step's record has to hold sums; none where the model's work is not known."""
        return self._shape.windows if self._shape is not None else ()

    @property
    def baseline_samples(self) -> int:
        """Decode-only steps learned from."""
        return self._baseline.samples

    @property
    def baseline_seconds(self) -> float | None:
        """What the decodes of the last step that held any should take without prefill; None while unknown."""
        return None if self._decodes is None else self._baseline.seconds(*self._decodes)

    def model_terms(self) -> dict[str, float]:
        """Terms of the step model that are known, seconds."""
        return self._model.terms()

    def add(self, record: StepRecord, seconds: float) -> None:
        """Account for one completed step.

        Args:
            record: what it held.
            seconds: its duration, idle time left out.
        """
        totals = self._totals
        prefill, decode = record.prefill, record.decode
        totals.tokens["prefill"] += prefill.tokens
        totals.tokens["decode"] += decode.tokens
        totals.prefills_finished += record.prefills_finished
        tokens = prefill.tokens + decode.tokens
        prefill_work = self._work("prefill", prefill, tokens)
        decode_work = self._work("decode", decode, tokens)
        kind = record.kind
        totals.steps[kind].observe(seconds)
        held = totals.step_terms[kind]
        if decode.tokens:
            held["decode_sequence"] += decode.sequences
            held["kv_token"] += decode.kv_tokens
        if prefill.tokens:
            held["prefill_token"] += prefill.tokens
            held["prefill_pair"] += prefill.attended_pairs
        prefill_seconds = seconds * self._time_share(prefill.tokens / tokens, prefill_work, decode_work)
        totals.busy_seconds["prefill"] += prefill_seconds
        totals.busy_seconds["decode"] += seconds - prefill_seconds
        if decode.tokens:
            self._decode_time(record, seconds)
        self._model.add(decode.sequences, decode.kv_tokens, prefill.tokens, prefill.attended_pairs, seconds)

    def _work(self, phase: Phase, sums: PhaseSums, step_tokens: int) -> PhaseWork | None:
        if self._shape is None or not sums.tokens:
            return None
        work = phase_work(self._shape, phase, sums, step_tokens, self.weight_scale)
        self._totals.flops[phase] += work.flops
        kinds = self._totals.bytes[phase]
        kinds["weights"] += work.weight_bytes
        kinds["kv_read"] += work.kv_read_bytes
        kinds["kv_write"] += work.kv_write_bytes
        kinds["activations"] += work.activation_bytes
        return work

    def _time_share(self, token_share: float, prefill: PhaseWork | None, decode: PhaseWork | None) -> float:
        """Part of the step's time that is prefill's: by modelled time, or by tokens where there is no model."""
        if token_share in (0.0, 1.0) or self._roof is None or prefill is None or decode is None:
            return token_share
        prefill_seconds = self._roof.bound(prefill).seconds
        return prefill_seconds / (prefill_seconds + self._roof.bound(decode).seconds)

    def _decode_time(self, record: StepRecord, seconds: float) -> None:
        totals, decode = self._totals, record.decode
        totals.decode_seconds += seconds
        self._decodes = decode.sequences, decode.kv_tokens
        if not record.prefill.tokens:
            self._baseline.add(decode.sequences, decode.kv_tokens, seconds)
            return
        undisturbed = self._baseline.seconds(decode.sequences, decode.kv_tokens)
        if undisturbed is None:
            return  # unknown is not zero stall: nothing is observed until the baseline is learned
        stall = max(0.0, seconds - undisturbed)
        totals.stalls.observe(stall)
        totals.stall_seconds += stall
        totals.stall_sequence_seconds += stall * decode.sequences


class Window:
    """FLOPs and bytes of the last ten seconds, for the gauges that repeat the recording rules."""

    def __init__(self, totals: Totals, started: float) -> None:
        self._totals = totals
        self._started = started
        self._marks: deque[tuple[float, Work]] = deque(maxlen=128)
        self._next = started

    def mark(self, now: float) -> None:
        """Remember the totals before a step that is complete now is added, at most every quarter of a second."""
        if now >= self._next:
            self._marks.append((now, self._read()))
            self._next = now + WINDOW_STEP_SECONDS

    def gauges(self, now: float, roof: Roof | None) -> Mapping[str, list[Sample]]:
        """Intensity and utilisations over the last ten seconds, or since the start if that is less."""
        elapsed = min(max(now - self._started, WINDOW_STEP_SECONDS), WINDOW_SECONDS)
        flops_now, bytes_now = self._read()
        flops_then, bytes_then = self._at(now - WINDOW_SECONDS, (flops_now, bytes_now))
        intensity: list[Sample] = []
        bandwidth: list[Sample] = []
        compute: list[Sample] = []
        for i, phase in enumerate(PHASES):
            flops, moved = flops_now[i] - flops_then[i], bytes_now[i] - bytes_then[i]
            if moved > 0:
                intensity.append(((phase,), flops / moved))
            if roof is not None:
                bandwidth.append(((phase,), moved / elapsed / roof.memory_bytes_per_second))
                compute.append(((phase,), flops / elapsed / roof.flops_per_second))
        return {
            "arithmetic_intensity_flops_per_byte": intensity,
            "memory_bandwidth_utilization_ratio": bandwidth,
            "compute_utilization_ratio": compute,
        }

    def _read(self) -> Work:
        totals = self._totals
        return tuple(totals.flops[p] for p in PHASES), tuple(totals.memory_bytes(p) for p in PHASES)

    def _at(self, moment: float, now: Work) -> Work:
        """The totals at a moment: those of the first mark after it, or today's when no step was completed since."""
        marks = [self._marks[i] for i in range(len(self._marks))]  # by index: the busy loop may append meanwhile
        return next((work for marked, work in marks if marked > moment), now)
