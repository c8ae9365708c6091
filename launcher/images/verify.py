"""Verification of images: compare them with their records, and run their test."""

from __future__ import annotations

import contextlib
import datetime
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aam.contract.errors import CannotCreate, MissingInput, Unavailable
from launcher.engines import ENGINES, of_format
from launcher.engines.base import PYTHON, SMOKE
from launcher.engines.sif import SIF
from launcher.host.facts import EngineFact
from launcher.images import builder, index
from launcher.images.builder import Builder
from launcher.plan.catalog import Image
from launcher.plan.environment import unset

WRONG = 1
"""Exit status of `aam check` if an attention backend computes wrong results."""


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
        entries = index.read(folder).get(image.name, {})
        requested = ENGINES[engine].traits.image_format if engine else None
        formats = [found for found in entries if requested in (None, found)]
        if not formats:
            remedy = f"`aam-launch images build {image.name}`, or `lock` for one that was copied"
            raise MissingInput("No such image is recorded", f"{image.name} in '{folder}'", remedy)
        for image_format in formats:
            recorded, place = entries[image_format], folder / f"{image.name}.sif"
            if image_format == SIF and not test:  # a file, compared without a program
                of_format(SIF)[0].verify("", image.name, recorded, place)
            else:
                found = builder.find(engines, engine or _engine(image_format, engines))
                name = found.engine.verify(found.program, image.name, recorded, place)
            print(f"ok      {image.name} ({image_format}) is what was recorded")
            _pins(image, recorded.get("labels", {}))
            if test:
                argv = found.engine.exec_argv(found.program, name, [PYTHON, SMOKE])
                hidden = unset(os.environ, found.engine.traits)
                _run(argv, "its own test", hidden=hidden)
                _check_device(image.name, found, folder)
                _record(folder, image.name, image_format, recorded)
    return 0


def _record(folder: Path, name: str, image_format: str, recorded: Mapping[str, Any]) -> None:
    """Record the day; a reader of another user's image folder cannot."""
    day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    with contextlib.suppress(CannotCreate):
        index.write(folder, name, image_format, {**recorded, "verified": day})


def _engine(image_format: str, engines: Sequence[EngineFact]) -> str:
    """Return the first installed engine for an image format, else the first registered one."""
    known = [engine.name for engine in of_format(image_format)]
    return next((e.name for e in engines if e.name in known), known[0])


def _pins(image: Image, labels: Mapping[str, str]) -> None:
    """Compare the versions measured in the image with the catalog's pins, as far as both go."""
    for key, pin in image.pins.items():
        measured = labels.get(f"org.aam.{key}")
        if measured is not None:  # a local part (+rocm6.2) does not matter
            ours, theirs = (v.partition("+")[0].rstrip("b").split(".") for v in (measured, pin))
            agree = all(a == b for a, b in zip(ours, theirs, strict=False))
            verdict = "ok     " if agree else "differs"
            print(f"{verdict} {key}: {measured} measured, {pin} in the catalog")


def _check_device(name: str, found: Builder, folder: Path) -> None:
    """Run `aam check` in the image on the available device, as a job does."""
    argv = [sys.executable, "-m", "launcher.cli", f"--image-dir={folder}", "--image", name,
             "--runtime", found.engine.name, "check", "--quick"]  # fmt: skip
    # Python imports from the current folder with -m; the root folder holds no modules.
    if _run(argv, "aam check", fine=(0, WRONG), folder="/") == WRONG:
        print("note    a backend computes wrong here; jobs are kept from it")


def _run(
    argv: Sequence[str],
    what: str,
    fine: tuple[int, ...] = (0,),
    folder: str | None = None,
    hidden: Sequence[str] = (),
) -> int:
    sys.stdout.flush()
    variables = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(argv, check=False, cwd=folder, env=variables)
    if done.returncode not in fine:
        evidence = f"{what} ended with status {done.returncode}"
        raise Unavailable("The image does not work here", evidence, "see its output above")
    return done.returncode
