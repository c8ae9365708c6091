"""images.json: the record of the images in an image folder.

    {"rocm63": {"sif": {"sha256": "...", "bytes": 1234, "mtime_ns": ..., "labels": {...}, ...},
                "podman": {"reference": "localhost/aam:rocm63", "digest": "sha256:...", ...}}}

It is written atomically and under a lock of its own: a reader never sees half of it, and two
writers do not lose each other's entry.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from aam.contract.errors import CannotCreate, ConfigurationError
from aam.contract.files import atomic_write
from launcher import documents

LIST = "images.json"
LARGEST = 64 << 20
TEXTS = ("sha256", "digest", "reference", "id")
Entries = dict[str, dict[str, Mapping[str, Any]]]
ENTRIES = Mapping[str, Mapping[str, Mapping[str, Any]]]


def read(folder: Path) -> Entries:
    """Return the entries of a folder's images.json; empty if there is none.

    Raises:
        ConfigurationError: it is damaged.
    """
    path = folder / LIST
    try:
        content = documents.parsed(documents.regular(path, LARGEST))
        entries: Entries = documents.typed(ENTRIES, content, "")
        for image, formats in entries.items():
            for image_format, facts in formats.items():
                place = f"{image}.{image_format}"
                texts = {key: value for key, value in facts.items() if key in TEXTS}
                labels = facts.get("labels", {})
                documents.typed(Mapping[str, str], texts, place)
                documents.typed(Mapping[str, str], labels, f"{place}.labels")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        remedy = "remove it, then `aam-launch images lock` or `build`"
        evidence = f"'{path}', {error}"
        raise ConfigurationError("A damaged list of images", evidence, remedy) from error
    return entries


def entry(entries: Entries, image: str, image_format: str) -> Mapping[str, Any]:
    """Return the entry of an image in a format of `EngineTraits.image_format`; empty if none."""
    return entries.get(image, {}).get(image_format, {})


def write(folder: Path, image: str, image_format: str, facts: Mapping[str, Any] | None) -> None:
    """Set an entry, or remove it where `facts` is None.

    Raises:
        CannotCreate: the folder cannot be written.
    """
    with locked(folder, LIST):
        entries = read(folder)
        of_image = {**entries.pop(image, {}), image_format: facts}
        if kept := {key: value for key, value in of_image.items() if value is not None}:
            entries[image] = kept
        with atomic_write(folder / LIST) as temporary:
            temporary.write_text(json.dumps(dict(sorted(entries.items())), indent=1) + "\n")


@contextlib.contextmanager
def locked(folder: Path, name: str, wait: str = "") -> Iterator[None]:
    """Hold the lock `.NAME.lock` of a folder; print `wait` on standard error before waiting.

    Raises:
        CannotCreate: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / f".{name}.lock").open("a")
    except OSError as error:
        evidence = f"'{folder}', {error.strerror}"
        remedy = "set AAM_IMAGE_DIR to a folder of yours"
        raise CannotCreate("The image folder cannot be written", evidence, remedy) from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if wait:
                print(wait, file=sys.stderr, flush=True)
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
