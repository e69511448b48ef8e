"""What the exporter is told through the environment of the engine container."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

DEFAULT_HOST = "0.0.0.0"  # noqa: S104  a scraper outside the pod has to reach it
DEFAULT_PORT = 9400
TERA = 1e12
GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one engine's exporter. Everything has a default: a missing variable is never an error."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    """Port of data-parallel rank 0; rank r listens on port + r."""
    control_token: str | None = field(default=None, repr=False)
    accelerator: str | None = None
    peak_flops: float | None = None
    """FLOP/s of one GPU; replaces the accelerator's own."""
    peak_memory_bytes_per_second: float | None = None
    """Bytes/s of one GPU; replaces the accelerator's own."""
    time_to_first_token_seconds: float | None = None
    inter_token_seconds: float | None = None
    problems: tuple[str, ...] = ()
    """Variables that could not be read and were replaced by their defaults, for the log."""


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read the settings, replacing what cannot be used by the default and naming it in `problems`.

    Values are never repeated in a problem: one of the variables is a secret.
    """
    problems: list[str] = []

    def number(name: str, parse: Callable[[str], float], accept: Callable[[float], bool]) -> float | None:
        text = environment.get(name, "").strip()
        if not text:
            return None
        try:
            value = parse(text)
        except ValueError:
            value = math.nan
        if math.isfinite(value) and accept(value):
            return value
        problems.append(f"{name} is not a usable number and was ignored")
        return None

    def positive(name: str, unit: float) -> float | None:
        value = number(name, float, lambda v: v > 0)
        return None if value is None else value * unit

    port = number("RIDGELINE_EXPORTER_PORT", int, lambda v: 0 <= v <= 65535)
    return Settings(
        host=environment.get("RIDGELINE_EXPORTER_HOST", "").strip() or DEFAULT_HOST,
        port=DEFAULT_PORT if port is None else int(port),
        control_token=environment.get("RIDGELINE_CONTROL_TOKEN", "").strip() or None,
        accelerator=environment.get("RIDGELINE_ACCELERATOR", "").strip() or None,
        peak_flops=positive("RIDGELINE_PEAK_TERAFLOPS", TERA),
        peak_memory_bytes_per_second=positive("RIDGELINE_PEAK_GIGABYTES_PER_SECOND", GIGA),
        time_to_first_token_seconds=positive("RIDGELINE_TIME_TO_FIRST_TOKEN_MILLISECONDS", 1e-3),
        inter_token_seconds=positive("RIDGELINE_INTER_TOKEN_LATENCY_MILLISECONDS", 1e-3),
        problems=tuple(problems),
    )
