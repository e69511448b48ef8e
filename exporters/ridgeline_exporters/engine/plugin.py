"""The vLLM plug-in: wraps the scheduler's methods and starts an exporter for each scheduler that is built.

vLLM calls `register` in the API server, in the EngineCore and in each worker. Only the EngineCore builds a scheduler,
so only there a server is started; workers only get the method that sums up their weights. `AsyncScheduler` inherits
the wrapped methods. Every wrapper calls the original once and returns what it returned; the exporter's hooks never
raise.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from typing import Any

from ridgeline_exporters.engine import weights
from ridgeline_exporters.engine.control import Control
from ridgeline_exporters.engine.description import describe, rank
from ridgeline_exporters.engine.down import DownExporter
from ridgeline_exporters.engine.exporter import Exporter
from ridgeline_exporters.engine.requests import Objectives
from ridgeline_exporters.engine.server import ExporterServer
from ridgeline_exporters.engine.settings import Settings, read_settings
from ridgeline_exporters.engine.weights import LoadedWeights

logger = logging.getLogger("vllm.plugins.ridgeline")

_EXPORTER = "_ridgeline_exporter"
_WRAPPED = "_ridgeline_wrapped"
HOOKS = ("schedule", "update_from_output", "finish_requests", "add_request")
"""Methods of the scheduler around which the exporter works."""

_loaded: list[LoadedWeights | None] = []
"""What the workers of this process's EngineCore loaded, from when it asked until its scheduler is built."""


def register() -> None:
    """Wrap what the exporter needs of vLLM. Called by vLLM in each of its processes, at times more than once.

    Never raises: vLLM calls plug-ins unguarded, and an exception here would keep the engine from starting.
    """
    try:
        from vllm.v1.core.sched.scheduler import Scheduler

        wrap(Scheduler)
    except Exception:
        logger.exception("The Ridgeline exporter does not know this vLLM and stays off.")
        return
    try:
        from vllm.v1.engine.core import EngineCore
        from vllm.v1.worker.worker_base import WorkerBase

        wrap_core(EngineCore, WorkerBase)
    except Exception:
        logger.warning("Ridgeline cannot ask this vLLM for the bytes of its weights and computes them.", exc_info=True)


def wrap(scheduler: type[Any]) -> None:
    """Wrap the methods of a scheduler class, once. One that lacks a method gets an exporter that says it is down."""
    if _WRAPPED in vars(scheduler):
        return
    init = scheduler.__init__
    missing = [name for name in HOOKS if not callable(getattr(scheduler, name, None))]
    if missing:

        @functools.wraps(init)
        def ridgeline_down(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            start_exporter(self, f"its scheduler has no {' and no '.join(missing)}")

        scheduler.__init__ = ridgeline_down
        setattr(scheduler, _WRAPPED, True)
        return
    schedule, update, finish, add = (getattr(scheduler, name) for name in HOOKS)

    @functools.wraps(init)
    def ridgeline_init(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        start_exporter(self)

    @functools.wraps(schedule)
    def ridgeline_schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        exporter: Exporter | None = getattr(self, _EXPORTER, None)
        if exporter is None:
            return schedule(self, *args, **kwargs)
        exporter.before_schedule()
        started = time.monotonic()
        output = schedule(self, *args, **kwargs)
        exporter.after_schedule(output, started)
        return output

    @functools.wraps(update)
    def ridgeline_update(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        exporter: Exporter | None = getattr(self, _EXPORTER, None)
        if exporter is None:
            return update(self, scheduler_output, *args, **kwargs)
        completed = time.monotonic()
        results = update(self, scheduler_output, *args, **kwargs)
        exporter.after_update(scheduler_output, results, completed)
        return results

    @functools.wraps(finish)
    def ridgeline_finish(self: Any, *args: Any, **kwargs: Any) -> Any:
        finished = finish(self, *args, **kwargs)
        exporter: Exporter | None = getattr(self, _EXPORTER, None)
        if exporter is not None:
            exporter.after_finish(finished or ())
        return finished

    @functools.wraps(add)
    def ridgeline_add(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        exporter: Exporter | None = getattr(self, _EXPORTER, None)
        if exporter is not None:
            exporter.before_add(request)
        return add(self, request, *args, **kwargs)

    scheduler.__init__ = ridgeline_init
    hooks = (ridgeline_schedule, ridgeline_update, ridgeline_finish, ridgeline_add)
    for name, wrapped in zip(HOOKS, hooks, strict=True):
        setattr(scheduler, name, wrapped)
    _wrap_pausing(scheduler)
    setattr(scheduler, _WRAPPED, True)


def _wrap_pausing(scheduler: type[Any]) -> None:
    """Wrap the method by which an engine is paused and resumed, where there is one."""
    pause = getattr(scheduler, "set_pause_state", None)
    if pause is None:
        return

    @functools.wraps(pause)
    def ridgeline_pause(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = pause(self, *args, **kwargs)
        exporter: Exporter | None = getattr(self, _EXPORTER, None)
        if exporter is not None:
            exporter.after_pause()
        return result

    scheduler.set_pause_state = ridgeline_pause


def wrap_core(core: type[Any], worker: type[Any]) -> None:
    """Let a starting EngineCore ask its workers for the bytes of the weights that they loaded, once.

    Plug-ins are loaded at the beginning of its `__init__`, so that this is too late to wrap. Between loading the model
    and building the scheduler it makes the KV caches: that is the moment to ask.
    """
    if _WRAPPED in vars(core):
        return
    make_caches = core._initialize_kv_caches

    @functools.wraps(make_caches)
    def ridgeline_make_caches(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = make_caches(self, *args, **kwargs)
        _loaded.clear()
        try:
            _loaded.append(weights.ask(self))
        except Exception:
            logger.warning("Ridgeline computes the bytes of the weights: asking for them failed.", exc_info=True)
        return result

    setattr(worker, weights.METHOD, weights.answer)
    core._initialize_kv_caches = ridgeline_make_caches
    setattr(core, _WRAPPED, True)


def start_exporter(scheduler: Any, problem: str | None = None) -> None:
    """Start the exporter of a scheduler that has just been built. Whatever fails, the engine runs on.

    Args:
        scheduler: the scheduler.
        problem: why there can be no exporter, if that is known; then it is only served that there is none.
    """
    try:
        settings = read_settings(os.environ)
        for each in settings.problems:
            logger.warning("Ridgeline: %s.", each)
        exporter = None if problem else _build(scheduler, settings)
        if problem:
            logger.error("The Ridgeline exporter does not know this vLLM and is off: %s.", problem)
        port = settings.port + rank(scheduler) if settings.port else 0
        server = ExporterServer((settings.host, port), exporter or DownExporter(), settings.control_token)
        server.start()
    except OSError as error:
        logger.warning("The Ridgeline exporter could not listen and stays off; the engine is not affected: %s", error)
        return
    except Exception:
        logger.exception("The Ridgeline exporter could not start; the engine is not affected.")
        return
    if exporter is not None:
        setattr(scheduler, _EXPORTER, exporter)
        logger.info("Ridgeline's engine exporter listens on port %d.", server.port)


def _build(scheduler: Any, settings: Settings) -> Exporter | None:
    """Make the exporter of a scheduler; None, and a line in the log, where that cannot be done."""
    try:
        description = describe(scheduler, settings)
        objectives = Objectives(settings.time_to_first_token_seconds, settings.inter_token_seconds)
        control = Control(description.maximum, description.smallest_tokens, objectives)
        exporter = Exporter(scheduler, description, control)
        for loaded in _loaded:
            exporter.take_weights(loaded)
        return exporter
    except Exception:
        logger.exception("The Ridgeline exporter could not read this engine and is off; the engine is not affected.")
        return None
