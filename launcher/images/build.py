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
from aam.contract.options import ONE_OR_MORE, basic_option, required_option
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
    minutes: int = basic_option(
        "Time limit of an image; its engine is ended then.", default=240, takes=ONE_OR_MORE
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
        remedy = f"let an administrator remove what stops {' or '.join(names)}"
        raise Unavailable("No engine can build here", evidence, remedy)
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


def build(
    image: Image,
    builder: InstalledBuilder,
    folder: Path,
    options: ImagesBuild,
    arguments: Mapping[str, str],
    reference: str = "",
) -> Mapping[str, Any]:
    """Build an image, or pull it, and return the entry of images.json; a failure leaves its log.

    Args:
        options: those of the command line, with absolute paths.
        arguments: all build arguments.
        reference: name in a registry of an image to pull that a release has published; the engine
            checks one that ends in @sha256:...
    """
    name, engine, program = image.name, builder.engine, builder.program
    image_format, sif = engine.traits.image_format, folder / f"{name}.sif"
    with _scratch(folder, name) as scratch:
        context, facts, needs = scratch, dict[str, Any](), list[SpaceRequirement]()
        if reference:
            facts = {"from": reference}
        elif options.from_ is not None:
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
            # The image takes at most as much as its file; unpacking an archive is the engine's.
            size, remedy = options.from_.stat().st_size, "set AAM_IMAGE_DIR to a folder with room"
            needs = [SpaceRequirement("image", folder, size, remedy)]
        else:
            context = scratch / "context"
            content = definitions.stage(definitions.sources(), context)
            parts = [content, image_format, json.dumps(dict(arguments), sort_keys=True)]
            facts = {"inputs": hashlib.sha256("\0".join(parts).encode()).hexdigest()}
            recorded = index.entry(index.read(folder), name, image_format)
            same = not options.rebuild and recorded.get("inputs") == facts["inputs"]
            if same and engine.exists(program, recorded, sif):
                return {**recorded, "new": False}
            needs = engine.needs(program, image.room, folder, os.environ)
        require_space(needs)
        cause = f"The image was not {'pulled' if reference else 'built'}"
        log = BuildLog(folder / "logs" / f"{name}-{engine.name}.log", cause, options.minutes * 60)
        log.step(f"{reference or name} with {engine.name} {builder.version}; log {log.path}")
        base = {"BASE": definitions.by_digest(arguments["BASE"])} if arguments else {}
        inputs = ImageBuild(
            program=program,
            name=name,
            arguments={**arguments, **base},
            context=context,
            scratch=scratch,
            epoch=epoch(arguments),
            wheels=options.wheels,
            archive=options.from_,
            test=options.test,
            place=sif,
        )
        if reference:
            digest = reference.partition("@")[2]
            facts |= engine.pull(inputs, reference, log) | ({"digest": digest} if digest else {})
        else:
            facts |= {**engine.build(inputs, log), "arguments": dict(arguments)}
        facts |= {"engine": f"{engine.name} {builder.version}", "built": int(time.time())}
        index.write(folder, name, image_format, facts)
        log.step(f"{name} is there: {facts.get('reference') or sif}")
        return {**facts, "new": True}


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
