"""Expressions over the series of the fleet that the dashboard's variables name."""

from __future__ import annotations

FLEET = 'namespace="$namespace", fleet="$fleet"'
RATE = "$__rate_interval"


def series(name: str, *matchers: str) -> str:
    """Selector of this fleet's series."""
    return f"{name}{{{', '.join([FLEET, *matchers])}}}"


def rate(name: str, *matchers: str) -> str:
    """Rate of a counter of this fleet, per second."""
    return f"rate({series(name, *matchers)}[{RATE}])"


def counted(name: str, window: str, *matchers: str) -> str:
    """How much a counter grew.

    Unlike `increase`, this sees the first event of a series, which is born with it at 1.
    """
    latest = f"max_over_time({series(name, *matchers)}[{window}])"
    return f"({latest} - ({series(name, *matchers)} offset {window} or {latest} * 0))"


def quantile(share: float, name: str, *by: str) -> str:
    """Quantile of a histogram of this fleet."""
    return f"histogram_quantile({share}, sum by ({', '.join([*by, 'le'])}) ({rate(f'{name}_bucket')}))"


def mean(name: str, by: str) -> str:
    """Mean of a histogram of this fleet, by one label."""
    return f"sum by ({by}) ({rate(f'{name}_sum')}) / (sum by ({by}) ({rate(f'{name}_count')}) > 0)"


def of_gpus(expression: str) -> str:
    """What an expression over the GPU exporter's series says of the GPUs that this fleet's engines hold.

    The series name the pod that holds a GPU and know no fleet; the engines do.
    """
    engines = f"group by (namespace, pod) ({series('ridgeline_engine_exporter_up')})"
    return f"{expression} * on (namespace, pod) group_left () {engines}"
