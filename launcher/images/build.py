"""Build or pull an image into the image folder, and record it in images.json; one at a time.

A build needs the package `aam` and the folder `containers`, beside the launcher or in
share/aam/containers of an installation.
"""

import datetime
import hashlib
import json
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import aam
from aam.contract.dataclass import dataclass
from aam.contract.errors import MissingInput, Unavailable, UsageError, nearest
from aam.contract.files import sha256
from aam.contract.installation import DISTRIBUTION
from aam.contract.options import ONE_OR_MORE, basic_option, required_option
from launcher import system
from launcher.detect import detect
from launcher.engines import BUILDERS
from launcher.engines.engine import Builder, BuildLog, ImageBuild, ImageRecord, ImageReference
from launcher.host.facts import EngineFact
from launcher.images import index
from launcher.plan.catalog import Image

PACKAGE = Path(aam.__file__).parent
INSTALL = "install.sh"
_NO_CACHES = shutil.ignore_patterns("__pycache__", "*.pyc")
DAY = "%Y%m%dT%H%M%SZ"
VERSION = re.compile(r"([A-Za-z]+)\S*\s+(?:version\s+)?v?(\d+)\.(\d+)\S*")
"""Output of `ENGINE --version`: name, and the first two numbers."""
TEST = basic_option("Run the image's own test.", default=True)


@dataclass(frozen=True)
class SeveralImages:
    """Images that a command works on, and the engine that it uses."""

    engine: str | None = basic_option(
        "Container engine; by default the first that can build.", metavar="NAME"
    )
    names: tuple[str, ...] = required_option(
        "Images of `aam-launch images`.", first=True, metavar="NAME"
    )
    minutes: int = basic_option(
        "Time limit of the build of an image.", default=240, takes=ONE_OR_MORE
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
    rebuild: bool = basic_option("Build again although the inputs are the same.", default=False)
    test: bool = TEST


def suitable(image_format: str | None) -> tuple[Builder, ...]:
    """Return the engines that build images of a format of `EngineTraits`; None: any."""
    engines = tuple(e for e in BUILDERS.values() if image_format in (None, e.traits.image_format))
    if not engines:
        remedy = "remove its entry from images.json"
        raise Unavailable("No engine for images of this format", f"'{image_format}'", remedy)
    return engines


def find_builder(
    requested: str | None, image_format: str | None = None
) -> tuple[Builder, EngineFact]:
    """Return the engine of this host to build with: the requested one, or the first that can."""
    names = [e.name for e in suitable(image_format) if requested in (None, e.name)]
    candidates = [fact for fact in detect().engines if fact.name in names]
    if not candidates:
        engine_names = ", ".join(engine.name for engine in suitable(image_format))
        absence = f"no {requested}" if requested else f"none of {engine_names}"
        remedy = f"install one of {engine_names}"
        raise Unavailable("No engine to build with", f"{absence} on PATH", remedy)
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
    return engine, replace(fact, version=f"{match[2]}.{match[3]}")


def make(
    image: Image, builder: tuple[Builder, EngineFact], folder: Path, options: SeveralImages,
    arguments: Mapping[str, str], reference: ImageReference | None = None,
) -> tuple[ImageRecord, bool]:  # fmt: skip
    """Build an image, or pull a `reference`; return its record, and whether it is new.

    `arguments` are all arguments of the build, none with --from.
    """
    engine, fact = builder
    image_format = str(engine.traits.image_format)
    with _inputs(image.name, fact.path, folder, options.minutes) as inputs:
        facts: dict[str, Any] = {"from_": str(reference)}
        if isinstance(options, ImagesBuild):
            base = {"BASE": str(ImageReference.parse(arguments["BASE"]))} if arguments else {}
            inputs = replace(
                inputs, test=options.test, arguments={**arguments, **base}, room=image.room,
                epoch=epoch(arguments), wheels=options.wheels, archive=options.from_,
            )  # fmt: skip
            facts["from_"] = str(options.from_)
            if options.from_ is not None:
                _require_file(options.from_, options.sha256)
            else:
                texts = [stage(inputs.context), image_format, json.dumps(arguments, sort_keys=True)]
                digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()
                recorded = index.read(folder).get(image.name, {}).get(image_format)
                if recorded and recorded.inputs == digest and not options.rebuild:
                    with suppress(MissingInput):  # it was removed, or is another one
                        engine.verify(replace(inputs, test=False), recorded)
                        return recorded, False
                facts = {"inputs": digest, "arguments": dict(arguments)}
        log_file, done = folder / "logs" / f"{image.name}-{engine.name}.log", "built"
        log = BuildLog(log_file, f"The image was not {'pulled' if reference else done}",
                       options.minutes * 60)  # fmt: skip
        log.step(f"{image.name} with {engine.name} {fact.version}; log {log_file}")
        if reference:
            log.step(str(reference))
            record = engine.pull(inputs, reference, log)
            facts["digest"] = reference.digest or record.digest
        else:
            record = engine.build(inputs, log)
        record = replace(record, **facts, engine=f"{engine.name} {fact.version}",
                         built=int(time.time()))  # fmt: skip
        index.write(folder, image.name, image_format, record)
        log.step(f"{image.name} is there: {record.reference or folder / f'{image.name}.sif'}")
        return record, True


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


@contextmanager
def _inputs(name: str, program: str, folder: Path, minutes: int) -> Iterator[ImageBuild]:
    """Hold the lock of an image; give what is common to builds and pulls, and a scratch folder."""

    def stop(number: int, frame: object) -> None:  # SIGTERM too removes temporary files
        raise SystemExit(128 + number)

    handler = signal.signal(signal.SIGTERM, stop)
    try:
        with index.locked(folder, f"{name}.build", f"Another build of {name}"):
            for leftover in folder.glob(f".{name}.*"):  # of a build that was killed
                if leftover.is_dir():
                    shutil.rmtree(leftover, ignore_errors=True)
                elif leftover.suffix != ".lock":
                    leftover.unlink()
            with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=folder) as scratch:
                Path(scratch, "context").mkdir()
                yield ImageBuild(program, name, folder / f"{name}.sif", True, minutes,
                                 Path(scratch), Path(scratch, "context"))  # fmt: skip
    finally:
        signal.signal(signal.SIGTERM, handler)


def epoch(arguments: Mapping[str, str]) -> int:
    """Return the date of built files, the date of Debian's snapshot, in Unix seconds.

    >>> epoch({"SNAPSHOT": "19700102T000000Z"})
    86400
    """
    try:
        day = datetime.datetime.strptime(arguments.get("SNAPSHOT", ""), DAY)
    except ValueError:
        day = datetime.datetime(2026, 8, 24)
    return int(day.replace(tzinfo=datetime.timezone.utc).timestamp())


# --- definitions


def containers() -> Path:
    """Return the folder of definitions."""
    beside = PACKAGE.parent / "containers"
    if (beside / INSTALL).is_file():
        return beside
    with suppress(metadata.PackageNotFoundError):
        for file in metadata.files(DISTRIBUTION) or []:
            if file.parts[-3:] == ("aam", "containers", INSTALL):
                return Path(str(file.locate())).resolve().parent
    remedy = "install it again, or run the launcher of a checkout"
    raise MissingInput("The definitions of images are not here", f"no '{beside}'", remedy)


def arguments(image: Image, pairs: Sequence[str] | None) -> dict[str, str]:
    """Return the build arguments of an image, with those `pairs` as NAME=VALUE."""
    values = dict(image.arguments)
    if not values:
        evidence = f"the catalog has no arguments for {image.name}"
        raise UsageError("This image cannot be built here", evidence, "ask who made its definition")
    changed: dict[str, str] = {}
    for argument in pairs or ():
        name, equals, value = argument.partition("=")
        if name not in values:
            remedy = nearest(name, tuple(values), f"known are {', '.join(values)}")
            raise UsageError("No such build argument", f"'{name}' of {image.name}", remedy)
        if not equals or not value or any(mark.isspace() for mark in value):
            raise UsageError("A build argument without its value", f"'{argument}'",
                             f"write --build-arg {name}=VALUE, without spaces")  # fmt: skip
        if name in changed:
            raise UsageError("A build argument twice", f"'{name}'", "give it once")
        changed[name] = value
    return {**values, **changed}


def require_locked(name: str, arguments: Mapping[str, str]) -> None:
    """Check that the base is named by its digest, and that the lock has the hash of PyTorch."""
    lock = containers() / "locks" / f"{name}.txt"
    if not lock.is_file():
        remedy = "choose one of `aam-launch images`"
        raise MissingInput("This image has no lock", f"'{lock}'", remedy)
    base, torch = arguments["BASE"], arguments["TORCH"]
    if "@sha256:" not in base:
        raise UsageError("A base without its digest", f"'{base}'", "name it as NAME@sha256:...")
    if f"torch=={torch}" not in lock.read_text().split():
        evidence = f"PyTorch {torch} has no hash in '{lock}'"
        remedy = "leave TORCH out, or add an image of this PyTorch to the catalog"
        raise UsageError(f"The lock of {name} has another PyTorch", evidence, remedy)


def stage(folder: Path) -> str:
    """Put together the folder to build from, and return one digest of all that is in it."""
    shutil.copytree(PACKAGE, folder / "aam", ignore=_NO_CACHES)
    shutil.copytree(containers(), folder / "containers", ignore=_NO_CACHES)
    (folder / "containers/revision").write_text(revision(PACKAGE.parent) + "\n")
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            total.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode())
            total.update(path.read_bytes())
    # All users may read an image, whatever the umask of the build.
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return total.hexdigest()


def revision(checkout: Path) -> str:
    """Return the commit that is built, marked if files were changed; "" if it is unknown."""
    if not (checkout / ".git").exists():
        with suppress(metadata.PackageNotFoundError, ValueError):
            text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
            return str(json.loads(text or "{}").get("vcs_info", {}).get("commit_id", ""))
        return ""
    git = ["git", "-C", str(checkout)]
    try:
        head = system.run([*git, "rev-parse", "HEAD"])
        changed = system.run([*git, "status", "--porcelain", "aam", "containers"])
    except OSError:
        return ""
    if head.returncode or changed.returncode:
        return ""
    return head.stdout.strip() + ("-changed" if changed.stdout.strip() else "")
