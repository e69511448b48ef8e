"""How an exporter declares a metric: what Prometheus gets, and what docs/metrics.md says of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

Kind = Literal["counter", "gauge", "histogram"]

Sample = tuple[tuple[str, ...], float]
"""Label values, in the order of the family's labels, and the value."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family, named without the exporter's prefix and, for counters, with `_total`."""

    name: str
    kind: Kind
    help: str
    """What it is, in one sentence: the HELP line and the meaning on the page."""
    labels: tuple[str, ...] = ()
    formula: str = ""
    """How it is computed, where the sentence does not say it."""
    caveat: str = ""
    """What it must not be taken for; when it is absent."""

    def metric(self, prefix: str, samples: Iterable[Sample]) -> CounterMetricFamily | GaugeMetricFamily:
        """What a scrape gets of a counter or a gauge.

        Args:
            prefix: the exporter's.
            samples: one for each series; none for what is not known.
        """
        kind = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        metric = kind(prefix + self.name, self.help, labels=self.labels)
        for labels, value in samples:
            metric.add_metric(labels, value)
        return metric
