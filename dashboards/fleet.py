"""The dashboard "Ridgeline fleet": one fleet, from its topology down to the exporter's own health.

What the operator decides on is shown from the same recording rules that it reads. Counters that are read
directly are those that no rule covers, or that are wanted by engine.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import dashboard

from dashboards.fleet_engines import roofline, stall, tokens, transfer
from dashboards.fleet_gpus import gpus, measured
from dashboards.fleet_health import health
from dashboards.fleet_service import latency, now, requests, topology, transitions
from dashboards.panels import DATASOURCE, place
from dashboards.queries import RATE, counted

UID = "ridgeline-fleet"
KNOWN = '{__name__=~"ridgeline_fleet_mode|ridgeline_engine_exporter_up"'
"""Either is there: the operator's series of a fleet without engines, an engine's while the operator is away."""


def decisions_annotation() -> builders.AnnotationQuery:
    """Marks on every graph where something was decided."""
    decided = counted("ridgeline_fleet_decisions_total", RATE, 'action!="Hold"')
    return (
        builders.AnnotationQuery()
        .name("Decisions")
        .datasource(DATASOURCE)
        .enable(True)
        .icon_color("blue")
        .expr(f"sum by (action, reason) ({decided}) > 0")
        .step("5s")
        .title_format("{{action}}")
        .text_format("{{reason}}")
    )


def variable(name: str, label: str, query: str) -> builders.QueryVariable:
    """A variable with the values of a label, by name."""
    return (
        builders.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query(query)
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
    )


def build() -> builders.Dashboard:
    """The whole dashboard."""
    board = (
        builders.Dashboard("Ridgeline fleet")
        .uid(UID)
        .description("One fleet of vLLM engines on the roofline: what each phase does, what was decided, and why.")
        .tags(["ridgeline", "vllm"])
        .time("now-1h", "now")
        .refresh("10s")
        .timezone("browser")
        .readonly()
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .with_variable(builders.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(variable("namespace", "Namespace", f"label_values({KNOWN}}}, namespace)"))
        .with_variable(variable("fleet", "Fleet", f'label_values({KNOWN}, namespace="$namespace"}}, fleet)'))
        .annotation(decisions_annotation())
    )
    rows = (now, topology, requests, roofline, measured, stall, latency, transfer, tokens, transitions, gpus, health)
    return place(board, [row() for row in rows])
