"""The test cluster's own tool: what it takes for a program of its own, and what it therefore may end."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import kube


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for programs and state."""
    for name in ("bin", "run"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(kube, "BIN", tmp_path / "bin")
    monkeypatch.setattr(kube, "RUN", tmp_path / "run")
    return tmp_path


@pytest.fixture
def program(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program of the cluster that runs, written down as `up` does it."""
    shutil.copy("/bin/sleep", home / "bin" / "etcd")
    process = subprocess.Popen([home / "bin" / "etcd", "600"])
    (home / "run" / "etcd.pid").write_text(str(process.pid))
    yield process
    process.kill()
    process.wait()


def test_ends_a_program_of_its_own(program: subprocess.Popen[bytes]) -> None:
    assert kube.ours("etcd") == program.pid
    kube.stop("etcd")
    assert kube.ours("etcd") is None


def test_leaves_a_process_that_has_the_number_after_a_restart(home: Path) -> None:
    (home / "run" / "etcd.pid").write_text(str(os.getpid()))
    assert kube.ours("etcd") is None
    kube.stop("etcd")  # or this test run would end here


@pytest.mark.parametrize("content", ["", "4194305"], ids=["interrupted", "no-such-process"])
def test_nothing_to_end(home: Path, content: str) -> None:
    (home / "run" / "etcd.pid").write_text(content)
    assert kube.ours("etcd") is None


def test_not_started(home: Path) -> None:
    assert kube.ours("etcd") is None
