"""Panels in Ridgeline's style, and their placing on Grafana's grid of 24 columns.

A panel is written once, with its query, unit and a sentence on how to read it; everything that panels have in
common (datasource variable, legend, tooltip, ids, positions) is set here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.builders import prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DATASOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
COLUMNS = 24

FLOPS_PER_BYTE = "suffix: FLOP/B"
TOKENS_PER_SECOND = "suffix: tok/s"
TOKENS = "suffix: tok"
PER_SECOND = "suffix:/s"
RATIO = "percentunit"
SECONDS = "s"
REQUESTS_PER_SECOND = "reqps"
BYTES = "bytes"
BYTES_PER_SECOND = "Bps"
FLOPS_PER_SECOND = "flops"
COUNT = "short"

PanelBuilder = timeseries.Panel | stat.Panel | table.Panel | statetimeline.Panel
Builder = TypeVar("Builder", timeseries.Panel, stat.Panel, table.Panel, statetimeline.Panel)


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression and the legend of its series, such as `{{phase}}`."""

    expr: str
    legend: str = ""
    dashed: bool = False
    """Drawn as a dashed line: a limit, not a measurement."""


def _targets(panel: Builder, queries: Sequence[Query], *, instant: bool = False, as_table: bool = False) -> Builder:
    for letter, query in zip("ABCDEFGH", queries, strict=False):
        target = prometheus.Dataquery().ref_id(letter).expr(query.expr).datasource(DATASOURCE)
        target = target.legend_format(query.legend or "__auto")
        target = target.instant() if instant else target.range()
        panel.with_target(target.format(PromQueryFormat.TABLE if as_table else PromQueryFormat.TIME_SERIES))
    return panel


def graph(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    stacked: bool = False,
    logarithmic: bool = False,
    steps: bool = False,
    most: float | None = None,
    signed: bool = False,
) -> timeseries.Panel:
    """Values over time.

    Args:
        title: short, unique on its dashboard.
        description: how to read it.
        unit: Grafana's name of the unit.
        queries: range queries.
        stacked: areas on top of each other.
        logarithmic: axis to base 10, for values over several orders of magnitude.
        steps: values that hold until they change, such as a count of engines.
        most: upper end of the axis that is always shown.
        signed: values may be below zero.
    """
    panel = timeseries.Panel().title(title).description(description).datasource(DATASOURCE).unit(unit)
    panel.legend(
        common_builders.VizLegendOptions()
        .show_legend(True)
        .display_mode(common.LegendDisplayMode.LIST)
        .placement(common.LegendPlacement.BOTTOM)
    )
    panel.tooltip(
        common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
    )
    panel.line_width(2 if not stacked else 1).fill_opacity(60 if stacked else 8)
    panel.show_points(common.VisibilityMode.NEVER)
    if stacked:
        panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    if steps:
        panel.line_interpolation(common.LineInterpolation.STEP_AFTER)
    if logarithmic:
        scale = common_builders.ScaleDistributionConfig().type(common.ScaleDistribution.LOG).log(10)
        panel.scale_distribution(scale)
    elif not signed:
        panel.min(0)
    if most is not None:
        panel.axis_soft_max(most)
    for letter, query in zip("ABCDEFGH", queries, strict=False):
        if query.dashed:
            style = {"fill": "dash", "dash": [10, 10]}
            properties = [_set("custom.lineStyle", style), _set("custom.fillOpacity", 0)]
            properties += [_set("custom.stacking", {"mode": "none", "group": "A"})] if stacked else []
            panel.override_by_query(letter, properties)
    return _targets(panel, queries)


def number(
    title: str, description: str, unit: str, *queries: Query, amber: float | None = None, red: float | None = None
) -> stat.Panel:
    """The value now, in amber or red from a limit on; of several queries each by its legend."""
    steps = [dashboard.Threshold(value=None, color="green" if red is not None else "text")]
    steps += [dashboard.Threshold(value=amber, color="orange")] if amber is not None else []
    steps += [dashboard.Threshold(value=red, color="red")] if red is not None else []
    panel = stat.Panel().title(title).description(description).datasource(DATASOURCE).unit(unit)
    panel.graph_mode(common.BigValueGraphMode.NONE)
    panel.reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(False))
    panel.thresholds(dashboard_builders.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps))
    return _targets(panel, queries, instant=True)


def word(title: str, description: str, query: Query) -> stat.Panel:
    """The legend of the one series that a query yields."""
    panel = number(title, description, "none", query)
    return panel.text_mode(common.BigValueTextMode.NAME)


def rows_of(title: str, description: str, unit: str, query: Query, columns: dict[str, str]) -> table.Panel:
    """A table of the series that a query yields now.

    Args:
        title: short, unique on its dashboard.
        description: how to read it.
        unit: of the value.
        query: instant query.
        columns: label → heading, in order; `Value` is the value. Other labels are left out.
    """
    panel = table.Panel().title(title).description(description).datasource(DATASOURCE).unit(unit)
    order = {name: position for position, name in enumerate(columns)}
    options = {"indexByName": order, "renameByName": columns, "includeByName": dict.fromkeys(columns, True)}
    panel.with_transformation(dashboard.DataTransformerConfig(id_val="organize", options=options))
    return _targets(panel, [query], instant=True, as_table=True)


def states(title: str, description: str, query: Query, texts: dict[str, tuple[str, str]]) -> statetimeline.Panel:
    """States over time.

    Args:
        title: short, unique on its dashboard.
        description: how to read it.
        query: range query.
        texts: value → (text, color).
    """
    panel = statetimeline.Panel().title(title).description(description).datasource(DATASOURCE).unit("none")
    results = {value: dashboard.ValueMappingResult(text=text, color=color) for value, (text, color) in texts.items()}
    panel.mappings([dashboard.ValueMap(options=results)])
    panel.show_value(common.VisibilityMode.NEVER)
    return _targets(panel, [query])


def _set(option: str, value: object) -> dashboard.DynamicConfigValue:
    return dashboard.DynamicConfigValue(id_val=option, value=value)


@dataclass(frozen=True, slots=True)
class Row:
    """A titled row and its panels, side by side in lines as `widths` divide them."""

    title: str
    lines: tuple[tuple[PanelBuilder, ...], ...]
    height: int = 8


def place(board: dashboard_builders.Dashboard, rows: Sequence[Row]) -> dashboard_builders.Dashboard:
    """Put rows onto a dashboard from the top, each line of panels over the whole width, with running ids."""
    top, next_id = 0, 1
    for row in rows:
        header = dashboard_builders.Row(row.title).id(next_id)
        board.with_row(header.grid_pos(dashboard.GridPos(h=1, w=COLUMNS, x=0, y=top)))
        top, next_id = top + 1, next_id + 1
        for line in row.lines:
            edges = [round(i * COLUMNS / len(line)) for i in range(len(line) + 1)]
            for panel, left, right in zip(line, edges, edges[1:], strict=False):
                panel.id(next_id)
                board.with_panel(panel.grid_pos(dashboard.GridPos(h=row.height, w=right - left, x=left, y=top)))
                next_id += 1
            top += row.height
    return board
