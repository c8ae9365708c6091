"""Stored images: size, age, last use; removal by name or by age and use (`images prune`)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.engines import of_format
from launcher.engines.base import GIB, which
from launcher.images import index, sbom, usage
from launcher.images.index import Entries
from launcher.options.images import ImagesPrune
from launcher.plan.catalog import Catalog
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


def _reasons(rules: ImagesPrune, image: StoredImage, catalog: Catalog) -> list[str]:
    """Return why an image is pruned, one rule being enough; empty if it is kept.

    An image that was never launched is unused since its build.
    """
    found = []
    age = days_since(image.built) if image.built is not None else None
    idle = days_since(image.used) if image.used is not None else age
    if rules.older_than is not None and age is not None and age >= rules.older_than:
        found.append(f"built {age} days ago")
    if rules.unused is not None and idle is not None and idle >= rules.unused:
        found.append(f"last used {idle} days ago" if image.used else "never used")
    return found + (_superseded(image, catalog) if rules.superseded else [])


def _superseded(image: StoredImage, catalog: Catalog) -> list[str]:
    known = catalog.image(image.name)
    if known is None:
        return ["not in the catalog"]
    pin, torch = known.pins.get("torch"), (image.torch or "").partition("+")[0]
    if pin and torch and torch != pin:
        return [f"has PyTorch {torch}, the catalog {pin}"]
    return []


def prune(
    folder: Path,
    catalog: Catalog,
    rules: ImagesPrune,
    in_queue: Callable[[str], Sequence[str]],
) -> None:
    """Remove the images that a rule selects, and print each with its reason.

    An image that a container runs, or that a queued job names, is kept.

    Args:
        in_queue: returns the queued jobs whose script names a file or an id.
    """
    freed, execute, entries = 0, rules.yes, index.read(folder)
    for image in stored(folder, entries):
        why = "; ".join(_reasons(rules, image, catalog))
        if not why:
            continue
        lock = index.locked_image(folder, image.name) if execute else nullcontext()
        with lock, usage.unused(image.record) as unused:
            recorded = index.entry(index.read(folder), image.name, image.image_format)
            if recorded != index.entry(entries, image.name, image.image_format):
                continue  # another process has built or removed it meanwhile
            place = str(recorded.get("id") or folder / f"{image.name}.sif")
            jobs = in_queue(place)
            if not unused or jobs:
                by = f"job {', '.join(jobs)} uses it" if jobs else "a container runs it"
                print(f"{image.name:<10} {image.image_format:<8} kept: {by} ({why})")
                continue
            if execute:
                remove(folder, image.name, image.image_format)
            freed += image.size or 0
            done = "removed" if execute else "would be removed"
            print(f"{image.name:<10} {image.image_format:<8} {done}: {why}, {image.columns[1]}")
    print(f"{freed / GIB:.1f} GiB {'freed' if execute else 'would be freed; --yes removes them'}")


def remove(folder: Path, name: str, image_format: str) -> None:
    """Remove an image in one format with its record; the caller holds its lock.

    Raises:
        CannotCreate: its engine refuses.
        Unavailable: no engine of this launcher has this format.
    """
    engine = of_format(image_format)[0]
    program = which(engine.name, os.environ.get("PATH", "")) or engine.name
    recorded = index.entry(index.read(folder), name, image_format)
    engine.remove(program, recorded, folder / f"{name}.sif")
    index.write(folder, name, image_format, None)
    Path(use_record(str(folder), name, image_format)).unlink(missing_ok=True)
    sbom.path_of(folder, name, image_format).unlink(missing_ok=True)
