"""What rules and dashboards may read, and a check that an expression reads nothing else.

Every selector must name a series that is exported, recorded or on the short list of foreign ones, and only
labels that it has; every `by`, `on`, `group_left` and legend only labels that are there at that point. The sets
of labels are followed through the whole expression, so two sides that can never match are found too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser as promql
import yaml

from ridgeline.api.conditions import ConditionType, Verdict
from ridgeline.api.fleet import Action, Mode, Recommendation, Role, TopologyStatus
from ridgeline.metrics import FleetView, OperatorMetrics
from ridgeline_exporters.engine.metric_families import FAMILIES, PREFIX
from ridgeline_exporters.gpu import metrics as gpu

ROOT = Path(__file__).resolve().parents[1]
RULES = ROOT / "helm" / "ridgeline" / "rules"
DASHBOARDS = ROOT / "helm" / "ridgeline" / "dashboards"
METRICS_PAGE = ROOT / "docs" / "metrics.md"

TARGET_LABELS = frozenset({"namespace", "fleet", "pod", "job", "instance"})
"""Labels that every series of an engine or a router carries once it is scraped."""
OPERATOR_TARGET_LABELS = frozenset({"namespace", "pod", "job", "instance"})

GPU_TARGET_LABELS = frozenset({"job", "instance"})
"""The pod of a GPU's series is the one that holds the GPU; series of the exporter itself are read by node."""

VLLM = TARGET_LABELS | {"model_name", "engine"}
DCGM = OPERATOR_TARGET_LABELS | {"gpu", "UUID", "container", "exported_namespace", "exported_pod", "exported_container"}
FOREIGN: Mapping[str, frozenset[str]] = {
    "DCGM_FI_PROF_DRAM_ACTIVE": DCGM,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": DCGM,
    "up": TARGET_LABELS,
    "vllm:kv_cache_usage_perc": VLLM,
    "vllm:nixl_bytes_transferred_sum": VLLM,
    "vllm:nixl_num_failed_transfers_total": VLLM,
    "vllm:nixl_num_kv_expired_reqs_total": VLLM,
    "vllm:nixl_num_notifications_after_expiry_total": VLLM,
    "vllm:nixl_xfer_time_seconds_bucket": VLLM | {"le"},
    "vllm:prompt_tokens_by_source_total": VLLM | {"source"},
}
"""Series of others that are read, with the labels they have in vLLM 0.32 and dcgm-exporter 4."""

COUNTER_ENDS = ("_total", "_bucket", "_sum", "_count")


@dataclass(frozen=True, slots=True)
class Exported:
    """One exported family."""

    name: str
    kind: str
    labels: frozenset[str]
    """Its own labels, without those of the target."""

    def series(self, target_labels: frozenset[str]) -> dict[str, frozenset[str]]:
        """Series that the family makes once it is scraped, with their labels."""
        labels = self.labels | target_labels
        if self.kind != "histogram":
            return {self.name: labels}
        return {f"{self.name}_bucket": labels | {"le"}, f"{self.name}_sum": labels, f"{self.name}_count": labels}


def engine_families() -> tuple[Exported, ...]:
    """Families of the engine exporter."""
    return tuple(Exported(PREFIX + f.name, f.kind, frozenset(f.labels)) for f in FAMILIES)


def gpu_families() -> tuple[Exported, ...]:
    """Families of the GPU exporter."""
    return tuple(Exported(gpu.PREFIX + f.name, f.kind, frozenset(f.labels)) for f in gpu.FAMILIES)


def operator_metrics() -> OperatorMetrics:
    """The operator's metrics, each made to have a sample, whose labels can be read."""
    key, topology = ("n", "f"), TopologyStatus(mode=Mode.SPLIT, mixed=0, prefill=1, decode=1, tokenBudget=512)
    best = Recommendation(mode=Mode.SPLIT, prefill=1, decode=1, reason="R", message="m", time="t", enginesNeeded=2)
    metrics = OperatorMetrics()
    metrics.show(
        key,
        FleetView(
            roles={"p": Role.PREFILL},
            topology=topology,
            recommendation=best,
            sampled_at=1.0,
            seen_at=2.0,
            conditions={ConditionType.READY: Verdict("True", "R")},
            step_time_corrections={"decode": 1.0},
        ),
    )
    metrics.decided(key, Action.SPLIT, "R")
    metrics.routed(key, Action.SPLIT, 1.0)
    metrics.transition_over(key, Action.SPLIT, "done", 1.0)
    return metrics


@cache
def operator_families() -> tuple[Exported, ...]:
    """Families of the operator."""
    found = []
    for family in operator_metrics().registry.collect():
        assert family.samples, f"{family.name} has no sample here, so its labels are unknown: extend this view"
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found.append(Exported(name, family.type, frozenset(labels)))
    return tuple(found)


@dataclass(slots=True)
class Known:
    """Series that may be read, with their labels."""

    series: dict[str, frozenset[str]]
    recorded: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    """Series that were read so far."""


def rule_files() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every rule and alert of the chart, with the place where it stands."""
    for path in sorted(RULES.glob("*.yaml")):
        text = path.read_text().replace("${window}", "45s").replace("${interval}", "5s")
        for group in yaml.safe_load(text)["groups"]:
            yield from ((f"{path.name} {rule.get('record') or rule['alert']}", rule) for rule in group["rules"])


def exported_series() -> dict[str, frozenset[str]]:
    """Every series that Ridgeline exports, with its labels."""
    series: dict[str, frozenset[str]] = {}
    for family in engine_families():
        series |= family.series(TARGET_LABELS)
    for family in gpu_families():
        series |= family.series(GPU_TARGET_LABELS)
    for family in operator_families():
        series |= family.series(OPERATOR_TARGET_LABELS)
    return series


def known_series() -> tuple[Known, list[str]]:
    """All that may be read, and the problems of the rules, which are checked in the order they are recorded in."""
    known = Known(exported_series() | dict(FOREIGN))
    problems = []
    rules = list(rule_files())
    for place, rule in sorted(rules, key=lambda item: "alert" in item[1]):
        labels, found = check(rule["expr"], known)
        problems += [f"{place}: {problem}" for problem in found]
        if "record" in rule:
            known.series[rule["record"]] = labels
            known.recorded.add(rule["record"])
        texts = " ".join(rule.get("annotations", {}).values())
        missing = set(re.findall(r"\$labels\.(\w+)", texts)) - labels
        problems += [f"{place}: its texts use {label}, which the alert has not" for label in sorted(missing)]
    return known, problems


def substitute(expression: str) -> str:
    """Put values where Grafana's variables stand; the parser knows none."""
    expression = re.sub(r"\$__(rate_interval|interval|range)\b", "5m", expression)
    return re.sub(r"\$\{?\w+\}?", "x", expression)


def check(expression: str, known: Known) -> tuple[frozenset[str], list[str]]:
    """Labels of the result of an expression, and what is wrong with it."""
    try:
        tree = promql.parse(substitute(expression))
    except ValueError as error:
        return frozenset(), [f"does not parse: {error}"]
    walk = _Walk(known)
    return frozenset(walk.labels(tree)), walk.problems


class _Walk:
    """One pass over an expression."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self.problems: list[str] = []

    def labels(self, node: Any, ranged: bool = False) -> set[str]:
        match node:
            case promql.VectorSelector():
                return self._selector(node, ranged or node.offset is not None)
            case promql.MatrixSelector():
                return self._selector(node.vector_selector, ranged=True)
            case promql.SubqueryExpr() | promql.ParenExpr() | promql.UnaryExpr():
                return self.labels(node.expr)
            case promql.Call():
                return self._call(node)
            case promql.AggregateExpr():
                return self._aggregate(node)
            case promql.BinaryExpr():
                return self._binary(node)
        return set()

    def _need(self, wanted: Iterable[str], there: set[str], where: str) -> None:
        self.problems += [f"{where} names label {label}, which is not there" for label in sorted(set(wanted) - there)]

    def _selector(self, node: Any, ranged: bool) -> set[str]:
        matchers = [m for m in node.matchers.matchers if m.name != "__name__"]
        names = [node.name] if node.name else []
        for m in node.matchers.matchers:
            if m.name == "__name__":
                names += m.value.split("|")
        result: set[str] | None = None
        for name in names:
            if name not in self.known.series:
                self.problems.append(f"nobody exports or records {name}")
                continue
            self.known.read.add(name)
            if name.endswith(COUNTER_ENDS) and name not in self.known.recorded and not ranged:
                self.problems.append(f"{name} is a counter and read without a range")
            labels = set(self.known.series[name])
            self._need((m.name for m in matchers), labels, name)
            result = labels if result is None else result & labels
        return result or set()

    def _call(self, node: Any) -> set[str]:
        inner = [self.labels(argument) for argument in node.args]
        vectors = [labels for labels in inner if labels]
        if node.func.name == "absent":
            return {m.name for m in node.args[0].matchers.matchers} if vectors else set()
        if not vectors:
            return set()
        if node.func.name == "histogram_quantile":
            self._need(["le"], vectors[0], "histogram_quantile")
            return vectors[0] - {"le"}
        return vectors[0]

    def _aggregate(self, node: Any) -> set[str]:
        inner = self.labels(node.expr)
        operator = str(node.op)
        if node.modifier is None:
            return inner if operator in ("topk", "bottomk") else set()
        names = set(node.modifier.labels)
        self._need(names, inner, f"{operator} by")
        if operator in ("topk", "bottomk"):
            return inner
        return names if node.modifier.type == promql.AggModifierType.By else inner - names

    def _binary(self, node: Any) -> set[str]:
        operator = str(node.op)
        left, right = self.labels(node.lhs), self.labels(node.rhs)
        numbers = (promql.NumberLiteral,)
        if isinstance(node.lhs, numbers) or isinstance(node.rhs, numbers) or _is_time(node.lhs):
            return left or right
        modifier = node.modifier
        matching = modifier.matching if modifier else None
        if matching and matching.type == promql.LabelModifierType.Include:
            self._need(matching.labels, left, f"on of {operator}, left side,")
            self._need(matching.labels, right, f"on of {operator}, right side,")
        elif matching is None and operator not in ("or",) and left != right:
            self.problems.append(f"the sides of {operator} never match: {sorted(left)} and {sorted(right)}")
        if operator == "or":
            return left | right
        if operator in ("and", "unless") or matching is None:
            return left
        if modifier.card == promql.VectorMatchCardinality.ManyToOne:
            self._need(modifier.group_labels or (), right, "group_left")
            return left | set(modifier.group_labels or ())
        return set(matching.labels)


def _is_time(node: Any) -> bool:
    return isinstance(node, promql.Call) and node.func.name == "time"


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """One query of a dashboard and where it stands."""

    place: str
    expr: str
    legend: str
    columns: frozenset[str]
    """Labels that a table shows."""


def dashboards() -> dict[str, dict[str, Any]]:
    """Every committed dashboard, by file name."""
    return {path.name: json.loads(path.read_text()) for path in sorted(DASHBOARDS.glob("*.json"))}


def panels(board: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every panel, also those inside collapsed rows."""
    for panel in board["panels"]:
        yield panel
        yield from panel.get("panels") or []


def panel_queries(name: str, board: Mapping[str, Any]) -> Iterator[PanelQuery]:
    """Queries of panels, annotations and variables."""
    for panel in panels(board):
        columns: set[str] = set()
        for step in panel.get("transformations") or []:
            columns |= set(step["options"].get("includeByName", {})) - {"Value", "Time"}
        for target in panel.get("targets") or []:
            place = f"{name} {panel['title']} {target['refId']}"
            legend = target.get("legendFormat") or ""
            yield PanelQuery(place, target["expr"], "" if legend == "__auto" else legend, frozenset(columns))
    for note in board["annotations"]["list"]:
        texts = f"{note.get('titleFormat', '')} {note.get('textFormat', '')}"
        yield PanelQuery(f"{name} annotation {note['name']}", note["expr"], texts, frozenset())
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
            assert found, f"{variable['query']} is not label_values(SELECTOR, LABEL)"
            yield PanelQuery(f"{name} variable {variable['name']}", found[1], f"{{{{{found[2]}}}}}", frozenset())


def check_query(query: PanelQuery, known: Known) -> list[str]:
    """What is wrong with a panel's query and its legend."""
    labels, problems = check(query.expr, known)
    wanted = set(re.findall(r"\{\{\s*(\w+)\s*\}\}", query.legend)) | query.columns
    return problems + [f"shows label {label}, which the result has not" for label in sorted(wanted - labels)]
