"""How topologies and numbers read in messages."""

from __future__ import annotations

from ridgeline.api.fleet import Mode, TopologyStatus, TransitionStatus


def topology_text(topology: TopologyStatus) -> str:
    """A topology in short: `8 mixed`, `6P:2D`, `2P:1D+1 mixed`."""
    if topology.mode is Mode.MIXED:
        return f"{topology.mixed} mixed"
    split = f"{topology.prefill}P:{topology.decode}D"
    return f"{split}+{topology.mixed} mixed" if topology.mixed else split


def change(transition: TransitionStatus) -> str:
    """What a transition does in short, such as `Split 8 mixed → 6P:2D`."""
    return f"{transition.action} {topology_text(transition.origin)} → {topology_text(transition.to)}"


def percent(ratio: float) -> str:
    """A ratio as a percentage: `8.4 %`, `31 %`, and never a rounded 0 for something."""
    value = 100.0 * ratio
    if 0.0 < value < 0.1:
        return "< 0.1 %"
    return f"{value:.1f} %" if value < 10.0 and round(value, 1) != round(value) else f"{value:.0f} %"


def duration(seconds: float) -> str:
    """A duration with its unit: `3.4 ms`, `340 ms`, `2.1 s`."""
    milliseconds = 1000.0 * seconds
    if milliseconds < 10.0:
        return f"{milliseconds:.1f} ms"
    return f"{milliseconds:.0f} ms" if milliseconds < 1000.0 else f"{seconds:.1f} s"


def size(count: float) -> str:
    """A number of bytes: `164 MB`, `1.2 GB`."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            value = count / scale
            return f"{value:.1f} {unit}" if value < 10.0 else f"{value:,.0f} {unit}"
    return f"{count:.0f} B"
