"""Verification of images: their record, their pins and their test."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aam.contract.errors import CannotCreate, Unavailable
from launcher.engines import BUILDERS, builders, spython_client
from launcher.engines.base import PYTHON, SMOKE
from launcher.engines.sif import SIF
from launcher.images import index
from launcher.images.build import InstalledBuilder, find_builder
from launcher.plan.catalog import Image
from launcher.plan.environment import unset

WRONG = 1
"""Exit status of `aam check` if an attention backend computes wrong results."""


def verify(image: Image, engine: str | None, folder: Path, test: bool) -> None:
    """Verify every recorded form of an image, or that of one engine."""
    requested = BUILDERS[engine].traits.image_format if engine else None
    place = folder / f"{image.name}.sif"
    for image_format, recorded in index.of_image(folder, image.name, requested).items():
        if image_format == SIF and not test:  # a file, compared without a program
            builders(SIF)[0].verify("", image.name, recorded, place)
        else:
            found = find_builder(engine, image_format)
            name = found.engine.verify(found.program, image.name, recorded, place)
        print(f"ok      {image.name} ({image_format}) is what was recorded")
        _pins(image, recorded.get("labels", {}))
        if image_format == SIF:
            _second_reader(place, recorded.get("labels", {}))
        if test:
            argv = found.engine.exec_argv(found.program, name, [PYTHON, SMOKE])
            _run(argv, "its own test", hidden=unset(os.environ, found.engine.traits))
            _check_device(image.name, found, folder)
            _record(folder, image.name, image_format, recorded)


def _record(folder: Path, name: str, image_format: str, recorded: Mapping[str, Any]) -> None:
    """Record the day; a reader of another user's image folder cannot."""
    day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    with contextlib.suppress(CannotCreate):
        index.write(folder, name, image_format, {**recorded, "verified": day})


def _pins(image: Image, labels: Mapping[str, str]) -> None:
    """Print how the versions measured in the image compare with the catalog's pins."""
    for key, pin in image.pins.items():
        measured = labels.get(f"org.aam.{key}")
        if measured is not None:
            verdict = "ok     " if agree(measured, pin) else "differs"
            print(f"{verdict} {key}: {measured} measured, {pin} in the catalog")


def agree(measured: str, pin: str) -> bool:
    """Return whether a version is that of a pin, as far as both go.

    What follows the numbers (+rocm6.2, -fa1d09cbd, b) does not matter.

    >>> agree("6.3.42131-fa1d09cbd", "6.3.42131"), agree("6.3.0", "6.3"), agree("6.4.1", "6.3")
    (True, True, False)
    """
    ours, theirs = (re.findall(r"\d+", re.split(r"[-+]", v)[0]) for v in (measured, pin))
    return all(a == b for a, b in zip(ours, theirs, strict=False))


def _second_reader(place: Path, ours: Mapping[str, str]) -> None:
    """Compare the recorded labels with those that spython reports."""
    if not spython_client.available() or not ours:
        return
    theirs = spython_client.labels(str(place))
    other = sorted(name for name in ours if ours.get(name) != theirs.get(name))
    verdict = f"differs spython reads other labels: {', '.join(other)}"
    print(verdict if other else f"ok      spython reads the same {len(ours)} labels")


def _check_device(name: str, found: InstalledBuilder, folder: Path) -> None:
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
