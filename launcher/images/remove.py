"""Remove images, and what was recorded of them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.errors import CannotCreate, MissingInput
from launcher.host.installed import which
from launcher.images import record
from launcher.images.room import STORAGE
from launcher.plan.catalog import Image
from launcher.plan.choose import SIF_ENGINES


def remove(
    images: Sequence[Image], engine: str | None, folder: Path, variables: Mapping[str, str]
) -> int:
    """Remove every form of the images, or that of one engine.

    Raises:
        MissingInput: there is nothing to remove.
        CannotCreate: podman or docker will not.
    """
    kind = "sif" if engine in SIF_ENGINES else engine
    for image in images:
        with record.locked(folder, f"{image.name}.build"):
            held = record.read(folder).get(image.name, {})
            sif = folder / f"{image.name}.sif"
            kinds = {*held, *(["sif"] if sif.exists() else [])}
            wanted = sorted(kinds if kind is None else kinds & {kind})
            if not wanted:
                evidence = f"{image.name} in '{folder}'"
                raise MissingInput("No such image is built", evidence, "see `aam-launch images`")
            for each in wanted:
                if each in STORAGE:
                    _remove_held(each, str(held[each].get("reference")), variables)
                else:
                    sif.unlink(missing_ok=True)
                record.write(folder, image.name, each, None)
                print(f"removed {image.name} ({each})")
    return 0


def _remove_held(engine: str, reference: str, variables: Mapping[str, str]) -> None:
    program = which(engine, variables.get("PATH", ""))
    words = [program or engine, "rmi", reference]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CannotCreate(
            "The image cannot be removed", str(error), f"install {engine}"
        ) from error
    gone = "no such image" in done.stderr.lower() or "image not known" in done.stderr.lower()
    if done.returncode and not gone:
        evidence = done.stderr.strip()
        raise CannotCreate("The image cannot be removed", evidence, "stop what uses it")
