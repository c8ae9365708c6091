"""Build or pull an image into the image folder, and record it in images.json; one at a time."""

import datetime
import hashlib
import json
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from aam.contract.errors import MissingInput, Unavailable, UsageError
from aam.contract.files import sha256
from aam.contract.options import ONE_OR_MORE, basic_option, required_option
from launcher import system
from launcher.detect import detect
from launcher.engines import BUILDERS
from launcher.engines.engine import Builder, BuildLog, ImageBuild, ImageRecord, ImageReference
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
) -> tuple[ImageRecord, bool]:
    """Build an image; return its record, and whether it is new. With --from without `arguments`."""
    engine = builder.engine
    with _inputs(image.name, builder, folder, options.minutes) as inputs:
        base = {"BASE": str(ImageReference.parse(arguments["BASE"]))} if arguments else {}
        inputs = replace(
            inputs, test=options.test, arguments={**arguments, **base}, room=image.room,
            epoch=epoch(arguments), wheels=options.wheels, archive=options.from_,
        )  # fmt: skip
        facts: dict[str, Any] = {"from_": str(options.from_)}
        if options.from_ is not None:
            _require_file(options.from_, options.sha256)
        else:
            content = definitions.stage(inputs.context)
            parts = [content, str(engine.traits.image_format),
                     json.dumps(dict(arguments), sort_keys=True)]  # fmt: skip
            digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
            recorded = index.read(folder).get(image.name, {}).get(parts[1])
            if recorded and recorded.inputs == digest and not options.rebuild:
                with suppress(MissingInput):  # it was removed, or is another one
                    engine.verify(replace(inputs, test=False), recorded)
                    return recorded, False
            facts = {"inputs": digest, "arguments": dict(arguments)}
        log = _log(image.name, builder, folder, "built", options.minutes)
        record = replace(engine.build(inputs, log), **facts)
        return _record(record, image.name, builder, folder, log), True


def pull(
    name: str, builder: InstalledBuilder, folder: Path, reference: ImageReference, minutes: int
) -> ImageRecord:
    """Pull an image that a release has published; return its record."""
    with _inputs(name, builder, folder, minutes) as inputs:
        log = _log(name, builder, folder, "pulled", minutes)
        log.step(str(reference))
        record = replace(builder.engine.pull(inputs, reference, log), from_=str(reference))
        record = replace(record, digest=reference.digest or record.digest)
        return _record(record, name, builder, folder, log)


def _require_file(file: Path, expected: str | None) -> None:
    """Check that a file is there, and has the SHA-256 that is expected."""
    if expected is not None and not re.fullmatch("[0-9a-f]{64}", expected):
        remedy = "give 64 hexadecimal digits"
        raise UsageError("Not a SHA-256", f"--sha256 {expected}", remedy)
    if not file.is_file():
        raise MissingInput("No such file", f"'{file}'", "check the path")
    if expected is not None and (actual := sha256(file)) != expected:
        evidence = f"'{file}' is sha256:{actual}, expected was sha256:{expected}"
        remedy = "copy or pull it again, or give the SHA-256 that its publisher states"
        raise MissingInput("The file is another one", evidence, remedy)


def _log(name: str, builder: InstalledBuilder, folder: Path, done: str, minutes: int) -> BuildLog:
    """Return the log of a build, which a failure leaves."""
    place = folder / "logs" / f"{name}-{builder.engine.name}.log"
    log = BuildLog(place, f"The image was not {done}", minutes * 60)
    log.step(f"{name} with {builder.engine.name} {builder.version}; log {place}")
    return log


def _record(
    record: ImageRecord, name: str, builder: InstalledBuilder, folder: Path, log: BuildLog
) -> ImageRecord:
    """Write the record of a new image to images.json."""
    engine = f"{builder.engine.name} {builder.version}"
    record = replace(record, engine=engine, built=int(time.time()))
    index.write(folder, name, str(builder.engine.traits.image_format), record)
    log.step(f"{name} is there: {record.reference or folder / f'{name}.sif'}")
    return record


@contextmanager
def _inputs(
    name: str, builder: InstalledBuilder, folder: Path, minutes: int
) -> Iterator[ImageBuild]:
    """Hold the lock of an image; give what is common to builds and pulls, and a scratch folder."""

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
                Path(scratch, "context").mkdir()
                yield ImageBuild(builder.program, name, folder / f"{name}.sif", True, minutes,
                                 Path(scratch), Path(scratch, "context"))  # fmt: skip
    finally:
        signal.signal(signal.SIGTERM, before)


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
