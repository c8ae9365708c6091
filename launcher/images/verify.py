"""Hold images against what was recorded of them, and run their own test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aam.options import names as commands
from launcher.errors import MissingInput, Unavailable
from launcher.host.facts import EngineFact
from launcher.images import builder, record
from launcher.images.build import inspected, own_labels, sha256
from launcher.images.builder import Builder
from launcher.images.sif import check_sif, labels_of
from launcher.plan.catalog import Image
from launcher.plan.choose import SIF_ENGINES

WRONG = 1
"""Status of `aam check` where an attention backend computes wrong, as some stacks' is known to."""


def verify(
    images: Sequence[Image],
    engine: str | None,
    folder: Path,
    engines: Sequence[EngineFact],
    test: bool,
) -> int:
    """Verify every recorded form of the images, or that of one engine.

    Raises:
        MissingInput: an image is not recorded, not there, or another one than was recorded.
        Unavailable: its own test, or `aam check`, fails.
    """
    for image in images:
        entries = record.read(folder).get(image.name, {})
        wanted = "sif" if engine in SIF_ENGINES else engine
        kinds = [kind for kind in entries if wanted in (None, kind)]
        if not kinds:
            remedy = f"`aam-launch images build {image.name}`, or `lock` for one that was copied"
            raise MissingInput("No such image is recorded", f"{image.name} in '{folder}'", remedy)
        for kind in kinds:
            found = builder.find(engines, engine or _engine(kind, engines))
            place = _unchanged(image.name, kind, entries[kind], folder, found)
            print(f"ok      {image.name} ({kind}) is what was recorded")
            _pins(image, entries[kind].get("labels", {}))
            if test:
                _run(builder.inside(found, place, [builder.PYTHON, builder.SMOKE]), "its own test")
                _check_device(image.name, found, folder)
    return 0


def _engine(kind: str, engines: Sequence[EngineFact]) -> str:
    """Return the engine for a kind of image: podman, docker, or the first that runs a SIF."""
    if kind != "sif":
        return kind
    return next((e.name for e in engines if e.name in SIF_ENGINES), "apptainer")


def _unchanged(name: str, kind: str, held: Mapping[str, Any], folder: Path, found: Builder) -> str:
    """Check the digest; return what the engine calls the image."""
    remedy = f"build it again: `aam-launch images build {name} --anew`"
    if kind == "sif":
        place = folder / f"{name}.sif"
        if not place.is_file():
            raise MissingInput("The image is gone", f"'{place}'", remedy)
        check_sif(str(place))
        now = sha256(place)
        if now != held.get("sha256"):
            evidence = f"'{place}' is sha256:{now}, recorded was sha256:{held.get('sha256')}"
            raise MissingInput("The image is another one", evidence, remedy)
        if own_labels(labels_of(place)) != held.get("labels"):
            raise MissingInput("The labels are others than were recorded", f"'{place}'", remedy)
        return str(place)
    reference = str(held["reference"])
    now = inspected(found.program, reference).get("id", "gone")
    if now != held.get("id"):
        evidence = f"{reference} is {now}, recorded was {held.get('id')}"
        raise MissingInput("The image is another one", evidence, remedy)
    return str(held["id"])


def _pins(image: Image, labels: Mapping[str, str]) -> None:
    """Compare what was measured in the image with what the catalog pins."""
    for key, pin in image.pins.items():
        measured = labels.get(f"org.aam.{key}")
        if measured is None:
            continue
        said = "ok     " if _agree(measured, pin) else "differs"
        print(f"{said} {key}: {measured} measured, {pin} in the catalog")


def _agree(measured: str, pin: str) -> bool:
    """Compare two versions as far as both go; a local part does not matter."""
    ours, theirs = (v.partition("+")[0].rstrip("b").split(".") for v in (measured, pin))
    return all(a == b for a, b in zip(ours, theirs, strict=False))


def _check_device(name: str, found: Builder, folder: Path) -> None:
    """Run `aam check` in the image on the device there is, the way a job would."""
    if "check" not in commands():
        return
    words = [sys.executable, "-m", "launcher.cli", f"--image-dir={folder}", "--image", name,
             "--runtime", found.engine, "check", "--quick"]  # fmt: skip
    # Python imports from the current folder with -m; the root folder holds no modules.
    if _run(words, "aam check", fine=(0, WRONG), folder="/") == WRONG:
        print("note    a backend computes wrong here; jobs are kept from it")


def _run(
    words: Sequence[str], what: str, fine: tuple[int, ...] = (0,), folder: str | None = None
) -> int:
    sys.stdout.flush()
    done = subprocess.run(words, check=False, cwd=folder)
    if done.returncode not in fine:
        evidence = f"{what} ended with status {done.returncode}"
        raise Unavailable("The image does not work here", evidence, "read what it said above")
    return done.returncode
