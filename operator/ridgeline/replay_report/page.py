"""The page: summary, plots, decisions and the table of all figures, with style and script inside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from importlib.resources import files
from typing import Any

from ridgeline.plot_colours import DARK, LIGHT, Colours
from ridgeline.replay_report.course import Course, courses
from ridgeline.replay_report.plots import MOST_MARKS, Drawing
from ridgeline.replay_report.text import MISSING, clock, count, html, number, percent, policy_name, seconds
from ridgeline.replay_report.words import best, paragraphs, subject
from ridgeline_exporters.roofline.hardware import GIGA

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""What the page may load: nothing."""


def report_html(answer: Mapping[str, Any]) -> str:
    """The report of a replay.

    Args:
        answer: what `ridgeline replay --json` prints, with any number of policies.

    Returns:
        One HTML document that refers to nothing outside itself, the same for the same answer.
    """
    played = courses(answer["policies"])
    drawing = Drawing(answer, played)
    title = f"Ridgeline on {answer['trace']}"
    body = [f"<h1>{html(title)}</h1>", '<section class="summary">']
    body += [f"<p>{text}</p>" for text in paragraphs(answer, played)]
    body.append("</section>")
    if played:
        body += [*_bars(answer, played), *_comparison(answer, played, drawing), *_policies(answer, played, drawing)]
        body += _table(answer, played)
    data = json.dumps(drawing.hover.plain(), separators=(",", ":"), ensure_ascii=True).replace("<", "\\u003c")
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{html(title)}</title>",
            f"<style>\n{_style(len(played))}</style></head><body><main>",
            *body,
            "</main>",
            f'<script type="application/json" id="values">{data}</script>',
            f"<script>\n{_part('script.js')}</script></body></html>\n",
        ]
    )


def _part(name: str) -> str:
    return files("ridgeline.replay_report").joinpath(name).read_text(encoding="utf-8")


def _style(policies: int) -> str:
    chosen = ",".join(f"#policy-{i}:checked~.of-{i}" for i in range(policies))
    return "".join(
        [
            f":root{{{_colours(LIGHT)}}}\n@media (prefers-color-scheme:dark){{:root{{{_colours(DARK)}}}}}\n",
            _part("style.css"),
            f"{chosen}{{display:block}}\n" if chosen else "",
        ]
    )


def _colours(colours: Colours) -> str:
    return "".join(f"--{each.name}:{getattr(colours, each.name)};" for each in fields(colours))


# ---------------------------------------------------------------- bars


def _bars(answer: Mapping[str, Any], played: Sequence[Course]) -> Iterator[str]:
    """What each policy served, and what its GPUs were busy with."""
    most, about = best(played), subject(played)
    yield "<h2>What each policy served</h2>"
    yield '<p class="hint">Share of all requests that met their objectives, and of those, how many a second.</p>'
    yield '<div class="bars">'
    for course in played:
        share, rate = course.summary["attainment"], course.summary["goodput_requests_per_second"]
        mark = " most" if course is most else ""
        text = f"{percent(share)}, {number(rate, 'a second')}"
        yield _bar(answer, course, [(share or 0.0, f"met{mark}", f"{percent(share)} met")], text, course is about)
    yield "</div><h2>What the GPUs did</h2>"
    yield (
        '<p class="hint"><i class="key prefill"></i>prefill <i class="key decode"></i>decode '
        '<i class="key idle"></i>idle. Steps with both are shared by the least time of each on the roofline.</p>'
    )
    longest = max(course.gpu_hours for course in played) or 1.0
    yield '<div class="bars">'
    for course in played:
        parts = []
        gpus = answer["gpus_per_engine"]
        for phase in ("prefill", "decode"):
            use = course.summary[f"{phase}_use"]
            if use is not None:
                hours = gpus * use["busy_seconds"] / 3600.0
                parts.append((hours / longest, phase, f"{phase}: {3600 * hours:,.0f} GPU seconds"))
        rest = course.gpu_hours / longest - sum(part[0] for part in parts)
        parts.append((max(0.0, rest), "idle", f"idle: {max(0.0, rest * longest) * 3600:,.0f} GPU seconds"))
        yield _bar(answer, course, parts, f"{_gpu_seconds_each(course)} a request met", course is about)
    yield "</div>"


def _bar(
    answer: Mapping[str, Any], course: Course, parts: Sequence[tuple[float, str, str]], text: str, about: bool
) -> str:
    inside = "".join(
        f'<i class="{style}" style="width:{100 * min(1.0, share):.2f}%" title="{html(told)}"></i>'
        for share, style, told in parts
    )
    told = html("; ".join(part[2] for part in parts))
    return (
        f'<div class="row{" about" if about else ""}"><span>{html(policy_name(course.name, answer["engines"]))}</span>'
        f'<span class="bar" role="img" aria-label="{told}">{inside}</span><span>{html(text)}</span></div>'
    )


def _gpu_seconds_each(course: Course) -> str:
    met = course.summary["outcomes"]["met"]
    return number(3600.0 * course.gpu_hours / met, "GPU s") if met else MISSING


# ---------------------------------------------------------------- over time


def _comparison(answer: Mapping[str, Any], played: Sequence[Course], drawing: Drawing) -> Iterator[str]:
    yield "<h2>All policies over time</h2>"
    yield '<p class="hint">Time since the start. A line under the pointer runs through all plots.</p>'
    yield '<div class="legend">'
    for course in played:
        yield (
            f'<button type="button" aria-pressed="true" data-switch="{course.place}">'
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 8" aria-hidden="true">'
            f'<path class="line s{course.place % 8} d{course.place // 8 % 3}" d="M1 4H23"/></svg>'
            f"{html(policy_name(course.name, answer['engines']))}</button>"
        )
    yield "</div>"
    yield '<div class="plots">'
    yield from drawing.comparison()
    yield "</div>"
    if (merged := max(course.merged for course in played)) > 1:
        yield f'<p class="hint">Each point stands for {merged} intervals: sums of counts, the worst of shares and quantiles.</p>'


def _policies(answer: Mapping[str, Any], played: Sequence[Course], drawing: Drawing) -> Iterator[str]:
    about = subject(played)
    yield '<h2>One policy</h2><div class="tabs">'
    for course in played:
        checked = " checked" if course is about else ""
        yield f'<input type="radio" name="policy" id="policy-{course.place}"{checked}>'
        yield f'<label for="policy-{course.place}">{html(policy_name(course.name, answer["engines"]))}</label>'
    for course in played:
        yield f'<section class="of of-{course.place}">'
        yield '<div class="plots">'
        yield from drawing.of(course)
        yield "</div>"
        yield from _decisions(course)
        yield "</section>"
    yield "</div>"


def _decisions(course: Course) -> Iterator[str]:
    if not course.decisions:
        return
    yield '<h3>Decisions</h3><ol class="decisions">'
    for place, event in enumerate(course.decisions[:MOST_MARKS]):
        yield (
            f'<li id="decision-{course.place}-{place}" tabindex="-1"><time>{clock(event["seconds"])}</time> '
            f"<b>{html(event['action'])}</b> ({html(event['reason'])}): {html(event['message'])}</li>"
        )
    yield "</ol>"
    if (more := len(course.decisions) - MOST_MARKS) > 0:
        yield f'<p class="hint">{count(more, "later decision")} left out; <code>--json</code> prints them all.</p>'


# ---------------------------------------------------------------- all figures


def _table(answer: Mapping[str, Any], played: Sequence[Course]) -> Iterator[str]:
    yield '<h2>All figures</h2><div class="scroll" tabindex="0"><table><thead><tr><th scope="col">Policy</th>'
    rows = [_figures(course) for course in played]
    yield "".join(f'<th scope="col">{html(name)}</th>' for name in rows[0]) + "</tr></thead><tbody>"
    for course, row in zip(played, rows, strict=True):
        cells = "".join(f"<td>{html(value)}</td>" for value in row.values())
        yield f'<tr><th scope="row">{html(policy_name(course.name, answer["engines"]))}</th>{cells}</tr>'
    yield "</tbody></table></div>"


def _figures(course: Course) -> dict[str, str]:
    summary = course.summary
    outcomes, first, gap = summary["outcomes"], summary["time_to_first_token_seconds"], summary["gap_seconds"]
    lost = outcomes["failed"] + outcomes["refused"] + outcomes["unfinished"]
    return {
        "Met": percent(summary["attainment"]),
        "Met a second": number(summary["goodput_requests_per_second"]),
        "First token late": f"{outcomes['first_token_late']:,}",
        "Gaps late": f"{outcomes['gaps_late']:,}",
        "Lost or refused": f"{lost:,}",
        "First token p50": seconds(first["p50"]),
        "First token p95": seconds(first["p95"]),
        "Gap p50": seconds(gap["p50"]),
        "Gap p95": seconds(gap["p95"]),
        "Gap p99": seconds(gap["p99"]),
        "Decode stall": percent(summary["stall_ratio"]),
        "Prefill intensity": _intensity(summary["prefill_use"]),
        "Decode intensity": _intensity(summary["decode_use"]),
        "KV moved": f"{summary['kv_bytes_moved'] / GIGA:,.0f} GB",
        "Preemptions": f"{summary['preemptions']:,}",
        "GPU hours": f"{course.gpu_hours:,.1f}",
        "GPU time a request met": _gpu_seconds_each(course),
    }


def _intensity(use: Mapping[str, float] | None) -> str:
    return MISSING if not use or not use["memory_bytes"] else number(use["flops"] / use["memory_bytes"], "FLOP/byte")
