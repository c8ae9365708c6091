"""Build an image into the image folder, and write down what was built.

One build of an image at a time, under a lock; written aside and renamed when its own test has
passed. What is built already of the same inputs is not built again.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aam.options.frozen import dataclass
from launcher.errors import CannotCreate, MissingInput, Unavailable
from launcher.images import builder as engines
from launcher.images import definitions, record, room
from launcher.images.builder import Builder
from launcher.images.sif import check_sif, labels_of
from launcher.images.steps import Log, stoppable
from launcher.plan.catalog import Image

REPOSITORY = "localhost/aam"
DAY = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True)
class Job:
    """What to build.

    Attributes:
        image: which, of the catalog.
        builder: with what.
        folder: the image folder.
        arguments: all build arguments.
        wheels: folder of wheels to install from instead of an index.
        source: an archive, or "podman" or "docker", to make a SIF of instead of a definition.
        fast: less compression, sooner done.
        test: run the image's own test.
        force: build even if it is there.
    """

    image: Image
    builder: Builder
    folder: Path
    arguments: Mapping[str, str]
    wheels: Path | None = None
    source: str | None = None
    fast: bool = False
    test: bool = True
    force: bool = False


def build(job: Job) -> Mapping[str, Any]:
    """Build, and return the entry of images.json.

    Raises:
        LaunchError: whatever stands in the way; nothing is left behind but the log.
    """
    name = job.image.name
    wait = f"Another build of {name} is under way in '{job.folder}'; waiting for it."
    with stoppable(), record.locked(job.folder, f"{name}.build", wait):
        _clear(job.folder, name)
        with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=job.folder) as scratch:
            if job.source:
                return _converted(job, Path(scratch))
            return _built(job, Path(scratch))


def _clear(folder: Path, name: str) -> None:
    """Remove what a build that was killed has left: nobody else holds the lock."""
    for left in folder.glob(f".{name}.*"):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        elif left.suffix != ".lock":
            left.unlink()


def _built(job: Job, scratch: Path) -> Mapping[str, Any]:
    name, kind = job.image.name, job.builder.kind
    sources = definitions.sources()
    lock = definitions.lock_of(sources, job.folder, name)
    if not lock.is_file():
        evidence = f"'{lock}'"
        raise MissingInput("This image has no lock", evidence, "choose one of `aam-launch images`")
    missing = definitions.unresolved(lock.read_text(), job.arguments)
    if missing:
        remedy = f"run `aam-launch images lock {name}` on a machine with a network"
        raise Unavailable("Pins without a digest", ", ".join(missing), remedy)
    context = scratch / "context"
    inputs = _inputs(definitions.stage(sources, name, lock, context), job)
    held = record.entry(record.read(job.folder), name, kind)
    if not job.force and held.get("inputs") == inputs and _there(job, held):
        return {**held, "new": False}
    room.require(room.needs(job.builder.engine, job.builder.program, job.image.room, job.folder,
                            os.environ))  # fmt: skip
    log = Log(job.folder / "logs" / f"{name}-{job.builder.engine}.log")
    log.say(f"{name} with {job.builder.engine} {job.builder.version}; log {log.path}")
    make = _sif if kind == "sif" else _oci
    return _recorded(job, {**make(job, context, scratch, log), "inputs": inputs}, log)


def _converted(job: Job, scratch: Path) -> Mapping[str, Any]:
    """Make a SIF of an archive, or of what podman or docker hold, without a registry."""
    name, source = job.image.name, str(job.source)
    log = Log(job.folder / "logs" / f"{name}-{job.builder.engine}.log")
    facts: dict[str, Any] = {"from": source}
    if source in room.STORAGE:
        held = record.entry(record.read(job.folder), name, source)
        if not held:
            remedy = f"`aam-launch images build {name} --engine {source}` first"
            raise MissingInput(f"{source} has no image {name}", f"not in '{job.folder}'", remedy)
        archive = scratch / "image.tar"
        log.say(f"save {held['reference']} from {source}")
        words = ["--format", "docker-archive"] if source == "podman" else []
        log.run([source, "save", *words, "--output", str(archive), str(held["id"])], scratch)
        facts = {"from": source, "digest": held.get("digest")}
    elif not Path(source).is_file():
        raise MissingInput("No such archive", f"'{source}'", "write a file, podman or docker")
    else:
        archive = Path(source).resolve()
    if archive.suffix == ".sif":
        check_sif(str(archive))
        target = job.folder / f".{name}.sif.{os.getpid()}"
        shutil.copy(archive, target)
        return _recorded(job, {**facts, **_finish_sif(job, target, log)}, log)
    return _recorded(job, {**facts, **_sif(job, scratch, scratch, log, archive)}, log)


def _sif(
    job: Job, context: Path, scratch: Path, log: Log, archive: Path | None = None
) -> dict[str, Any]:
    """Build a SIF aside, test it and put it in its place."""
    name = job.image.name
    target = job.folder / f".{name}.sif.{os.getpid()}"
    source = f"docker-archive:{archive}" if archive else f"containers/{name}.def"
    arguments = {} if archive else job.arguments
    words = engines.sif(job.builder, source, target, arguments, job.fast, job.wheels)
    # The test of the definition is that of the image; it is run once, when the SIF is whole.
    words.insert(2, "--notest")
    try:
        log.run(words, context, {"SOURCE_DATE_EPOCH": str(epoch(job.arguments))})
        return _finish_sif(job, target, log)
    finally:
        target.unlink(missing_ok=True)


def _finish_sif(job: Job, target: Path, log: Log) -> dict[str, Any]:
    check_sif(str(target))
    smoke(job, str(target), log)
    target.chmod(0o755)
    place = job.folder / f"{job.image.name}.sif"
    facts = {"sha256": sha256(target), "bytes": target.stat().st_size}
    facts["labels"] = own_labels(labels_of(target))
    os.replace(target, place)
    return facts


def _oci(job: Job, context: Path, scratch: Path, log: Log) -> dict[str, Any]:
    """Build an image in the storage of podman or docker: first without labels, then with them."""
    name, program = job.image.name, job.builder.program
    if job.wheels and job.builder.engine == "docker":
        raise Unavailable("docker mounts no folder while it builds", f"--wheels {job.wheels}",
                          "use --engine podman or apptainer")  # fmt: skip
    bare, aside = f"{REPOSITORY}:{name}-bare", f"{REPOSITORY}:{name}-new"
    date = epoch(job.arguments)
    try:
        log.run(engines.oci(job.builder, context, name, bare, job.arguments, date, job.wheels),
                context)  # fmt: skip
        labels = json.loads(_said(engines.inside(job.builder, bare, ["cat", engines.LABELS])))
        recipe = scratch / "labels" / "Dockerfile"
        recipe.parent.mkdir()
        recipe.write_text(f"FROM {bare}\n")
        log.run(engines.labelled(job.builder, labels, recipe, aside, date), recipe.parent)
        smoke(job, aside, log)
        reference = f"{REPOSITORY}:{name}"
        log.run([program, "tag", aside, reference], scratch)
    finally:
        for tag in (aside, bare):
            subprocess.run([program, "rmi", tag], capture_output=True, check=False)
    facts = inspected(program, reference)
    return {"reference": reference, **facts, "labels": labels}


def smoke(job: Job, image: str, log: Log) -> None:
    """Run the image's own test."""
    if not job.test:
        return
    log.say("test")
    log.run(engines.inside(job.builder, image, [engines.PYTHON, engines.SMOKE]), job.folder)


def _recorded(job: Job, facts: Mapping[str, Any], log: Log) -> Mapping[str, Any]:
    name, kind = job.image.name, job.builder.kind
    arguments = {} if job.source else dict(job.arguments)
    entry = {**facts, "engine": f"{job.builder.engine} {job.builder.version}"}
    record.write(job.folder, name, kind, {**entry, "arguments": arguments})
    log.say(f"{name} is built: {facts.get('reference') or job.folder / f'{name}.sif'}")
    return {**entry, "new": True}


def _inputs(context: str, job: Job) -> str:
    words = [
        context,
        job.builder.kind,
        str(job.fast),
        json.dumps(dict(job.arguments), sort_keys=True),
    ]
    return hashlib.sha256("\0".join(words).encode()).hexdigest()


def _there(job: Job, held: Mapping[str, Any]) -> bool:
    """Tell whether what was recorded is still there."""
    if job.builder.kind == "sif":
        place = job.folder / f"{job.image.name}.sif"
        return place.is_file() and place.stat().st_size == held.get("bytes")
    return bool(held.get("id")) and inspected(job.builder.program, str(held["id"])) != {}


def inspected(program: str, image: str) -> dict[str, str]:
    """Return the id and the digest of an image of podman or docker; nothing if they have none."""
    done = subprocess.run([program, "image", "inspect", image], capture_output=True, text=True,
                          check=False)  # fmt: skip
    if done.returncode:
        return {}
    said = json.loads(done.stdout)[0]
    ident = "sha256:" + str(said["Id"]).removeprefix("sha256:")
    return {"id": ident, "digest": str(said.get("Digest") or ident)}


def epoch(arguments: Mapping[str, str]) -> int:
    """Return the date of everything that is made: the day of Debian's packages, in seconds.

    >>> epoch({"SNAPSHOT": "19700102T000000Z"})
    86400
    """
    try:
        day = datetime.datetime.strptime(arguments.get("SNAPSHOT", ""), DAY)
    except ValueError:
        day = datetime.datetime(2026, 8, 24)
    return int(day.replace(tzinfo=datetime.timezone.utc).timestamp())


def own_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that this project gives, without those of the engine."""
    return {key: value for key, value in labels.items()
            if key.startswith(("org.aam.", "org.opencontainers."))}  # fmt: skip


def sha256(path: Path) -> str:
    """Return the digest of a file."""
    total = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 22):
            total.update(block)
    return total.hexdigest()


def _said(words: list[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotCreate("The image says nothing of itself", done.stderr.strip()[-300:],
                           "build it again")  # fmt: skip
    return done.stdout
