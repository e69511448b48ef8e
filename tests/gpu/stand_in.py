"""The stand-in for NVIDIA's driver library: compiled, loaded, and told what to play."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import pynvml

SOURCE = Path(__file__).with_name("nvml_stand_in.c")
NAME = "libnvidia-ml.so.1"
VARIABLE = "RIDGELINE_NVML_STAND_IN"


def header_folder() -> Path:
    """Folder of NVIDIA's nvml.h, from the package nvidia-nvml-dev."""
    [header] = [file for file in metadata.files("nvidia-nvml-dev") or () if file.name == "nvml.h"]
    return Path(str(header.locate())).parent


def compile_stand_in(folder: Path) -> Path:
    """Compile the stand-in into a folder; returns the library."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "the stand-in for NVML is C: install a compiler (Debian: apt-get install gcc libc6-dev)"
    library = folder / NAME
    command = [compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{NAME}"]
    command += [f"-isystem{header_folder()}", "-o", str(library), str(SOURCE)]
    done = subprocess.run(command, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return library


class StandIn:
    """What the stand-in plays: `gpus` and, for each, its counters and its failures (see nvml_stand_in.c)."""

    def __init__(self, library: Path, file: Path) -> None:
        self.shared_object = library
        self.file = file
        self._values: dict[str, object] = {}
        self.set(gpus=1)

    def set(self, **values: object) -> None:
        """Change what is played. `gpu0__dram=5` is the key `gpu0.dram`; None takes a key away."""
        self._values |= {name.replace("__", "."): value for name, value in values.items()}
        lines = [f"{key} {value}\n" for key, value in self._values.items() if value is not None]
        partial = self.file.with_suffix(".partial")
        partial.write_text("".join(lines))
        partial.replace(self.file)

    def work(self, seconds: float, unit: str = "gpu0", /, **shares: float) -> None:
        """Let time go by on a unit, in which its parts are active for shares of it."""
        elapsed = self._number(f"{unit}.elapsed") + seconds
        active = {f"{unit}.{name}": self._number(f"{unit}.{name}") + seconds * share for name, share in shares.items()}
        self.set(**{f"{unit}.elapsed": elapsed}, **active)

    @property
    def live_samples(self) -> int:
        """Sample buffers that were not given back."""
        return int(ctypes.CDLL(str(self.shared_object)).stand_in_live_samples())

    def _number(self, key: str) -> float:
        value = self._values.get(key, 0.0)
        assert isinstance(value, int | float)
        return float(value)


def load(library: Path) -> None:
    """Make this process's NVML the stand-in: a library that is loaded is found by its name from then on."""
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    assert pynvml.nvmlLib is None or pynvml.nvmlLib._name == NAME, "this process has loaded another NVML before"
