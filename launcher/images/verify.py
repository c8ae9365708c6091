"""Verification of images: their record, their test, and signatures of SIFs."""

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

from aam.contract.errors import CannotCreate, MissingInput, Unavailable
from launcher import processes
from launcher.engines import ENGINES, of_format, spython_client
from launcher.engines.base import PYTHON, SMOKE
from launcher.engines.sif import SIF
from launcher.engines.sif_file import is_signed, labels_of
from launcher.images import builder, index
from launcher.images.builder import Builder
from launcher.plan.catalog import Image
from launcher.plan.environment import unset

WRONG = 1
"""Exit status of `aam check` if an attention backend computes wrong results."""

FINGERPRINT = re.compile(r"Fingerprint: *([0-9A-F]+)")

UNKNOWN_KEY = ("signature made by unknown entity", "key material not provided")
"""Phrases of `verify` for a signature whose key is not in the keyring."""


def verify(
    image: Image, engine: str | None, folder: Path, test: bool, key: Path | None = None
) -> None:
    """Verify every recorded form of an image, or that of one engine.

    Args:
        key: PEM public key with which every SIF has to be signed.

    Raises:
        MissingInput: the image is not recorded, not there, another one than was recorded, or its
            signature is not valid.
        Unavailable: its own test, or `aam check`, fails.
    """
    requested = ENGINES[engine].traits.image_format if engine else None
    place = folder / f"{image.name}.sif"
    for image_format, recorded in index.of_image(folder, image.name, requested).items():
        if image_format == SIF and not test:  # a file, compared without a program
            of_format(SIF)[0].verify("", image.name, recorded, place)
        else:
            found = builder.find(engine, image_format)
            name = found.engine.verify(found.program, image.name, recorded, place)
        print(f"ok      {image.name} ({image_format}) is what was recorded")
        _pins(image, recorded.get("labels", {}))
        if image_format == SIF:
            _signature(place, key, engine)
            _second_reader(place)
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
    """Compare the versions measured in the image with the catalog's pins, as far as both go."""
    for key, pin in image.pins.items():
        measured = labels.get(f"org.aam.{key}")
        if measured is not None:  # a local part (+rocm6.2) does not matter
            ours, theirs = (v.partition("+")[0].rstrip("b").split(".") for v in (measured, pin))
            agree = all(a == b for a, b in zip(ours, theirs, strict=False))
            verdict = "ok     " if agree else "differs"
            print(f"{verdict} {key}: {measured} measured, {pin} in the catalog")


def _signature(place: Path, key: Path | None, engine: str | None) -> None:
    """Verify the signature of a SIF where it has one and its key is known.

    Raises:
        MissingInput: it is not valid, or there is none and `key` is given.
        Unavailable: `key` is given and no engine can verify it.
    """
    if not is_signed(place):
        if key is not None:
            remedy = "leave --key out, or build it with --sign"
            raise MissingInput("The image is not signed", f"'{place}'", remedy)
        print("note    not signed")
        return
    try:
        found = builder.find(engine, SIF)
    except Unavailable as error:
        if key is not None:
            raise
        print(f"note    signed, not verified: {error.cause}, {error.evidence}")
        return
    signer = _signer(found.program, place, key)
    unknown = "note    signed with a key that is not in your keyring; give its PEM file with --key"
    print(f"ok      signed with {signer}" if signer else unknown)


def _second_reader(place: Path) -> None:
    """Compare the labels that the launcher reads with those that spython reports."""
    if not spython_client.available():
        return
    ours, theirs = labels_of(place), spython_client.labels(str(place))
    other = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
    verdict = f"differs spython reads other labels: {', '.join(other)}"
    print(verdict if other else f"ok      spython reads the same {len(ours)} labels")


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


def _signer(program: str, place: Path, key: Path | None) -> str | None:
    """Verify the signatures of a signed SIF; return who signed it, or None if its key is unknown.

    Args:
        program: Apptainer or Singularity.
        key: PEM public key; None takes the PGP keyring of the user, without a key server.

    Raises:
        MissingInput: the file is not what was signed, or another key signed it.
    """
    argv = [program, "verify", *(["--key", str(key)] if key else ["--local"]), str(place)]
    done = processes.run(argv)
    output = done.stdout + done.stderr
    if done.returncode == 0:
        fingerprints = sorted(set(FINGERPRINT.findall(output)))
        return f"the key of '{key}'" if key else ", ".join(fingerprints) or "a key of the keyring"
    if key is None and any(phrase in output for phrase in UNKNOWN_KEY):
        return None
    evidence = f"'{place}', {(output.strip().splitlines() or ['no output'])[-1]}"
    remedy = "pull it again from a source that you trust, or build it"
    raise MissingInput("The signature of the image is not valid", evidence, remedy)
