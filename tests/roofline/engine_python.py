"""Runs a script of this folder with the engines' interpreter, which has torch, transformers and vLLM."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.engines.engines import python


def answer_of(script: str, jobs: Sequence[Mapping[str, Any]], *arguments: str) -> Any:
    """What a script prints after "RESULT ", given these jobs on its standard input.

    Raises:
        AssertionError: it failed.
    """
    done = subprocess.run(
        [str(python()), str(Path(__file__).with_name(script)), *arguments],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout.rpartition("RESULT ")[2])
