"""The work of an engine by what its model runner was recorded to compute, summed up position by position."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.engines.by_hand import KV_TOKEN_BYTES, STEP_WEIGHT_BYTES, Work
from tests.engines.engines import Metrics, delta

Step = list[dict[str, Any]]
PHASES = ("prefill", "decode")
KINDS = (*PHASES, "mixed")


class Record:
    """What a model runner wrote down (see `inside/recording.py`), from now on."""

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self._file = folder / f"{rank}-0.jsonl"  # the first pipeline stage sees every step
        self._skip = len(self._lines())

    def steps(self) -> list[Step]:
        """The steps since the start of this record."""
        return [json.loads(line) for line in self._lines()[self._skip :]]

    def _lines(self) -> list[str]:
        return self._file.read_text(encoding="utf-8").splitlines() if self._file.exists() else []


class Count:
    """Work of both phases, by the rule of docs/decisions/engine-phases.md.

    A position is prefill below a request's boundary: the end of its prompt, or after a preemption the position of the
    last token that was handed out, which alone had not been computed yet.
    """

    def __init__(self, steps: Iterable[Step]) -> None:
        self.work = {phase: Work() for phase in PHASES}
        self.kinds = dict.fromkeys(KINDS, 0)
        self.requests: set[str] = set()
        self.preempted = 0
        self.largest_chunk = 0
        self.verified = 0
        """Positions whose token was only drafted."""
        boundaries: dict[str, int] = {}
        for step in steps:
            held: set[str] = set()
            for entry in step:
                held |= self._add(entry, boundaries)
            self.kinds["mixed" if len(held) == 2 else held.pop()] += 1

    def _add(self, entry: dict[str, Any], boundaries: dict[str, int]) -> set[str]:
        name, known, positions = entry["request"], entry["known"], entry["positions"]
        self.requests.add(name)
        boundary = boundaries.setdefault(name, entry["prompt"])
        if entry["again"]:
            self.preempted += 1
            boundary = boundaries[name] = max(entry["prompt"], known - 1)
        held = set()
        for position in positions:
            phase = "prefill" if position < boundary else "decode"
            self.work[phase].position(position)
            held.add(phase)
        for position in entry["logits"]:
            if position >= known - 1:  # of an unfinished chunk logits are taken, but nobody uses them
                self.work["prefill" if position < boundary else "decode"].sample()
        self.verified += sum(position >= known for position in positions)
        if "prefill" in held:
            self.work["prefill"].kv_read += positions[0] * KV_TOKEN_BYTES
            self.largest_chunk = max(self.largest_chunk, len(positions))
        if "decode" in held:
            self.work["decode"].kv_read += (positions[-1] + 1) * KV_TOKEN_BYTES
        return held

    def check(self, after: Metrics, before: Metrics) -> None:
        """Compare with what the exporter counted meanwhile: everything, to the last token."""
        assert after[("exporter_up", ())] == 1
        for phase, work in self.work.items():
            assert delta(after, before, "tokens_total", phase=phase) == work.tokens, phase
            assert delta(after, before, "flops_total", phase=phase) == pytest.approx(work.flops, rel=1e-12), phase
            kinds = {"kv_read": work.kv_read, "kv_write": work.kv_write, "activations": work.activations}
            for kind, count in kinds.items():
                counted = delta(after, before, "memory_bytes_total", phase=phase, kind=kind)
                assert counted == pytest.approx(count, rel=1e-12), (phase, kind)
        for kind, count in self.kinds.items():
            assert delta(after, before, "step_seconds_count", kind=kind) == count, kind
        weights = sum(delta(after, before, "memory_bytes_total", phase=phase, kind="weights") for phase in PHASES)
        assert weights == pytest.approx(sum(self.kinds.values()) * STEP_WEIGHT_BYTES, rel=1e-9)
        busy = sum(delta(after, before, "busy_seconds_total", phase=phase) for phase in PHASES)
        seconds = sum(delta(after, before, "step_seconds_sum", kind=kind) for kind in KINDS)
        assert busy == pytest.approx(seconds, rel=1e-6), "the phases of a step add up to it"
