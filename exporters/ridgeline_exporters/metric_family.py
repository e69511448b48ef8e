"""How an exporter declares a metric: what Prometheus gets, and what docs/metrics.md says of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]


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
