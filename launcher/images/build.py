"""Build or pull an image into the image folder, and record it in images.json.

One build of an image at a time, under a lock; written to a temporary file and renamed when its own
test has passed. An image with the same inputs is not built twice.
"""

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

import msgspec

from aam.contract.errors import CannotCreate, MissingInput, Unavailable, UsageError
from aam.contract.files import sha256
from aam.contract.options import basic_option, required_option
from launcher import system
from launcher.detect import detect
from launcher.engines import BUILDERS
from launcher.engines.base import GIB, Builder, BuildLog, ImageBuild, SpaceRequirement
from launcher.images import definitions, index
from launcher.plan.catalog import Image

DAY = "%Y%m%dT%H%M%SZ"
VERSION = re.compile(r"([A-Za-z]+)\S*\s+(?:version\s+)?v?(\d+)\.(\d+)\S*")
"""Output of `ENGINE --version`: name, and the first two numbers."""


TEST = basic_option("Run the image's own test.", default=True)


@dataclass(frozen=True)
class SeveralImages:
    """Images that a command works on, and the engine that it uses."""

    engine: str | None = basic_option(
        "Container engine; by default the first that can.", metavar="NAME"
    )
    names: tuple[str, ...] = required_option(
        "Images of `aam-launch images`.", first=True, metavar="NAME"
    )


@dataclass(frozen=True)
class ImagesBuild(SeveralImages):
    """Build images into the image folder and record what was built (images.json).

    Examples:
        aam-launch images build cpu
        aam-launch images build rocm63 --engine podman
        aam-launch images build rocm63 --from copied.sif --sha256 3f5d...
    """

    build_arg: tuple[str, ...] = basic_option(
        "Set a build argument: BASE, SNAPSHOT, TORCH or TORCH_INDEX.",
        default=(),
        metavar="NAME=VALUE",
        repeated=True,
    )
    from_: Path | None = basic_option(
        "Copy this SIF, or make one of this image archive, instead of building."
    )
    sha256: str | None = basic_option("SHA-256 that the file of --from must have.", metavar="HEX")
    wheels: Path | None = basic_option("Folder of wheels to install from, without an index.")
    rebuild: bool = basic_option("Build even what is built of the same inputs.", default=False)
    test: bool = TEST


class InstalledBuilder(msgspec.Struct, frozen=True):
    """An engine that can build, its program and its version."""

    engine: Builder
    program: str
    version: str


class BuildJob(msgspec.Struct, frozen=True):
    """A build of an image of the catalog in the image folder."""

    image: Image
    builder: InstalledBuilder
    folder: Path
    arguments: Mapping[str, str]  # all build arguments
    options: ImagesBuild  # those of the command line, with absolute paths

    @property
    def sif(self) -> Path:
        """The file of the image in the image folder."""
        return self.folder / f"{self.image.name}.sif"


def suitable(image_format: str | None) -> tuple[Builder, ...]:
    """Return the engines that build images of a format of `EngineTraits`; None: any."""
    known = tuple(e for e in BUILDERS.values() if image_format in (None, e.traits.image_format))
    if not known:
        remedy = "remove its entry from images.json"
        raise Unavailable("No engine for images of this format", f"'{image_format}'", remedy)
    return known


def find_builder(requested: str | None, image_format: str | None = None) -> InstalledBuilder:
    """Return the engine of this host to build with: the requested one, or the first that can."""
    names = [e.name for e in suitable(image_format) if requested in (None, e.name)]
    candidates = [fact for fact in detect().engines if fact.name in names]
    if not candidates:
        known = ", ".join(engine.name for engine in suitable(image_format))
        what = f"no {requested}" if requested else f"none of {known}"
        remedy = f"install one of {known}"
        raise Unavailable("No engine to build with", f"{what} on PATH", remedy)
    fact = next((fact for fact in candidates if fact.obstacle is None), None)
    if fact is None:
        evidence = "; ".join(f"{fact.name}: {fact.obstacle}" for fact in candidates)
        raise Unavailable("No engine can build here", evidence, "remove that obstacle")
    done = system.run([fact.path, "--version"])
    match = VERSION.search(done.stdout)
    if match is None:
        evidence = f"`{fact.path} --version` prints '{(done.stdout or done.stderr).strip()}'"
        raise Unavailable("The engine does not work", evidence, "install it again")
    # One may be installed under the name of another.
    engine = BUILDERS.get(match[1].lower(), BUILDERS[fact.name])
    if (int(match[2]), int(match[3])) < engine.least:
        least = ".".join(map(str, engine.least))
        raise Unavailable("The engine is too old to build", f"{match[0].strip()} at {fact.path}",
                          f"{engine.name} {least} or later is needed")  # fmt: skip
    return InstalledBuilder(engine, fact.path, f"{match[2]}.{match[3]}")


def build(job: BuildJob) -> Mapping[str, Any]:
    """Build, and return the entry of images.json; of a build that fails only the log is left."""
    name, builder, options = job.image.name, job.builder, job.options
    image_format = builder.engine.traits.image_format
    with _scratch(job.folder, name) as scratch:
        context, facts = scratch / "context", dict[str, Any]()
        if options.from_ is not None:
            expected = options.sha256
            if expected is not None and not re.fullmatch("[0-9a-f]{64}", expected):
                remedy = "give 64 hexadecimal digits"
                raise UsageError("Not a SHA-256", f"--sha256 {expected}", remedy)
            if not options.from_.is_file():
                raise MissingInput("No such file", f"'{options.from_}'", "check the path")
            if expected is not None and (found := sha256(options.from_)) != expected:
                evidence = f"'{options.from_}' is sha256:{found}, expected was sha256:{expected}"
                remedy = "copy or pull it again, or give the SHA-256 that its publisher states"
                raise MissingInput("The file is another one", evidence, remedy)
            facts = {"from": str(options.from_)}
            context = scratch
            # The image takes at most as much as its file; unpacking an archive is the engine's.
            size, remedy = options.from_.stat().st_size, "set AAM_IMAGE_DIR to a folder with room"
            needs = [SpaceRequirement("image", job.folder, size, remedy)]
        else:
            content = definitions.stage(definitions.sources(), context)
            parts = [content, image_format, json.dumps(dict(job.arguments), sort_keys=True)]
            facts = {"inputs": hashlib.sha256("\0".join(parts).encode()).hexdigest()}
            recorded = index.entry(index.read(job.folder), name, image_format)
            same = not options.rebuild and recorded.get("inputs") == facts["inputs"]
            if same and builder.engine.exists(builder.program, recorded, job.sif):
                return {**recorded, "new": False}
            needs = builder.engine.needs(builder.program, job.image.room, job.folder, os.environ)
        require_space(needs)
        log = _log(job)
        log.step(f"{name} with {builder.engine.name} {builder.version}; log {log.path}")
        made = builder.engine.build(_inputs(job, context, scratch), log)
        return _recorded(job, {**facts, **made, "arguments": dict(job.arguments)}, log)


def pull(job: BuildJob, reference: str) -> Mapping[str, Any]:
    """Pull an image that a release has published, and return the entry of images.json.

    Args:
        reference: its name in a registry; one that ends in @sha256:... is checked by the engine.
    """
    with _scratch(job.folder, job.image.name) as scratch:
        log = _log(job, "The image was not pulled")
        log.step(
            f"{reference} with {job.builder.engine.name} {job.builder.version}; log {log.path}"
        )
        made = job.builder.engine.pull(_inputs(job, scratch, scratch), reference, log)
        digest = reference.partition("@")[2]
        return _recorded(job, {"from": reference, **made, **({"digest": digest} if digest else {})},
                         log)  # fmt: skip


@contextmanager
def _scratch(folder: Path, name: str) -> Iterator[Path]:
    """Hold the lock of an image, and give a folder for temporary files beside it."""

    def stop(number: int, frame: object) -> None:  # SIGTERM too removes temporary files
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        with index.locked_image(folder, name):
            for left in folder.glob(f".{name}.*"):  # of a build that was killed
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
                elif left.suffix != ".lock":
                    left.unlink()
            with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=folder) as scratch:
                yield Path(scratch)
    finally:
        signal.signal(signal.SIGTERM, before)


def require_space(needs: Sequence[SpaceRequirement]) -> None:
    """Check the disk space, summed over the requirements of each file system."""
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


def _inputs(job: BuildJob, context: Path, scratch: Path) -> ImageBuild:
    base = {"BASE": definitions.by_digest(job.arguments["BASE"])} if job.arguments else {}
    return ImageBuild(
        program=job.builder.program,
        name=job.image.name,
        arguments={**job.arguments, **base},
        context=context,
        scratch=scratch,
        epoch=epoch(job.arguments),
        wheels=job.options.wheels,
        archive=job.options.from_,
        test=job.options.test,
        place=job.sif,
    )


def _log(job: BuildJob, cause: str = "The image was not built") -> BuildLog:
    name = f"{job.image.name}-{job.builder.engine.name}.log"
    return BuildLog(job.folder / "logs" / name, cause)


def _recorded(job: BuildJob, facts: Mapping[str, Any], log: BuildLog) -> Mapping[str, Any]:
    name, builder = job.image.name, job.builder
    engine = f"{builder.engine.name} {builder.version}"
    entry = {**facts, "engine": engine, "built": int(time.time())}
    index.write(job.folder, name, builder.engine.traits.image_format, entry)
    log.step(f"{name} is there: {facts.get('reference') or job.sif}")
    return {**entry, "new": True}


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
