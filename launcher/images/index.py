"""images.json: the record of the images in an image folder.

    {"rocm63": {"sif": {"sha256": "...", "bytes": 1234, "mtime_ns": ..., "labels": {...}, ...},
                "podman": {"reference": "localhost/aam:rocm63", "digest": "sha256:...", ...}}}

It is written atomically and under a lock of its own: a reader never sees half of it, and two
writers do not lose each other's entry. What is written under a lock has the access of the folder,
so that the members of its group can replace it, whatever their umask is.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

from aam.contract.errors import CannotCreate, ConfigurationError, DataError, MissingInput
from aam.contract.files import atomic_write, try_lock
from aam.contract.records import convert, decode_json
from launcher import system

LIST = "images.json"
DAY = 86400
LARGEST = 64 << 20
Entries = dict[str, dict[str, Mapping[str, Any]]]


class Facts(TypedDict, total=False):
    """What is recorded of an image in a format, as far as it is read."""

    sha256: str
    digest: str | None
    reference: str
    id: str
    verified: str
    bytes: int
    mtime_ns: int
    built: int
    labels: dict[str, str]


def read(folder: Path) -> Entries:
    """Return the entries of a folder's images.json; empty if there is none."""
    path = folder / LIST
    try:
        content = system.regular(path, LARGEST)
        entries: Entries = decode_json(content, Entries, "list of images", f"'{path}'")
        convert(entries, dict[str, dict[str, Facts]], "the list")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, DataError) as error:
        remedy = "remove it, then `aam-launch images build NAME --from FILE`"
        evidence = error.evidence if isinstance(error, DataError) else f"'{path}', {error}"
        raise ConfigurationError("A damaged list of images", evidence, remedy) from error
    return entries


def entry(entries: Entries, image: str, image_format: str) -> Mapping[str, Any]:
    """Return the entry of an image in a format of `EngineTraits.image_format`; empty if none."""
    return entries.get(image, {}).get(image_format, {})


def write(folder: Path, image: str, image_format: str, facts: Mapping[str, Any] | None) -> None:
    """Set an entry, or remove it where `facts` is None."""
    with locked(folder, LIST):
        entries = read(folder)
        of_image = {**entries.pop(image, {}), image_format: facts}
        if kept := {key: value for key, value in of_image.items() if value is not None}:
            entries[image] = kept
        with atomic_write(folder / LIST) as temporary:
            temporary.write_text(json.dumps(dict(sorted(entries.items())), indent=1) + "\n")


def of_image(folder: Path, name: str, image_format: str | None) -> dict[str, Mapping[str, Any]]:
    """Return the entries of an image by format: those of all formats, or that of one."""
    recorded = read(folder).get(name, {})
    found = {k: facts for k, facts in recorded.items() if image_format in (None, k)}
    if not found:
        remedy = f"`aam-launch images build {name}`, or `add` for one that was copied"
        raise MissingInput("No such image is recorded", f"{name} in '{folder}'", remedy)
    return found


def shown(facts: Mapping[str, Any], image_format: str) -> str:
    """Return format, size, age and verification of a recorded image, as far as they are known."""
    parts = [image_format]
    if "bytes" in facts:
        parts.append(f"{facts['bytes'] / (1 << 30):.1f} GiB")
    # A SIF that was copied has its modification time alone.
    built = facts.get("built") or facts.get("mtime_ns", 0) / 1e9
    if built:
        parts.append(f"{max(0, int(time.time() - built) // DAY)} days old")
    return ", ".join([*parts, *([f"verified {facts['verified']}"] if "verified" in facts else [])])


@contextlib.contextmanager
def locked(folder: Path, name: str, what: str = "") -> Iterator[None]:
    """Hold the lock `.NAME.lock` of a folder; the kernel releases it when its holder ends.

    Args:
        what: is under way, for the message while another process holds it; "" prints none.
    """
    before = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = os.umask(0o077 & ~folder.stat().st_mode)
        stream = (folder / f".{name}.lock").open("a+")
    except OSError as error:
        if before is not None:
            os.umask(before)
        evidence = f"'{folder}', {error.strerror}"
        remedy = "set AAM_IMAGE_DIR to a folder of yours, or let its owner run `chmod g+ws` on it"
        raise CannotCreate("The image folder cannot be written", evidence, remedy) from error
    try:
        with stream:
            state = try_lock(stream)
            if state == "taken":
                if what:
                    stream.seek(0)
                    holder = stream.read() or "an unknown process"
                    message = f"{what} in '{folder}' is under way ({holder}); waiting for it."
                    print(message, file=sys.stderr)
                fcntl.flock(stream, fcntl.LOCK_EX)
            elif state == "unsupported":
                warning = f"warning: '{folder}' has no file locks: start one build at a time."
                print(warning, file=sys.stderr)
            user, host = os.environ.get("USER", os.geteuid()), os.uname().nodename
            stream.truncate(0)
            stream.write(f"{user} on {host}, process {os.getpid()}, since {time.ctime()}")
            stream.flush()
            yield
    finally:
        os.umask(before)


def locked_image(folder: Path, name: str) -> contextlib.AbstractContextManager[None]:
    """Hold the lock under which an image is built, added or removed."""
    return locked(folder, f"{name}.build", f"Another build of {name}")
