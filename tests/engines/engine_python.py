"""Runs a script with the engines' interpreter, which has torch, transformers and vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.engines.engines import python

SCHEDULER_SCRIPTS = Path(__file__).with_name("scheduler_scripts")


def answer_of(
    script: Path,
    *arguments: str | Path,
    jobs: Sequence[Mapping[str, Any]] = (),
    plugin: Path | None = None,
    **variables: str,
) -> Any:
    """What a script prints after "RESULT ".

    Args:
        script: to run.
        arguments: of its command line.
        jobs: on its standard input, as JSON.
        plugin: folder of the exporter that vLLM is to load (`install_exporter`); without one it loads no plug-in.
        variables: of its environment.

    Raises:
        AssertionError: it failed.
    """
    loaded = {"VLLM_PLUGINS": ""} if plugin is None else {"PYTHONPATH": str(plugin)}
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [python(), script, *arguments],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        env=os.environ | quiet | loaded | variables,
        cwd=tempfile.gettempdir(),  # in the repository, its folder operator/ would hide Python's module
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    _, found, answer = done.stdout.rpartition("RESULT ")
    assert found, done.stdout[-2000:] + done.stderr[-3000:]
    return json.loads(answer.splitlines()[0])
