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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from aam.contract.errors import CannotCreate, ConfigurationError
from aam.contract.files import atomic_write
from launcher import documents

LIST = "images.json"
LARGEST = 64 << 20
TEXTS = ("sha256", "digest", "reference", "id")
Entries = dict[str, dict[str, Any]]


def read(folder: Path) -> Entries:
    """Return the entries of a folder's images.json; empty if there is none.

    Raises:
        ConfigurationError: it is damaged.
    """
    path = folder / LIST
    remedy = "remove it, then `aam-launch images lock` or `build`"
    try:
        content = documents.parsed(documents.regular(path, LARGEST))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            "A damaged list of images", f"'{path}', {error}", remedy
        ) from error
    damaged = _damaged(content)
    if damaged:
        evidence = f"'{path}', {damaged}"
        raise ConfigurationError("A damaged list of images", evidence, remedy)
    entries: Entries = content
    return entries


def _damaged(content: object) -> str | None:
    """Return the defect of a list of images, or None."""
    if not isinstance(content, dict):
        return "it is not a mapping"
    for image, kinds in content.items():
        if not isinstance(kinds, dict):
            return f"{image} is not a mapping"
        for image_format, facts in kinds.items():
            if not isinstance(facts, dict):
                return f"{image}.{image_format} is not a mapping"
            labels = facts.get("labels", {})
            texts = [facts[key] for key in TEXTS if key in facts]
            if not isinstance(labels, dict) or not all(
                isinstance(text, str) for text in (*texts, *labels.values())
            ):
                return f"{image}.{image_format} holds a value that is not text"
    return None


def entry(entries: Entries, image: str, image_format: str) -> Mapping[str, Any]:
    """Return the entry of an image in a format of `Traits.image_format`; empty if none."""
    found = entries.get(image, {}).get(image_format)
    return found if isinstance(found, dict) else {}


def write(folder: Path, image: str, image_format: str, facts: Mapping[str, Any] | None) -> None:
    """Set an entry, or remove it where `facts` is None.

    Raises:
        CannotCreate: the folder cannot be written.
    """
    with locked(folder, LIST):
        entries = read(folder)
        of_image = {**entries.pop(image, {}), image_format: facts}
        of_image = {key: value for key, value in of_image.items() if value is not None}
        if of_image:
            entries[image] = of_image
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
                import sys

                print(wait, file=sys.stderr, flush=True)
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
