"""Whether there is room to build an image, asked before anything is fetched.

Apptainer unpacks below a temporary folder and keeps what it fetched in a cache; podman and docker
keep everything in their storage. Setting the cache alone, and not the temporary folder, is the
common way to fill /tmp (sylabs/singularity 2030, 2913).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from aam.options.frozen import dataclass
from launcher.errors import CannotCreate

GIB = 1 << 30
MOVE = {
    "podman": "set graphroot in ~/.config/containers/storage.conf to a folder with room",
    "docker": "set data-root in /etc/docker/daemon.json to a folder with room",
}
STORAGE = {"podman": "{{.Store.GraphRoot}}", "docker": "{{.DockerRootDir}}"}


@dataclass(frozen=True)
class Need:
    """Bytes that a step takes in a folder, and what moves it elsewhere."""

    what: str
    folder: Path
    size: int
    remedy: str


def needs(
    engine: str,
    program: str,
    room: tuple[float, float],
    image_dir: Path,
    variables: Mapping[str, str],
) -> list[Need]:
    """Return what a build with `engine` takes: `room` is GiB of building, GiB of the image."""
    building, image = (int(part * GIB) for part in room)
    if engine in STORAGE:
        folder = _storage(engine, program)
        return [Need("storage", folder, building, MOVE[engine])] if folder else []
    temporary, temporary_name = temporary_folder(engine, variables)
    cache, cache_name = _named(engine, "CACHEDIR", variables, "")
    home = Path(variables.get("HOME", "/")) / f".{engine}" / "cache"
    return [
        Need("unpacking", temporary, building, f"set {temporary_name} to a folder with room"),
        Need("cache", cache or home, GIB // 4, f"set {cache_name} to a folder with room"),
        Need("image", image_dir, image, "set AAM_IMAGE_DIR to a folder with room"),
    ]


def temporary_folder(engine: str, variables: Mapping[str, str]) -> tuple[Path, str]:
    """Return where apptainer or singularity unpack, and the variable that says so."""
    folder, name = _named(engine, "TMPDIR", variables, variables.get("TMPDIR") or "/tmp")
    return folder or Path("/tmp"), name


def require(needs: Sequence[Need]) -> None:
    """Check that there is room, adding up what lies on one file system.

    Raises:
        CannotCreate: there is not, or a folder is not there, with the variable to set.
    """
    taken: dict[int, int] = {}
    for need in needs:
        place = need.folder
        while not place.exists() and place != place.parent:
            place = place.parent
        facts = os.statvfs(place)
        device = os.stat(place).st_dev
        taken[device] = taken.get(device, 0) + need.size
        free = facts.f_bavail * facts.f_frsize
        if free < taken[device]:
            evidence = f"{free / GIB:.1f} GiB free at '{need.folder}' ({need.what}), " \
                       f"{taken[device] / GIB:.1f} needed"  # fmt: skip
            raise CannotCreate("No room to build", evidence, need.remedy)


def _named(
    engine: str, ending: str, variables: Mapping[str, str], otherwise: str
) -> tuple[Path | None, str]:
    """Return the folder that a variable of the engine names; Apptainer reads Singularity's too."""
    names = [f"{engine.upper()}_{ending}", f"SINGULARITY_{ending}"]
    for name in names:
        if variables.get(name):
            return Path(variables[name]), name
    return Path(otherwise) if otherwise else None, names[0]


def _storage(engine: str, program: str) -> Path | None:
    done = subprocess.run([program, "info", "--format", STORAGE[engine]], capture_output=True,
                          text=True, check=False)  # fmt: skip
    said = done.stdout.strip()
    return Path(said) if done.returncode == 0 and said.startswith("/") else None
