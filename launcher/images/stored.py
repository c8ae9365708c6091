"""Stored images: addition of a SIF, size, age, last use and removal."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aam.contract.errors import MissingInput, UsageError
from aam.contract.files import atomic_write, sha256
from launcher.engines import builders
from launcher.engines.base import GIB, which
from launcher.engines.sif import SIF, record_of
from launcher.engines.sif_file import check_sif, labels_of
from launcher.images import index
from launcher.images.index import Entries
from launcher.plan.plan import use_record

DAY = 86400
LABEL = "org.aam.name"


@dataclass(frozen=True)
class StoredImage:
    """A recorded image in one format.

    Attributes:
        name: of the image.
        image_format: "sif", "podman", ...
        size: bytes, or None if it is not recorded.
        built: when it was built or pulled, in seconds since 1970, or None.
        verified: day of the last `images verify` ("2026-11-22"), or None.
        used: last launch in seconds since 1970, or None.
    """

    name: str
    image_format: str
    size: int | None
    built: float | None
    verified: str | None
    used: float | None

    @property
    def text(self) -> str:
        """Format, size, age, verification and last use, as far as they are known."""
        facts = [self.image_format]
        if self.size is not None:
            facts.append(f"{self.size / GIB:.1f} GiB")
        if self.built is not None:
            facts.append(f"{days_since(self.built)} days old")
        if self.verified:
            facts.append(f"verified {self.verified}")
        if self.used:
            facts.append(time.strftime("last used %Y-%m-%d", time.gmtime(self.used)))
        return ", ".join(facts)


def days_since(seconds: float) -> int:
    """Return the whole days since a time."""
    return max(0, int(time.time() - seconds) // DAY)


def listed(folder: Path, entries: Entries) -> Iterator[StoredImage]:
    """Yield the recorded images of an image folder."""
    for name, formats in entries.items():
        for image_format, facts in formats.items():
            record = Path(use_record(str(folder), name, image_format))
            yield StoredImage(
                name=name,
                image_format=image_format,
                size=facts.get("bytes"),
                built=_built(facts),
                verified=facts.get("verified"),
                used=last_use(record),
            )


def _built(facts: Mapping[str, Any]) -> float | None:
    """Return when an image was built; a SIF that was copied has its modification time alone."""
    if "built" in facts:
        return float(facts["built"])
    return facts["mtime_ns"] / 1e9 if "mtime_ns" in facts else None


def remove(folder: Path, name: str, image_format: str) -> None:
    """Remove an image in one format with its record; the caller holds its lock.

    Raises:
        CannotCreate: its engine refuses.
        Unavailable: no engine of this launcher has this format.
    """
    engine = builders(image_format)[0]
    program = which(engine.name, os.environ.get("PATH", "")) or engine.name
    recorded = index.entry(index.read(folder), name, image_format)
    engine.remove(program, recorded, folder / f"{name}.sif")
    index.write(folder, name, image_format, None)
    Path(use_record(str(folder), name, image_format)).unlink(missing_ok=True)


def add(name: str, file: Path, expected: str | None, folder: Path) -> Path:
    """Copy a SIF into the image folder, unless it lies there, and record it; return its place.

    Args:
        name: image of the catalog that the label of the SIF names.
        expected: SHA-256 of the file in hexadecimal digits. Without it a SIF in its place that has
            a record must be the recorded one.
        folder: the image folder.

    Raises:
        UsageError: `expected` is no SHA-256.
        MissingInput: there is no such file, or it is incomplete, another image or another file.
    """
    if expected is not None and (len(expected) != 64 or set(expected) - set("0123456789abcdef")):
        raise UsageError("Not a SHA-256", f"--sha256 {expected}", "give 64 hexadecimal digits")
    if not file.is_file():
        raise MissingInput("No such file", f"'{file}'", "check the path")
    place = folder / f"{name}.sif"
    with index.locked_image(folder, name):
        recorded = index.entry(index.read(folder), name, SIF)
        in_place = place.exists() and file.samefile(place)
        _require(name, file, expected or (recorded.get("sha256") if in_place else None))
        if not in_place:
            recorded = {}
            with atomic_write(place) as temporary:
                shutil.copyfile(file, temporary)
                _require(name, temporary, expected or sha256(file))
                temporary.chmod(0o755)
        facts = record_of(place)
        index.write(folder, name, SIF, {**(recorded or {"from": str(file)}), **facts})
    return place


def _require(name: str, file: Path, expected: str | None) -> None:
    """Check that a SIF is complete, has the expected SHA-256, and is labelled with its name."""
    check_sif(str(file))
    if expected is not None and (found := sha256(file)) != expected:
        evidence = f"'{file}' is sha256:{found}, expected was sha256:{expected}"
        remedy = "copy or pull it again, or give the SHA-256 that its publisher states"
        raise MissingInput("The SIF is another one", evidence, remedy)
    label = labels_of(file).get(LABEL)
    if label != name:
        evidence = f"'{file}' is labelled {label}" if label else f"'{file}' has no label {LABEL}"
        remedy = f"add it as {label}" if label else "start it by its path: --image FILE.sif"
        raise MissingInput(f"The SIF is not the image {name}", evidence, remedy)


def note_use(record: str) -> None:
    """Record a launch; a user who may not write the image folder leaves no time.

    Args:
        record: path, `Plan.use_record`.
    """
    with suppress(OSError):
        handle = os.open(record, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        with suppress(OSError):  # for other members of a group, whatever the umask is
            os.fchmod(handle, os.stat(os.path.dirname(record)).st_mode & 0o666)
        with suppress(OSError):
            os.utime(handle)
        os.close(handle)


def last_use(record: Path) -> float | None:
    """Return the time of the last launch in seconds since 1970, or None if none is recorded."""
    with suppress(OSError):
        return record.stat().st_mtime
    return None
