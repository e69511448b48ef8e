"""The vLLM plug-in: wraps the scheduler's methods and starts an exporter for each scheduler that is built.

vLLM calls `register` in the API server, in the EngineCore and in each worker. Only the EngineCore builds a scheduler,
so only there a server is started. `AsyncScheduler` inherits the wrapped methods. Every wrapper calls the original
once and returns what it returned; the exporter's hooks never raise.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from typing import Any

from ridgeline_exporters.engine.control import Control
from ridgeline_exporters.engine.description import describe
from ridgeline_exporters.engine.exporter import Exporter
from ridgeline_exporters.engine.requests import Objectives
from ridgeline_exporters.engine.server import ExporterServer
from ridgeline_exporters.engine.settings import Settings, read_settings

logger = logging.getLogger("vllm.plugins.ridgeline")

_EXPORTER = "_ridgeline_exporter"
_WRAPPED = "_ridgeline_wrapped"


def register() -> None:
    """Wrap vLLM's scheduler. Called by vLLM in each of its processes, at times more than once."""
    try:
        from vllm.v1.core.sched.scheduler import Scheduler
    except Exception:
        logger.exception("The Ridgeline exporter does not know this vLLM and stays off.")
        return
    wrap(Scheduler)


def wrap(scheduler: type[Any]) -> None:
    """Wrap the methods of a scheduler class, once."""
    if _WRAPPED in vars(scheduler):
        return
    init, schedule = scheduler.__init__, scheduler.schedule
    update, finish = scheduler.update_from_output, scheduler.finish_requests

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

    scheduler.__init__ = ridgeline_init
    scheduler.schedule = ridgeline_schedule
    scheduler.update_from_output = ridgeline_update
    scheduler.finish_requests = ridgeline_finish
    setattr(scheduler, _WRAPPED, True)


def start_exporter(scheduler: Any) -> None:
    """Start the exporter of a scheduler that has just been built; without one, the engine runs on."""
    try:
        settings = read_settings(os.environ)
        for problem in settings.problems:
            logger.warning("Ridgeline: %s.", problem)
        exporter, server = build(scheduler, settings)
    except OSError as error:
        logger.warning("The Ridgeline exporter could not listen and stays off; the engine is not affected: %s", error)
        return
    except Exception:
        logger.exception("The Ridgeline exporter could not start; the engine is not affected.")
        return
    setattr(scheduler, _EXPORTER, exporter)
    logger.info("Ridgeline's engine exporter listens on port %d.", server.port)


def build(scheduler: Any, settings: Settings) -> tuple[Exporter, ExporterServer]:
    """Make the exporter of a scheduler and serve it.

    Raises:
        OSError: the port cannot be had.
    """
    description = describe(scheduler, settings)
    objectives = Objectives(settings.time_to_first_token_seconds, settings.inter_token_seconds)
    control = Control(description.maximum, description.smallest_tokens, objectives)
    exporter = Exporter(scheduler, description, control)
    port = settings.port + description.rank if settings.port else 0
    server = ExporterServer((settings.host, port), exporter, settings.control_token)
    server.start()
    return exporter, server
