"""Puts the exporter into a folder that an engine has on its PYTHONPATH.

    python -m ridgeline_exporters.install FOLDER

The folder gets the package and a `dist-info` with the entry point by which vLLM finds its plug-ins; nothing is
installed into the engine's image. Running it again replaces what it wrote before. New files are written beside the
old ones and renamed, so an interrupted run leaves the old or the new package, never a mixture.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from importlib import metadata
from pathlib import Path

PACKAGE = "ridgeline_exporters"
DISTRIBUTION = "ridgeline"
ENTRY_POINTS = "[vllm.general_plugins]\nridgeline = ridgeline_exporters.engine.plugin:register\n"


class InstallError(Exception):
    """The folder cannot take the exporter; the message says why."""


def install(target: Path, source: Path | None = None, version: str | None = None) -> Path:
    """Install the package into a folder.

    Args:
        target: folder to install into; made when it does not exist.
        source: folder of the package; this one by default.
        version: version to announce; that of the installed distribution by default.

    Returns:
        The folder of the installed package.

    Raises:
        InstallError: the folder cannot be written.
    """
    source = source or Path(__file__).resolve().parent
    version = version or _version()
    if target.resolve() == source.parent:
        raise InstallError(f"{target} is where the package comes from; choose another folder")
    try:
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".ridgeline-", dir=target) as staging:
            package, information = Path(staging, PACKAGE), Path(staging, f"{PACKAGE}-{version}.dist-info")
            shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
            information.mkdir()
            _write(information / "METADATA", f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {version}\n")
            _write(information / "entry_points.txt", ENTRY_POINTS)
            _open_to_all(package)
            _open_to_all(information)
            for old in target.glob(f"{PACKAGE}-*.dist-info"):
                _set_aside(old, Path(staging))
            _set_aside(target / PACKAGE, Path(staging))
            os.replace(package, target / PACKAGE)
            os.replace(information, target / information.name)
    except OSError as error:
        raise InstallError(f"cannot install into {target}: {error}") from error
    return target / PACKAGE


def main(arguments: list[str]) -> int:
    """Run the command; returns its exit status."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(f"usage: python -m {PACKAGE}.install FOLDER", file=sys.stderr)
        return 2
    try:
        package = install(Path(arguments[0]))
    except InstallError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"installed {package}")
    return 0


def _version() -> str:
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "0"


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _open_to_all(folder: Path) -> None:
    """The engine may run as another user than the init container."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _set_aside(old: Path, staging: Path) -> None:
    """Move what an earlier run left into the staging folder, which is removed at the end."""
    if old.exists():
        os.replace(old, staging / f"old-{old.name}")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
