from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from ridgeline_exporters import install as installer
from ridgeline_exporters.install import InstallError, install, main

ENTRY = "ridgeline_exporters.engine.plugin:register"


def listing(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def entry_points(folder: Path) -> list[tuple[str, str, str]]:
    found = [d for d in metadata.distributions(path=[str(folder)]) if d.name == "ridgeline_exporters"]
    assert len(found) == 1
    return [(e.group, e.name, e.value) for e in found[0].entry_points]


def test_the_folder_gets_the_package_and_the_entry_point(tmp_path: Path) -> None:
    install(tmp_path, version="1.2.3")
    assert entry_points(tmp_path) == [("vllm.general_plugins", "ridgeline", ENTRY)]
    assert (tmp_path / "ridgeline_exporters-1.2.3.dist-info" / "METADATA").exists()
    assert not list(tmp_path.rglob("__pycache__"))


def test_what_was_installed_can_be_imported_from_there_alone(tmp_path: Path) -> None:
    install(tmp_path)
    code = f"import {ENTRY.partition(':')[0]} as m; print(m.__file__)"
    result = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.startswith(str(tmp_path))


def test_installing_again_gives_the_same_and_leaves_nothing_behind(tmp_path: Path) -> None:
    install(tmp_path, version="1")
    first = listing(tmp_path)
    install(tmp_path, version="1")
    assert listing(tmp_path) == first


def test_another_version_replaces_the_old_one_wholly(tmp_path: Path) -> None:
    install(tmp_path, version="1")
    (tmp_path / "ridgeline_exporters" / "gone.py").write_text("")
    install(tmp_path, version="2")
    assert not (tmp_path / "ridgeline_exporters" / "gone.py").exists()
    assert [p.name for p in tmp_path.glob("*.dist-info")] == ["ridgeline_exporters-2.dist-info"]


def test_every_user_can_read_what_was_installed(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        install(tmp_path / "deep" / "folder")
    finally:
        os.umask(before)
    for path in (tmp_path / "deep" / "folder" / "ridgeline_exporters").rglob("*"):
        assert path.stat().st_mode & 0o444 == 0o444


def test_a_failure_leaves_the_old_package_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, version="1")
    before = listing(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(installer, "_write", full)
    with pytest.raises(InstallError, match="No space left"):
        install(tmp_path, version="2")
    assert listing(tmp_path) == before


def test_a_folder_that_cannot_be_is_named_in_the_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert main([str(file)]) == 1
    assert str(file) in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--help"], ["a", "b"]])
def test_wrong_arguments_explain_the_use(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "usage" in capsys.readouterr().err


def test_the_package_is_never_installed_over_itself() -> None:
    source = Path(installer.__file__).parent
    with pytest.raises(InstallError, match="choose another"):
        install(source.parent)
    assert (source / "install.py").exists()
