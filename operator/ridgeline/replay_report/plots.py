"""The plots of a report, and the values that a reader finds on them under the pointer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ridgeline.decide.triggers import DECODE_BAND, PREFILL_BAND
from ridgeline.replay_report.course import Course, Point
from ridgeline.replay_report.plot import Axis, Plot, linear, logarithmic, time_axis
from ridgeline.replay_report.text import (
    clock,
    html,
    number,
    percent,
    percent_tick,
    policy_name,
    seconds,
    seconds_tick,
    tick,
)
from ridgeline.simulate.pressure import MOST_PRESSURE
from ridgeline_exporters.roofline.hardware import TERA

MOST_MARKS = 200
"""Decisions that are marked and listed; beyond these `--json` has them all."""
MARK_WIDTH = 0.028
"""Share of a plot within which two marks would cover each other."""
MARK_ROWS = 5
MOST_PRESSURE_SHOWN = 2.0
"""A line goes no higher; the value under the pointer does."""
PHASES = ("prefill", "decode")
ROLES = (*PHASES, "mixed")
Value = Callable[[Point], float | None]
Format = Callable[[float | None], str]


@dataclass(slots=True)
class Hover:
    """What the script shows under the pointer, as plain values for JSON."""

    end: float
    times: dict[str, list[float]] = field(default_factory=dict)
    """Ends of the intervals of each policy, by its place."""
    plots: dict[str, list[list[Any]]] = field(default_factory=dict)
    """By plot: rows of label, place of the policy, text for each interval, whether a legend can switch it off."""
    roofs: dict[str, list[Any]] = field(default_factory=dict)
    """By plot: place of the policy, and for both phases where their dot is, in per cents, for each interval."""

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"end": self.end, "times": self.times, "plots": self.plots, "roofs": self.roofs}

    def add(self, plot: str, label: str, course: Course, value: Value, text: Format, switchable: bool = False) -> None:
        """A row of a plot's values."""
        self.times.setdefault(str(course.place), [point.end_seconds for point in course.points])
        row = [label, course.place, [text(value(point)) for point in course.points], switchable]
        self.plots.setdefault(plot, []).append(row)


class Drawing:
    """Draws the plots of an answer.

    Args:
        answer: as `ridgeline replay --json` prints it.
        played: its policies.
    """

    def __init__(self, answer: Mapping[str, Any], played: Sequence[Course]) -> None:
        self._played = played
        self._engines: int = answer["engines"]
        self._peak_flops: float = answer["peak_flops_per_second"]
        self._peak_bytes: float = answer["peak_memory_bytes_per_second"]
        self._first_token = answer["time_to_first_token_objective_milliseconds"] / 1000.0
        self._gap = answer["inter_token_objective_milliseconds"] / 1000.0
        end = max((course.end_seconds for course in played), default=0.0)
        self._time = time_axis(end)
        self.hover = Hover(self._time.high)

    # ------------------------------------------------------------ all policies

    def comparison(self) -> list[str]:
        """All policies over time."""
        rate = linear(self._most(lambda p: p.met_per_second))
        stall = linear(self._most(lambda p: p.stall_ratio))
        first = self._around(lambda p: p.first_token_p95_seconds, self._first_token)
        gap = self._around(lambda p: p.gap_p99_seconds, self._gap)
        return [
            self._compared(
                "goodput", "Goodput", "requests that met their objectives, a second, by time of arrival", rate,
                lambda p: p.met_per_second, lambda v: number(v, "a second"), tick,
            ),
            self._compared(
                "stall", "Decode stall", "share of decode time that prefills took; broken where nothing was decoded",
                stall, lambda p: p.stall_ratio, percent, percent_tick,
            ),
            self._compared(
                "first-token", "Time to first token, p95", "logarithmic; of the requests that arrived then", first,
                lambda p: p.first_token_p95_seconds, seconds, seconds_tick, (self._first_token, "objective"),
            ),
            self._compared(
                "gap", "Gap between tokens, p99", "logarithmic; over all tokens of then", gap,
                lambda p: p.gap_p99_seconds, seconds, seconds_tick, (self._gap, "objective"),
            ),
        ]  # fmt: skip

    def _compared(
        self,
        identifier: str,
        title: str,
        note: str,
        axis: Axis,
        value: Value,
        text: Format,
        scale: Callable[[float], str],
        level: tuple[float, str] | None = None,
    ) -> str:
        plot = self._plot(identifier, title, note, axis, scale)
        if level is not None:
            plot.level(*level)
        for course in reversed(self._played):  # the first policy lies on top
            plot.line(_middles(course, value), f"s{course.place % 8} d{course.place // 8 % 3}", course.place)
        for course in self._played:
            self.hover.add(identifier, policy_name(course.name, self._engines), course, value, text, True)
        return plot.html()

    # ------------------------------------------------------------ one policy

    def of(self, course: Course) -> list[str]:
        """The plots of one policy."""
        plots = [self._topology(course), self._pressure(course), self._busy(course)]
        roof = self._roof(course)
        plots += [roof] if roof else []
        plots += [
            self._quantiles(
                course, "first", "Time to first token", self._first_token,
                {"p50": lambda p: p.first_token_p50_seconds, "p95": lambda p: p.first_token_p95_seconds},
            ),
            self._quantiles(
                course, "gaps", "Gap between tokens", self._gap,
                {
                    "p50": lambda p: p.gap_p50_seconds, "p95": lambda p: p.gap_p95_seconds,
                    "p99": lambda p: p.gap_p99_seconds,
                },
            ),
        ]  # fmt: skip
        if any(point.token_budget for point in course.points):
            plots.insert(1, self._budget(course))
        return plots

    def _topology(self, course: Course) -> str:
        key = f"topology-{course.place}"
        note = "engines by role; letters are decisions: point at one, or reach it with the Tab key, for its evidence"
        plot = self._plot(key, "Topology", note, linear(float(self._engines), 1.0), tick, ROLES)
        roles: dict[str, Callable[[Point], int]] = {
            "decode": lambda p: p.decode, "prefill": lambda p: p.prefill, "mixed": lambda p: p.mixed,
        }  # fmt: skip
        below = [0.0] * len(course.points)
        for role, engines in roles.items():
            tops = [low + engines(point) for low, point in zip(below, course.points, strict=True)]
            spans = [
                (point.start_seconds, point.end_seconds, low, top)
                for point, low, top in zip(course.points, below, tops, strict=True)
            ]
            plot.area(spans, role)
            below = tops
        for role, engines in reversed(roles.items()):
            self.hover.add(key, role, course, lambda p, e=engines: float(e(p)), _whole)  # type: ignore[misc]
        plot.beside += self._marks(course)
        return plot.html()

    def _marks(self, course: Course) -> list[str]:
        marks: list[str] = []
        last = [-1.0] * MARK_ROWS
        """Where the last mark of each row lies."""
        for place, event in enumerate(course.decisions[:MOST_MARKS]):
            share = self._time(event["seconds"])
            row = next((row for row in range(MARK_ROWS) if share - last[row] >= MARK_WIDTH), last.index(min(last)))
            last[row] = share
            told = html(f"{clock(event['seconds'])} {event['action']} ({event['reason']}): {event['message']}")
            marks.append(
                f'<a class="mark" href="#decision-{course.place}-{place}" style="left:{100 * share:.2f}%;'
                f'top:{4 + 22 * row}px" title="{told}" aria-label="{told}">{html(str(event["action"])[:1].upper())}</a>'
            )
        return marks

    def _budget(self, course: Course) -> str:
        key = f"budget-{course.place}"
        values = [float(point.token_budget) for point in course.points if point.token_budget]
        axis = logarithmic(values)
        plot = self._plot(key, "Token budget", "tokens a step, least of the mixed engines; logarithmic", axis, tick)
        spans = [(p.start_seconds, p.end_seconds, _float(p.token_budget)) for p in course.points]
        plot.steps(spans, "s0")
        self.hover.add(key, "budget", course, lambda p: _float(p.token_budget), lambda v: _whole(v) + " tokens")
        return plot.html()

    def _pressure(self, course: Course) -> str:
        key = f"pressure-{course.place}"
        phases: dict[str, Value] = {"prefill": lambda p: p.prefill_pressure, "decode": lambda p: p.decode_pressure}
        known = [v for value in phases.values() for p in course.points if (v := value(p)) is not None]
        note = "work offered over what the engines can do, modelled; of decode the tightest of objective, KV cache and link"
        most = min(MOST_PRESSURE_SHOWN, max([1.0, *known]))
        plot = self._plot(key, "Pressure on each phase", note, linear(round(most, 2)), percent_tick, PHASES)
        plot.level(DECODE_BAND, "decode band")
        plot.level(PREFILL_BAND, "prefill band", below=True)
        for phase, value in phases.items():
            plot.line(_middles(course, value), phase)
            self.hover.add(key, phase, course, value, _pressure)
        return plot.html()

    def _busy(self, course: Course) -> str:
        key = f"busy-{course.place}"
        shares = [v for p in course.points for v in (p.prefill_busy, p.decode_busy) if v is not None]
        note = (
            "of the engines that take it; prompts wait where prefill nears 100 %, "
            "decode fills its time with small batches long before"
        )
        most = max([1.0, *(round(share, 2) for share in shares)])
        plot = self._plot(key, "Time in each phase", note, linear(most), percent_tick, PHASES)
        phases: dict[str, Value] = {"prefill": lambda p: p.prefill_busy, "decode": lambda p: p.decode_busy}
        for phase, value in phases.items():
            plot.line(_middles(course, value), phase)
            self.hover.add(key, phase, course, value, percent)
        intensities: dict[str, Value] = {
            "prefill": lambda p: p.prefill_intensity,
            "decode": lambda p: p.decode_intensity,
        }
        for phase, value in intensities.items():
            self.hover.add(key, f"{phase} intensity", course, value, lambda v: number(v, "FLOP/byte"))
        return plot.html()

    def _roof(self, course: Course) -> str:
        """The phases under the roof: a dot for each interval. Empty where the work of the phases is not known."""
        key = f"roof-{course.place}"
        phases: dict[str, Callable[[Point], tuple[float | None, float | None]]] = {
            "prefill": lambda p: (p.prefill_intensity, p.prefill_flops_per_second),
            "decode": lambda p: (p.decode_intensity, p.decode_flops_per_second),
        }
        dots = {phase: [_both(value(point)) for point in course.points] for phase, value in phases.items()}
        known = [dot for each in dots.values() for dot in each if dot is not None]
        if not known:
            return ""
        ridge = self._peak_flops / self._peak_bytes
        x = logarithmic([ridge * 3.0, ridge / 30.0, *(dot[0] for dot in known)], with_halves=False)
        y = logarithmic([self._peak_flops, *(dot[1] for dot in known)], with_halves=False)
        plot = Plot(
            key, "Phases on the roofline", f"Peak {self._peak_flops / TERA:,.0f} TFLOPS, ridge {ridge:,.0f} FLOP/byte.",
            x, y, tick, lambda v: tick(v / TERA),
            "TFLOPS of an engine while busy, by FLOP/byte, both logarithmic; a dot is an interval", PHASES,
        )  # fmt: skip
        plot.line([(x.low, x.low * self._peak_bytes), (ridge, self._peak_flops), (x.high, self._peak_flops)], "roof")
        plot.line([(ridge, y.low), (ridge, self._peak_flops)], "limit")
        plot.beside.append(f'<span class="ridge" style="left:{100 * x(ridge):.2f}%">ridge {ridge:,.0f}</span>')
        places = []
        for phase, each in dots.items():
            plot.dots([dot for dot in each if dot is not None], phase)
            places.append([dot and [round(100 * x(dot[0]), 2), round(100 * (1 - y(dot[1])), 2)] for dot in each])
        self.hover.roofs[key] = [course.place, *places]
        return plot.html()

    def _quantiles(
        self, course: Course, name: str, title: str, objective: float, quantiles: Mapping[str, Value]
    ) -> str:
        key = f"{name}-{course.place}"
        values = [v for value in quantiles.values() for p in course.points if (v := value(p)) is not None]
        plot = self._plot(key, title, "logarithmic", logarithmic([objective, *values]), seconds_tick, tuple(quantiles))
        plot.level(objective, "objective")
        for quantile, value in quantiles.items():
            plot.line(_middles(course, value), quantile)
            self.hover.add(key, quantile, course, value, seconds)
        return plot.html()

    # ------------------------------------------------------------ parts

    def _plot(
        self, key: str, title: str, note: str, y: Axis, scale: Callable[[float], str], keys: Sequence[str] = ()
    ) -> Plot:
        return Plot(key, title, f"{title} over time: {note}.", self._time, y, clock, scale, note, keys)

    def _values(self, value: Value) -> list[float]:
        return [v for course in self._played for point in course.points if (v := value(point)) is not None]

    def _most(self, value: Value) -> float:
        return max(self._values(value), default=0.0)

    def _around(self, value: Value, level: float) -> Axis:
        return logarithmic([level, *self._values(value)])


def _middles(course: Course, value: Value) -> list[tuple[float, float | None]]:
    return [((point.start_seconds + point.end_seconds) / 2.0, value(point)) for point in course.points]


def _both(values: tuple[float | None, float | None]) -> tuple[float, float] | None:
    x, y = values
    return (x, y) if x and y else None


def _float(value: int | None) -> float | None:
    return None if value is None else float(value)


def _pressure(value: float | None) -> str:
    return f"{percent(MOST_PRESSURE)} and more" if value == MOST_PRESSURE else percent(value)


def _whole(value: float | None) -> str:
    return "none" if value is None else f"{value:,.0f}"
