"""Write every dashboard into the chart.

python -m dashboards.generate            # from the root of the repository
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

with warnings.catch_warnings():
    # The SDK advises version 2, which needs Grafana 12 and which sidecars do not load.
    warnings.filterwarnings("ignore", "Prefer using dashboardv2", DeprecationWarning)
    from dashboards import fleet

TARGET = Path(__file__).resolve().parent.parent / "helm" / "ridgeline" / "dashboards"

DASHBOARDS = {"ridgeline-fleet.json": fleet.build}


def rendered() -> dict[str, str]:
    """File name → JSON of each dashboard, the same text for the same code."""
    return {
        name: json.dumps(build().build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"
        for name, build in DASHBOARDS.items()
    }


def main() -> None:
    """Write the files."""
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, text in rendered().items():
        (TARGET / name).write_text(text)


if __name__ == "__main__":
    main()
