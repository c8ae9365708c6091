"""Images for tests: a copy of the project, wheels, and images that are built once.

Everything lies below AAM_ENGINES (see tests.support.engines), is made by the first that asks
and can be read by every user. The product's own lock lets one worker build and the others wait.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.images.index import locked
from tests.support.engines import PYTHON, ROOT, USER, Engines

PARTS = ("aam", "launcher", "containers")
WHEEL_TAGS = [f"manylinux_2_{minor}_x86_64" for minor in range(5, 37)]
WHEEL_TAGS += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
NAMES = tuple(yaml.safe_load((ROOT / "launcher/catalog.yaml").read_text())["images"])
OTHERS = pytest.mark.parametrize("name", [name for name in NAMES if name != "cpu"])
"""The images that are not built in full."""

SITE = "small.yaml"
CPU_TORCH = "TORCH=2.13.0+cpu"
"""The build argument by which they get the only PyTorch that can be had here."""

PYTORCH_INDEX = "https://download.pytorch.org/whl/cpu"


def workshop() -> Engines:
    """Return engines with a copy of the project and a shared image folder.

    Skips, or fails in CI, where there are none.
    """
    state = os.environ.get("AAM_ENGINES")
    if state is None:
        pytest.skip("AAM_ENGINES names no folder with container engines")
    if os.geteuid() != 0:
        pytest.skip("the tests with engines run as several users, which takes root")
    images = Path(state) / "aam-images"
    with locked(Path(state), "aam-workshop"):
        if not images.is_dir():
            images.mkdir(mode=0o755)
            shutil.chown(images, USER, USER)
        return Engines(_copy(Path(state)), Path(state), images)


def cpu_sif() -> Path:
    """Return the whole image `cpu` as a SIF; the first call builds it, in two to seven minutes."""
    engines = workshop()
    done = engines.run(build_argv(engines, "cpu", "apptainer"), cwd=engines.folder, timeout=1500)
    assert done.returncode == 0, done.stderr
    return engines.images / "cpu.sif"


def build_argv(engines: Engines, name: str, engine: str, *more: str) -> list[str]:
    """Return the command that builds an image on the stand-in base, as fast as can be."""
    return [
        *(PYTHON, "-m", "launcher.cli", "images", "build", name, "--engine", engine),
        *("--site", f"{engines.folder}/{SITE}"),
        *("--build-arg", f"BASE={base(engines)}", "--build-arg", "SNAPSHOT=base"),
        *("--wheels", str(wheels()), *(["--fast"] if engine == "apptainer" else []), *more),
    ]


def base(engines: Engines) -> str:
    """Return the reference of the stand-in base image, with its digest."""
    return engines.run(["sh", "-c", "echo $AAM_TEST_BASE"], user="root").stdout.strip()


def wheels() -> Path:
    """Return a folder with the wheels of all locks, PyTorch's for `cpu` alone.

    The first call fetches them.
    """
    state = Path(os.environ["AAM_ENGINES"])
    locks = sorted((ROOT / "containers/locks").glob("*.txt"))
    total = hashlib.sha256(b"".join(lock.read_bytes() for lock in locks)).hexdigest()
    folder = state / f"aam-wheels-{total[:12]}"
    with locked(state, "aam-wheels"):
        if not folder.is_dir():
            aside = folder.with_suffix(".new")
            shutil.rmtree(aside, ignore_errors=True)
            lock_of_cpu = ROOT / "containers/locks/cpu.txt"
            _fetch(lock_of_cpu, aside)
            there = set(_requirements(lock_of_cpu))
            for lock in locks:
                other = [wanted for wanted in _requirements(lock) if wanted not in there]
                if other:
                    listed = state / f"aam-{lock.name}"
                    listed.write_text("\n".join(other))
                    _fetch(listed, aside)
            aside.chmod(0o755)
            aside.rename(folder)
    return folder


def _requirements(lock: Path) -> list[str]:
    """Return a lock's packages but for PyTorch's part, each with its hashes."""
    packages = lock.read_text().partition("# torch: ")[0]
    return [block for block in re.split(r"\n(?=\S)", packages) if not block.startswith("#")]


def _fetch(lock: Path, folder: Path) -> None:
    """Fetch the wheels for the images' Python, whatever Python this is."""
    pip = [sys.executable if _has_pip(sys.executable) else "python3", "-m", "pip", "download"]
    pip += ["--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    pip += ["--python-version", "3.11", "--implementation", "cp"]
    pip += ["--abi", "cp311", "--abi", "abi3", "--abi", "none"]
    pip += [word for tag in WHEEL_TAGS for word in ("--platform", tag)]
    pip += ["--requirement", str(lock), "--dest", str(folder)]
    # PyTorch's CPU build may lie in a folder that pip's configuration names; else its index has it.
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if done.returncode:
        pip += ["--extra-index-url", PYTORCH_INDEX]
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _has_pip(python: str) -> bool:
    return subprocess.run([python, "-c", "import pip"], capture_output=True).returncode == 0


def _copy(state: Path) -> Path:
    """Copy the project to where the test user can read it, once for each state of the project."""
    total = hashlib.sha256()
    for part in PARTS:
        for path in sorted((ROOT / part).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                total.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    folder = state / f"aam-project-{total.hexdigest()[:12]}"
    if not folder.is_dir():
        aside = folder.with_suffix(".new")
        shutil.rmtree(aside, ignore_errors=True)
        ignore = shutil.ignore_patterns("__pycache__")
        for part in PARTS:
            shutil.copytree(ROOT / part, aside / "code" / part, ignore=ignore)
        shutil.copytree(Path(yaml.__file__).parent, aside / "code/yaml", ignore=ignore)
        # What is built here is as small as `cpu`, whatever its name asks room for.
        small = {"images": {name: {"room": [5, 1]} for name in NAMES}}
        (aside / SITE).write_text(yaml.safe_dump(small))
        subprocess.run(["chmod", "-R", "a+rX", str(aside)], check=True)
        aside.rename(folder)
    return folder


def cpu_podman() -> Engines:
    """Return engines whose image folder, root's own, has the whole image `cpu` for podman.

    Root's, because the storage of an ordinary user here copies every layer in full.
    """
    engines = workshop()
    folder = engines.state / "aam-images-root"
    folder.mkdir(mode=0o755, exist_ok=True)
    ours = Engines(engines.folder, engines.state, folder)
    done = in_podman(ours, build_argv(ours, "cpu", "podman"))
    assert done.returncode == 0, done.stderr
    return ours


def in_podman(engines: Engines, args: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command of the launcher as root, whose storage podman uses."""
    return engines.run(args, user="root", cwd=engines.folder, timeout=1500)


def recorded(engines: Engines, name: str, kind: str) -> Any:
    """Return what images.json holds of an image."""
    return json.loads((engines.images / "images.json").read_text())[name][kind]


def warm_base() -> str:
    """Return a base that has the packages of `cpu`: that image itself, in the loopback registry."""
    engines = cpu_podman()
    held = json.loads((engines.images / "images.json").read_text())["cpu"]["podman"]
    name = f"{base(engines).partition('/')[0]}/aam/warm"
    place = engines.state / f"aam-warm-{held['id'][7:19]}.digest"
    with locked(engines.state, "aam-warm"):
        if not place.is_file():
            argv = ["podman", "push", "--quiet", "--digestfile", str(place), held["id"]]
            done = in_podman(engines, [*argv, f"docker://{name}:cpu"])
            assert done.returncode == 0, done.stderr
    return f"{name}@{place.read_text().strip()}"
