"""Rendering of the chart, and questions to what was rendered."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "ridgeline"
NAMESPACE = "ridgeline-system"
MONITORING = ("--api-versions", "monitoring.coreos.com/v1")
"""What a cluster with the Prometheus Operator adds to a rendering."""

Object = dict[str, Any]


class HelmError(AssertionError):
    """Helm ended with an error: its message is what a user would read."""


def helm(program: Path, *arguments: str, kubeconfig: Path | None = None) -> str:
    """Run Helm, away from the user's own settings.

    Raises:
        HelmError: Helm ended with an error.
    """
    with tempfile.TemporaryDirectory(prefix="ridgeline-helm-") as home:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": home,
            "KUBECONFIG": str(kubeconfig) if kubeconfig else os.devnull,
        }
        command = [str(program), *arguments]
        done = subprocess.run(command, text=True, capture_output=True, env=environment, timeout=120)
    if done.returncode:
        raise HelmError(f"helm {' '.join(arguments)}: {done.stderr or done.stdout}")
    return done.stdout


def settings(*values: str) -> list[str]:
    """`--set` for each of `path=value`."""
    return [word for value in values for word in ("--set", value)]


def template(program: Path, *arguments: str, release: str = "ridgeline") -> list[Object]:
    """Render the chart, without its CRD."""
    text = helm(program, "template", release, str(CHART), "--namespace", NAMESPACE, *arguments)
    return [document for document in yaml.safe_load_all(text) if document]


def one(objects: list[Object], kind: str, name: str | None = None) -> Object:
    """The only object of a kind, or the one of that name."""
    found = [o for o in objects if o["kind"] == kind and name in (None, o["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} of {kind} {name or ''}: {[o['metadata']['name'] for o in found]}"
    return found[0]


def pod_specs(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """Every pod template's spec, with the name of what it belongs to."""
    for each in objects:
        if spec := each.get("spec", {}).get("template", {}).get("spec"):
            yield each["metadata"]["name"], spec
