"""Build an image into the image folder, and record it in images.json.

One build of an image at a time, under a lock; written to a temporary file and renamed when its own
test has passed. An image with the same inputs is not built twice.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aam.contract.errors import CannotCreate, MissingInput, Unavailable
from launcher import processes
from launcher.detect import detect
from launcher.engines import BUILDERS, STORAGES, builders
from launcher.engines.base import GIB, Builder, ImageBuild, SpaceRequirement
from launcher.engines.build_log import BuildLog
from launcher.host.facts import EngineFact
from launcher.images import definitions, index
from launcher.options.images import ImagesBuild
from launcher.plan.catalog import Image

DAY = "%Y%m%dT%H%M%SZ"
VERSION = re.compile(r"([A-Za-z]+)\S*\s+(?:version\s+)?v?(\d+)\.(\d+)\S*")
"""Output of `ENGINE --version`: name, and the first two numbers."""


@dataclass(frozen=True)
class InstalledBuilder:
    """An engine that can build, its program and its version."""

    engine: Builder
    program: str
    version: str


@dataclass(frozen=True)
class BuildJob:
    """A build of an image of the catalog in the image folder.

    Attributes:
        arguments: all build arguments.
        options: those of the command line, with absolute paths.
    """

    image: Image
    builder: InstalledBuilder
    folder: Path
    arguments: Mapping[str, str]
    options: ImagesBuild

    @property
    def sif(self) -> Path:
        """The file of the image in the image folder."""
        return self.folder / f"{self.image.name}.sif"


def find_builder(requested: str | None, image_format: str | None = None) -> InstalledBuilder:
    """Return the engine of this host to build with: the requested one, or the first that can.

    Args:
        image_format: of `EngineTraits.image_format`; None: any.

    Raises:
        Unavailable: there is none, or it is too old.
    """
    suitable = builders(image_format) if image_format else tuple(BUILDERS.values())
    names = [engine.name for engine in suitable if requested in (None, engine.name)]
    candidates = [fact for fact in detect().engines if fact.name in names]
    if not candidates:
        known = ", ".join(engine.name for engine in suitable)
        what = f"no {requested}" if requested else f"none of {known}"
        remedy = f"install one of {known}"
        raise Unavailable("No engine to build with", f"{what} on PATH", remedy)
    for fact in candidates:
        if fact.obstacle is None:
            return _checked(fact)
    evidence = "; ".join(f"{fact.name}: {fact.obstacle}" for fact in candidates)
    raise Unavailable("No engine can build here", evidence, "remove that obstacle")


def _checked(fact: EngineFact) -> InstalledBuilder:
    """Return the engine that a program is; one may be installed under the name of another."""
    done = processes.run([fact.path, "--version"])
    match = VERSION.search(done.stdout)
    if match is None:
        evidence = f"`{fact.path} --version` prints '{(done.stdout or done.stderr).strip()}'"
        raise Unavailable("The engine does not work", evidence, "install it again")
    engine = BUILDERS.get(match[1].lower(), BUILDERS[fact.name])
    if (int(match[2]), int(match[3])) < engine.least:
        least = ".".join(map(str, engine.least))
        raise Unavailable("The engine is too old to build", f"{match[0].strip()} at {fact.path}",
                          f"{engine.name} {least} or later is needed")  # fmt: skip
    return InstalledBuilder(engine, fact.path, f"{match[2]}.{match[3]}")


def build(job: BuildJob) -> Mapping[str, Any]:
    """Build, and return the entry of images.json.

    Raises:
        AamError: the build failed; only the log is left.
    """
    name = job.image.name
    with stoppable(), index.locked_image(job.folder, name):
        _clear(job.folder, name)
        with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=job.folder) as scratch:
            return (_converted if job.options.from_ else _built)(job, Path(scratch))


@contextmanager
def stoppable() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that temporary files are removed."""

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def require_space(needs: Sequence[SpaceRequirement]) -> None:
    """Check the disk space, summed over the requirements of each file system.

    Raises:
        CannotCreate: there is not, or a folder is not there, with the variable to set.
    """
    taken: dict[int, int] = {}
    for need in needs:
        place = next(folder for folder in (need.folder, *need.folder.parents) if folder.exists())
        facts, device = os.statvfs(place), os.stat(place).st_dev
        taken[device] = taken.get(device, 0) + need.size
        free = facts.f_bavail * facts.f_frsize
        if free < taken[device]:
            needed = f"{taken[device] / GIB:.1f} needed"
            evidence = f"{free / GIB:.1f} GiB free at '{need.folder}' ({need.what}), {needed}"
            raise CannotCreate("No room to build", evidence, need.remedy)


def require_wheels(folder: Path | None) -> Path | None:
    """Return the absolute path of the folder of --wheels, if one is given.

    Raises:
        MissingInput: it has no wheels.
    """
    if folder is not None and not any(folder.glob("*.whl")):
        remedy = "fill it: pip download --no-deps --require-hashes -r containers/locks/NAME.txt"
        raise MissingInput("No wheels to install from", f"'{folder}'", remedy)
    return folder and folder.absolute()


def _clear(folder: Path, name: str) -> None:
    """Remove leftovers of a killed build; this process holds the lock."""
    for left in folder.glob(f".{name}.*"):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        elif left.suffix != ".lock":
            left.unlink()


def _built(job: BuildJob, scratch: Path) -> Mapping[str, Any]:
    """Build a definition, unless an image of the same inputs is there."""
    name, builder = job.image.name, job.builder
    context = scratch / "context"
    inputs = _inputs(definitions.stage(definitions.sources(), context), job)
    recorded = index.entry(index.read(job.folder), name, builder.engine.traits.image_format)
    is_same = not job.options.rebuild and recorded.get("inputs") == inputs
    if is_same and builder.engine.exists(builder.program, recorded, job.sif):
        return {**recorded, "new": False}
    require_space(builder.engine.needs(builder.program, job.image.room, job.folder, os.environ))
    log = _log(job)
    log.step(f"{name} with {builder.engine.name} {builder.version}; log {log.path}")
    facts = builder.engine.build(_build(job, context, scratch), log)
    return _recorded(job, {**facts, "inputs": inputs}, log)


def _converted(job: BuildJob, scratch: Path) -> Mapping[str, Any]:
    """Make a SIF of an archive, or of an image of another engine, without a registry."""
    name, source = job.image.name, str(job.options.from_)
    log = _log(job)
    facts: dict[str, Any] = {"from": source}
    if source in STORAGES:
        engine = STORAGES[source]
        recorded = index.entry(index.read(job.folder), name, engine.traits.image_format)
        if not recorded:
            remedy = f"`aam-launch images build {name} --engine {source}` first"
            raise MissingInput(f"{source} has no image {name}", f"not in '{job.folder}'", remedy)
        archive = scratch / "image.tar"
        log.step(f"save {recorded['reference']} from {source}")
        engine.export(source, recorded, archive, log)
        facts["digest"] = recorded.get("digest")
    elif Path(source).is_file():
        archive = Path(source).resolve()
    else:
        remedy = f"name a file or one of {', '.join(STORAGES)}"
        raise MissingInput("No such archive", f"'{source}'", remedy)
    made = job.builder.engine.build(_build(job, scratch, scratch, archive), log)
    return _recorded(job, {**facts, **made}, log)


def _build(job: BuildJob, context: Path, scratch: Path, archive: Path | None = None) -> ImageBuild:
    return ImageBuild(
        program=job.builder.program,
        name=job.image.name,
        arguments={**job.arguments, "BASE": definitions.by_digest(job.arguments["BASE"])},
        context=context,
        scratch=scratch,
        epoch=epoch(job.arguments),
        wheels=job.options.wheels,
        archive=archive,
        fast=job.options.fast,
        test=job.options.test,
        place=job.sif,
    )


def _log(job: BuildJob) -> BuildLog:
    return BuildLog(job.folder / "logs" / f"{job.image.name}-{job.builder.engine.name}.log")


def _recorded(job: BuildJob, facts: Mapping[str, Any], log: BuildLog) -> Mapping[str, Any]:
    name, builder = job.image.name, job.builder
    engine, arguments = f"{builder.engine.name} {builder.version}", dict(job.arguments)
    entry = {**facts, "engine": engine, "arguments": {} if job.options.from_ else arguments}
    entry["built"] = int(time.time())
    index.write(job.folder, name, builder.engine.traits.image_format, entry)
    log.step(f"{name} is built: {facts.get('reference') or job.sif}")
    return {**entry, "new": True}


def _inputs(context: str, job: BuildJob) -> str:
    arguments = json.dumps(dict(job.arguments), sort_keys=True)
    parts = [context, job.builder.engine.traits.image_format, str(job.options.fast), arguments]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def epoch(arguments: Mapping[str, str]) -> int:
    """Return the date of built files, which is that of Debian's snapshot, in Unix seconds.

    >>> epoch({"SNAPSHOT": "19700102T000000Z"})
    86400
    """
    try:
        day = datetime.datetime.strptime(arguments.get("SNAPSHOT", ""), DAY)
    except ValueError:
        day = datetime.datetime(2026, 8, 24)
    return int(day.replace(tzinfo=datetime.timezone.utc).timestamp())
