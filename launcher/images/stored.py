"""Images in an image folder: size, age, last verification and last launch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.engines.base import GIB
from launcher.images import usage
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
        torch: release of PyTorch that was measured in it, or None.
        record: the file whose shared lock a running container holds.
    """

    name: str
    image_format: str
    size: int | None
    built: float | None
    verified: str | None
    used: float | None
    torch: str | None
    record: Path

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
                torch=facts.get("labels", {}).get("org.aam.torch"),
                record=record,
            )


def _built(facts: Mapping[str, Any]) -> float | None:
    """Return when an image was built; a SIF that was copied has its modification time alone."""
    if "built" in facts:
        return float(facts["built"])
    return facts["mtime_ns"] / 1e9 if "mtime_ns" in facts else None
