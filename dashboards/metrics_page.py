"""The tables of docs/metrics.md, made from what the code declares.

python -m dashboards.metrics_page        # from the root of the repository

The prose of the page is written by hand; between a marker and its `<!-- end -->` stands a table that nobody edits. The
meaning of a rule is the `#:` comment above it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry

from dashboards.contract import METRICS_PAGE, RULES, known_series, operator_metrics, rule_files
from dashboards.markdown import filled, table
from ridgeline.registrar.metrics import RegistrarMetrics
from ridgeline_exporters.engine import metric_families as engine
from ridgeline_exporters.gpu import metrics as gpu
from ridgeline_exporters.metric_family import Family

UNITS: tuple[tuple[str, str], ...] = (
    (r"flops_per_byte$", "FLOP/byte"),
    (r"bytes_per_second$|bytes:rate$", "bytes/s"),
    (r"bytes_per_token$", "bytes/token"),
    (r"flops_per_token$", "FLOP/token"),
    (r"timestamp_seconds$", "Unix seconds"),
    (r"seconds:rate$", "s/s"),
    (r"seconds(_total)?$|seconds:", "s"),
    (r"bytes(_total)?$", "bytes"),
    (r"peak_flops$", "FLOP/s"),
    (r"flops_total$", "FLOP"),
    (r"model_error:ratio$", "share, from -1 on"),
    (r"correction_ratio$", "0.5 to 2"),
    (r"ratio$", "0 to 1"),
    (r"tokens:rate$", "tokens/s"),
    (r":rate$", "1/s"),
    (r"tokens(_total)?$|tokens:|token_budget$|limit_tokens$", "tokens"),
)
"""The unit that a name ends with; everything else is a count, or 1 for what holds."""


def unit(name: str) -> str:
    """Unit of a series by its name."""
    return next((text for pattern, text in UNITS if re.search(pattern, name)), "")


def tables() -> Mapping[str, str]:
    """Marker → table."""
    return {
        "engine exporter": _declared(engine.PREFIX, engine.FAMILIES),
        "GPU exporter": _declared(gpu.PREFIX, gpu.FAMILIES),
        "operator": _registered(operator_metrics().registry),
        "registrar": _registered(RegistrarMetrics().registry),
        "recording rules": _recorded(),
        "alerts": _alerts(),
    }


def page(before: str) -> str:
    """The page with its tables made anew.

    Raises:
        ValueError: a marker is missing.
    """
    for marker, made in tables().items():
        before = filled(before, marker, made, METRICS_PAGE.name)
    return before


def meanings() -> Mapping[str, str]:
    """Rule or alert → the sentences above it."""
    found: dict[str, str] = {}
    for path in sorted(RULES.glob("*.yaml")):
        said: list[str] = []
        for line in path.read_text().splitlines():
            if (comment := line.strip()).startswith("#:"):
                said.append(comment.removeprefix("#:").strip())
            elif named := re.match(r"\s*- (?:record|alert): (\S+)", line):
                found[named[1]] = " ".join(said)
                said = []
    return found


def _declared(prefix: str, families: Iterable[Family]) -> str:
    rows = []
    for family in families:
        parts = [family.help]
        parts += [f"*Formula:* {family.formula}."] if family.formula else []
        parts += [f"*Caveat:* {family.caveat}"] if family.caveat else []
        name = prefix + family.name
        rows.append((_code(name), family.kind, _codes(family.labels), unit(name), "<br>".join(parts)))
    return table(("name", "type", "labels", "unit", "meaning"), rows)


def _registered(registry: CollectorRegistry) -> str:
    rows = []
    for family in registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = dict.fromkeys(label for sample in family.samples for label in sample.labels if label != "le")
        rows.append((_code(name), family.type, _codes(labels), unit(name), family.documentation))
    return table(("name", "type", "labels", "unit", "meaning"), rows)


def _recorded() -> str:
    known, said = known_series()[0], meanings()
    rows = []
    for _, rule in rule_files():
        if name := rule.get("record"):
            labels = sorted(known.series[name] - {"namespace", "fleet"})
            rows.append((_code(name), _codes(labels), unit(name), said[name]))
    return table(("name", "labels", "unit", "meaning"), rows)


def _alerts() -> str:
    said = meanings()
    rows = [
        (_code(rule["alert"]), rule["labels"]["severity"], said[rule["alert"]])
        for _, rule in rule_files()
        if "alert" in rule
    ]
    return table(("name", "severity", "fires when"), rows)


def _code(text: str) -> str:
    return f"`{text}`"


def _codes(texts: Iterable[str]) -> str:
    return ", ".join(map(_code, texts))


def main(path: Path = METRICS_PAGE) -> None:
    """Write the tables."""
    path.write_text(page(path.read_text()))


if __name__ == "__main__":
    main()
