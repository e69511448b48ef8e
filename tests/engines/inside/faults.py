"""Lets a test break the exporter inside a running engine, mend it, and switch it off and on.

The test writes one word into a file: the place at which an exception shall be raised from now on, or one of these,
which an idle engine obeys with its next step:

    mend    make the exporter anew, as at start
    off     take the exporter away from the scheduler, so that nothing of it runs
    on      give it back
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

FAULT_FILE = "RIDGELINE_TEST_FAULT_FILE"
SWITCH_FILE = "RIDGELINE_TEST_SWITCH_FILE"
ATTRIBUTE = "_ridgeline_exporter"


def register() -> None:
    """Wrap the exporter's parts and the scheduler, where files to read from are given."""
    if path := os.environ.get(FAULT_FILE):
        _plant(Path(path))
    if path := os.environ.get(SWITCH_FILE):
        from vllm.v1.core.sched.scheduler import Scheduler

        _obey(Scheduler, Path(path))


def _plant(file: Path) -> None:
    from ridgeline_exporters.engine import exporter as module
    from ridgeline_exporters.engine.accounting import Accounting, Window
    from ridgeline_exporters.engine.baseline import DecodeBaseline, StepModel
    from ridgeline_exporters.engine.control import Control
    from ridgeline_exporters.engine.exporter import Exporter
    from ridgeline_exporters.engine.tokens import TokenClock

    places: dict[str, tuple[Any, str]] = {
        "limits": (Control, "apply"),
        "arrival": (Exporter, "_note_arrival"),
        "schedule": (Exporter, "_note_scheduled"),
        "update": (Exporter, "_account"),
        "finish": (TokenClock, "judge_cut"),
        "read": (module, "read_step"),
        "totals": (Accounting, "add"),
        "window": (Window, "mark"),
        "baseline": (DecodeBaseline, "add"),
        "model": (StepModel, "add"),
        "tokens": (TokenClock, "note"),
        "scrape": (Exporter, "_counts"),
    }
    for name, (owner, attribute) in places.items():
        setattr(owner, attribute, _faulty(name, getattr(owner, attribute), file))


def _faulty(name: str, original: Any, file: Path) -> Any:
    @functools.wraps(original)
    def faulty(*arguments: Any, **named: Any) -> Any:
        if _word(file) == name:
            raise RuntimeError(f"planted at {name}")
        return original(*arguments, **named)

    return faulty


def _obey(scheduler: Any, file: Path) -> None:
    """Wrap `schedule` outside of the exporter's own wrapper, whichever plug-in vLLM loads first."""
    from ridgeline_exporters.engine import plugin

    plugin.register()
    schedule = scheduler.schedule

    @functools.wraps(schedule)
    def obedient(self: Any, *arguments: Any, **named: Any) -> Any:
        word, exporter = _word(file), getattr(self, "_kept_exporter", None) or getattr(self, ATTRIBUTE, None)
        if exporter is not None:
            self._kept_exporter = exporter
            if word == "mend" and not exporter.up:
                exporter.__init__(exporter._scheduler, exporter._description, exporter._control)
            if word == "off":
                setattr(self, ATTRIBUTE, None)
            elif getattr(self, ATTRIBUTE, None) is None:
                exporter._in_flight.clear()
                exporter._last_completion = None
                setattr(self, ATTRIBUTE, exporter)
        return schedule(self, *arguments, **named)

    scheduler.schedule = obedient


def _word(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
