"""Stored images: size, age, last use and removal."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.engines import builders
from launcher.engines.base import GIB, which
from launcher.images import index, usage
from launcher.images.index import Entries
from launcher.plan.plan import use_record

DAY = 86400
UNKNOWN = "-"


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
    def columns(self) -> tuple[str, ...]:
        """Format, size, age, verified and last used, for a table."""
        size = f"{self.size / GIB:.1f} GiB" if self.size is not None else UNKNOWN
        age = f"{days_since(self.built)} days" if self.built is not None else UNKNOWN
        used = time.strftime("%Y-%m-%d", time.gmtime(self.used)) if self.used else UNKNOWN
        return (self.image_format, size, age, self.verified or UNKNOWN, used)


def days_since(seconds: float) -> int:
    """Return the whole days since a time."""
    return max(0, int(time.time() - seconds) // DAY)


def stored(folder: Path, entries: Entries) -> Iterator[StoredImage]:
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
                used=usage.last(record),
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
