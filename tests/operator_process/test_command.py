from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FLAGS = ("--prometheus-url=http://prometheus:9090", "--operator-image=registry.example/ridgeline:1")


def ridgeline(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command where there is no cluster."""
    environment = {**os.environ, "HOME": str(folder)}
    environment.pop("KUBECONFIG", None)
    environment.pop("KUBERNETES_SERVICE_HOST", None)
    return subprocess.run(
        [sys.executable, "-P", "-m", "ridgeline", *arguments],
        env=environment,
        text=True,
        capture_output=True,
        timeout=60,
    )


def test_help_names_every_command(tmp_path: Path) -> None:
    done = ridgeline(tmp_path, "--help")
    assert done.returncode == 0
    for command in ("operator", "registrar", "roofline", "crd"):
        assert command in done.stdout


def test_the_version_is_told(tmp_path: Path) -> None:
    assert ridgeline(tmp_path, "--version").stdout.startswith("ridgeline ")


def test_the_crd_is_printed(tmp_path: Path) -> None:
    done = ridgeline(tmp_path, "crd")
    assert done.returncode == 0
    assert "kind: CustomResourceDefinition" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        pytest.param((), 2, "COMMAND", id="no command"),
        pytest.param(("frobnicate",), 2, "invalid choice", id="unknown command"),
        pytest.param(("operator",), 2, "--prometheus-url", id="without Prometheus"),
        pytest.param(
            ("operator", "--prometheus-url=prometheus:9090", FLAGS[1]), 2, "write it like http://", id="no URL"
        ),
        pytest.param(("operator", *FLAGS, "--metrics-port=99999"), 2, "not a port", id="no port"),
        pytest.param(
            ("operator", *FLAGS, "--namespace=Not_A_Name"), 2, "not the name of a namespace", id="no namespace"
        ),
        pytest.param(("operator", *FLAGS, "--interval-seconds=0"), 2, "must be seconds", id="no interval"),
        pytest.param(("operator", *FLAGS, "--no-monitors"), 1, "set KUBECONFIG", id="no cluster"),
    ],
)
def test_a_wrong_start_says_what_to_do(tmp_path: Path, arguments: tuple[str, ...], status: int, words: str) -> None:
    done = ridgeline(tmp_path, *arguments)
    assert done.returncode == status
    assert words in done.stderr
    assert "Traceback" not in done.stderr
