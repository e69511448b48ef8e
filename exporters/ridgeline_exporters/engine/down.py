"""What is served in the exporter's place when it could not start: that it is down.

A port that nobody listens on could also mean that the network is broken, or that the plug-in was never loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from prometheus_client import CollectorRegistry

from ridgeline_exporters.engine.metrics import OUTPUT_TOKENS, EngineCollector, Totals
from ridgeline_exporters.engine.server import Unavailable
from ridgeline_exporters.metric_family import Sample


class DownExporter:
    """Counts nothing, and says so."""

    def __init__(self) -> None:
        self.totals = Totals()
        self.totals.errors = 1
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(self))

    def outputs_longer(self) -> list[int]:
        """None was seen."""
        return [0] * len(OUTPUT_TOKENS)

    def gauges(self) -> Mapping[str, Iterable[Sample]]:
        """That it is down; nothing else is known."""
        return {"exporter_up": [((), 0.0)]}

    def state(self) -> dict[str, Any]:
        """Refused."""
        self._refuse()

    def put_limits(self, body: Any) -> dict[str, Any]:
        """Refused."""
        self._refuse()

    def put_objectives(self, body: Any) -> dict[str, Any]:
        """Refused."""
        self._refuse()

    @staticmethod
    def _refuse() -> NoReturn:
        raise Unavailable("the exporter could not start; the engine's log says why")
