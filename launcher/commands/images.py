"""`aam-launch images`: list, build, pull and verify images."""

import contextlib
import datetime
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from aam.contract.dataclass import dataclass
from aam.contract.errors import CannotCreate, MissingInput, Unavailable, UsageError, nearest
from aam.contract.options import basic_option
from aam.contract.version import __version__
from launcher import config, system
from launcher.commands import HOST, parse_own, print_json, show
from launcher.engines import BUILDERS, run_plan, spython_client
from launcher.engines.engine import ImageBuild, ImageRecord, ImageReference
from launcher.engines.sif import SIF
from launcher.images import build, index
from launcher.images.build import TEST, ImagesBuild, SeveralImages
from launcher.launch import gather, plan_launch
from launcher.plan.catalog import Image
from launcher.plan.decision import against, assess, fitting
from launcher.plan.inputs import NATIVE, Request
from launcher.system import which

ROW = "{:<15}  {:<4}  {}"  # image, whether it fits this host, stack
BELOW = " " * 4  # before the lines about an image
DAY = 86400
WRONG = 1  # exit status of `aam check` if an attention backend computes wrong results


@dataclass(frozen=True)
class Images:
    """List the images: versions, files, and whether they fit this host.

    Examples:
        aam-launch images
        aam-launch images --json --image-dir /project/aam/images
    """


@dataclass(frozen=True)
class ImagesPull(SeveralImages):
    """Pull images that a release has published, compare their digests, and record them.

    Without options an installed release pulls its own images, by the digests that it was built
    with. --registry and --digest name another image.

    Examples:
        aam-launch images pull rocm63
        aam-launch images pull cpu --registry ghcr.io/owner/aam
        aam-launch images pull rocm63 --registry ghcr.io/owner/aam --digest sha256:3f5d...
    """

    registry: str | None = basic_option(
        "Repository in a registry with the images of a release, tagged NAME-vVERSION; by default "
        "the repository of this release.",
        metavar="REPOSITORY",
    )
    digest: str | None = basic_option("Digest that one image must have.", metavar="sha256:HEX")


@dataclass(frozen=True)
class ImagesVerify(SeveralImages):
    """Compare images with their record, run their own test, and `aam check` on this device.

    Examples:
        aam-launch images verify rocm63
        aam-launch images verify cpu --no-test
    """

    test: bool = TEST


ACTIONS: dict[str, type] = {"list": Images, "build": ImagesBuild, "pull": ImagesPull,
                            "verify": ImagesVerify}  # fmt: skip


def run(launcher_options: Mapping[str, Any], argv: Sequence[str]) -> int:
    """Run one action on images; without an action, list them."""
    settings, catalog = config.configured(launcher_options)
    folder = Path(settings.image_dir.value)
    action = argv[0] if argv else "list"
    if action not in ACTIONS:
        remedy = nearest(action, ACTIONS, f"known are {', '.join(ACTIONS)}")
        raise UsageError("Unknown subcommand of `images`", f"'{action}'", remedy)
    name = "images" if action == "list" else f"images {action}"
    options: object = parse_own(ACTIONS[action], argv[1:], name)
    if not isinstance(options, SeveralImages):
        _list(launcher_options, folder)
        return 0
    if options.engine is not None and options.engine not in BUILDERS:
        remedy = nearest(options.engine, BUILDERS, f"known are {', '.join(BUILDERS)}")
        raise UsageError("No such engine", f"--engine {options.engine}", remedy)
    chosen = [catalog.require(name) for name in options.names]
    if isinstance(options, ImagesBuild):
        _build(options, chosen, folder)
    elif isinstance(options, ImagesPull):
        _pull(options, chosen, folder)
    elif isinstance(options, ImagesVerify):
        for image in chosen:
            _verify(image, options, folder)
    return 0


def _list(launcher_options: Mapping[str, Any], folder: Path) -> None:
    root = launcher_options.get(HOST) or Path("/")
    inputs = gather(Request("check", {}, launcher_options), root)
    (_, candidates), catalog = assess(inputs), inputs.catalog
    # The first is what a launch takes, if it is built.
    fits = fitting(candidates)
    images = [catalog.require(name) for name in fits]
    images += [image for image in catalog.images if image.name not in fits]
    reasons = {name: against(candidates, name) for name in candidates}
    forms = index.built(inputs.settings, catalog)
    places = {image.name: [f for f in forms if f.image == image.name] for image in images}
    # Of a SIF that was removed by hand the record is left.
    stored = {
        name: {kind: record for kind, record in formats.items()
               if kind != SIF or (folder / f"{name}.sif").is_file()}
        for name, formats in index.read(folder).items()
    }  # fmt: skip
    if "--json" in launcher_options:
        print_json([
            {
                "name": image.name,
                "title": image.title,
                "fits": image.name in fits,
                "reason": reasons.get(image.name, ""),
                "pins": dict(image.pins),
                "places": [form.place for form in places[image.name]],
                "digests": [form.digest for form in places[image.name]],
                "stored": [{"image_format": kind, **msgspec.to_builtins(record)}
                           for kind, record in stored.get(image.name, {}).items()],
            }
            for image in images
        ])  # fmt: skip
        return
    lines = [ROW.format("image", "fits", "stack")]
    for image in images:
        verdict = "yes" if image.name in fits else "no"
        lines.append(ROW.format(image.name, verdict, image.title))
        lines += [_shown(kind, record) for kind, record in stored.get(image.name, {}).items()]
        lines += [BELOW + form.place for form in places[image.name]]
        lines += [BELOW + reason] if (reason := reasons.get(image.name)) else []
    if NATIVE in candidates:
        native, reason = inputs.native, reasons[NATIVE]
        stack = "no image: the environment of aam-launch"
        lines.append(ROW.format(NATIVE, "no" if reason else "yes", stack))
        lines.append(BELOW + (reason or f"PyTorch {native.torch}, {native.python}"))
    for name in stored.keys() - places.keys():
        lines.append(ROW.format(name, "no", "not in the catalog"))
        lines += [_shown(kind, record) for kind, record in stored[name].items()]
    show(*lines)


def _shown(image_format: str, record: ImageRecord) -> str:
    """Return format, size, age and verification of an image, as far as they are known."""
    lines = [BELOW + image_format]
    if record.bytes is not None:
        lines.append(f"{record.bytes / (1 << 30):.1f} GiB")
    # A SIF that was copied has its modification time alone.
    if built := record.built or (record.mtime_ns or 0) / 1e9:
        lines.append(f"{max(0, int(time.time() - built) // DAY)} days old")
    return ", ".join([*lines, *([f"verified {record.verified}"] if record.verified else [])])


def _build(options: ImagesBuild, chosen: Sequence[Image], folder: Path) -> None:
    if options.wheels and not any(options.wheels.glob("*.whl")):
        remedy = "fill it: pip download --no-deps --require-hashes -r containers/locks/NAME.txt"
        raise MissingInput("No wheels to install from", f"'{options.wheels}'", remedy)
    options = replace(options, wheels=options.wheels and options.wheels.absolute(),
                      from_=options.from_ and options.from_.absolute())  # fmt: skip
    is_sif = options.engine is None or BUILDERS[options.engine].traits.image_format == SIF
    if options.from_ and (options.build_arg or options.wheels or not is_sif or len(chosen) != 1):
        evidence = "--from takes one SIF, or makes one"
        remedy = "name one image; leave --build-arg, --wheels and other engines out"
        raise UsageError("Options that exclude each other", evidence, remedy)
    if options.sha256 and not options.from_:
        raise UsageError("--sha256 without --from", options.sha256, "name the file with --from")
    builder = build.find_builder(options.engine, SIF if options.from_ else None)
    # Every image is checked before the first is built.
    arguments: list[dict[str, str]] = [{} for _ in chosen]
    if not options.from_:
        arguments = [build.arguments(image, options.build_arg) for image in chosen]
        for image, build_arguments in zip(chosen, arguments, strict=True):
            build.require_locked(image.name, build_arguments)
    for image, build_arguments in zip(chosen, arguments, strict=True):
        record, new = build.make(image, builder, folder, options, build_arguments)
        remark = "" if new else " (built of the same inputs before; --rebuild repeats it)"
        _print_made(image.name, record, folder, remark)


def _pull(options: ImagesPull, chosen: Sequence[Image], folder: Path) -> None:
    if options.digest and len(chosen) != 1:
        evidence = f"{len(chosen)} images are named"
        raise UsageError("--digest belongs to one image", evidence, "pull them one by one")
    release = index.published()
    if options.registry is None and release is None:
        evidence = "this installation is not a release"
        remedy = "name a repository with --registry, or build the image: `aam-launch images build"
        raise UsageError("No registry to pull from", evidence, f"{remedy} {options.names[0]}`")
    registry = options.registry or (release.registry if release else "")
    endings = [f":{image.name}-v{__version__}" for image in chosen]
    endings = [f"@{options.digest}"] if options.digest else endings
    references = [ImageReference.parse(registry + ending) for ending in endings]
    engine, fact = build.find_builder(options.engine)
    is_sif = engine.traits.image_format == SIF
    for image, reference in zip(chosen, references, strict=True):
        if not (options.registry or options.digest):
            # The image of this release, in the form that an engine runs.
            digests = release.images.get(image.name) if release else None
            if digests is None or (is_sif and not digests.get("sif")):
                remedy = f"build it: `aam-launch images build {image.name}`"
                raise MissingInput("This release has no such image", image.name, remedy)
            tag = f"{image.name}-v{__version__}-sif"
            reference = ImageReference(registry, digest=digests["oci"])
            if is_sif:
                reference = ImageReference(registry, tag, digests["sif"], True)
        record, _ = build.make(image, (engine, fact), folder, options, {}, reference)
        _print_made(image.name, record, folder)


def _print_made(name: str, record: ImageRecord, folder: Path, remark: str = "") -> None:
    image_file = record.reference or folder / f"{name}.sif"
    show(f"{name:<10} {image_file}  {record.known_digest}{remark}")


def _verify(image: Image, options: ImagesVerify, folder: Path) -> None:
    """Verify every recorded form of an image, or its form for one engine."""
    name, sif = image.name, folder / f"{image.name}.sif"
    requested = BUILDERS[options.engine].traits.image_format if options.engine else None
    formats = index.read(folder).get(name, {})
    formats = {kind: formats[kind] for kind in formats if requested in (None, kind)}
    if not formats:
        remedy = f"`aam-launch images build {name}`, with --from FILE for one that was copied"
        raise MissingInput("No such image is recorded", f"{name} in '{folder}'", remedy)
    for kind, record in formats.items():
        engine, program = build.suitable(kind)[0], ""
        if kind != SIF or options.test:  # a file is compared without a program
            engine, fact = build.find_builder(options.engine, kind)
            program = fact.path
        engine.verify(ImageBuild(program, name, sif, options.test, options.minutes), record)
        show(f"ok      {name} ({kind}) is what was recorded")
        if stated := _provenance(record, kind, sif):
            show(stated)
        # The versions that were measured in the image, compared with the catalog's pins.
        for key, pin in image.pins.items():
            measured = record.labels.get(f"org.aam.{key}")
            if measured is not None:
                verdict = "ok     " if agree(measured, pin) else "differs"
                show(f"{verdict} {key}: {measured} measured, {pin} in the catalog")
        if kind == SIF and record.labels and spython_client.available():  # a second reader
            theirs = spython_client.labels(str(sif))
            wrong = [k for k, label in sorted(record.labels.items()) if label != theirs.get(k)]
            agrees = f"ok      spython reads the same {len(record.labels)} labels"
            show(f"differs spython reads different labels: {', '.join(wrong)}" if wrong else agrees)
        if options.test:
            _check(name, engine.name, folder, options.minutes)
            day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
            with contextlib.suppress(CannotCreate):  # the image folder of another user
                index.write(folder, name, kind, msgspec.structs.replace(record, verified=day))


def _provenance(record: ImageRecord, kind: str, sif: Path) -> str:
    """Return whether the workflow of the release attests an image; "" for one of no release."""
    release = index.published()
    forms = release.images.values() if release else ()
    digests_of_release = {digest for digests in forms for digest in digests.values()}
    if release is None or not release.source or record.known_digest not in digests_of_release:
        return ""
    repository = urlsplit(release.source).path.strip("/")
    subject = str(sif) if kind == SIF else f"oci://{release.registry}@{record.known_digest}"
    program = which("gh", os.environ.get("PATH", ""))
    if program is None:
        return f"note    the provenance is not checked, gh is not on PATH: {release.source}"
    done = system.run([program, "attestation", "verify", subject, "--repo", repository])
    if done.returncode:
        evidence = f"'{subject}': {done.stderr.strip()[-200:]}"
        remedy = "pull it again; if it is refused again, tell the publisher"
        raise Unavailable("No provenance of the image", evidence, remedy)
    return f"ok      {repository} attests that its workflow built it"


def _check(name: str, engine: str, folder: Path, minutes: int) -> None:
    """Run `aam check` in an image on the available device, as a job does."""
    flags = {"--image-dir": str(folder), "--image": name, "--runtime": engine}
    _, plan = plan_launch(gather(Request("check", {"--quick": True}, flags)), starting=True)
    status = run_plan(plan, minutes * 60)
    if status not in (0, WRONG):
        evidence = f"`aam check` ended with status {status}"
        raise Unavailable("The image does not work here", evidence, "see its output above")
    if status == WRONG:
        show("note    a backend computes wrong here; jobs are kept from it")


def agree(measured: str, pin: str) -> bool:
    """Return whether a version equals a pin, as far as both go, without what follows numbers.

    >>> agree("6.3.42131-fa1d09cbd", "6.3.42131"), agree("6.3.0", "6.3"), agree("6.4.1", "6.3")
    (True, True, False)
    """
    ours, theirs = (re.findall(r"\d+", re.split(r"[-+]", v)[0]) for v in (measured, pin))
    return all(a == b for a, b in zip(ours, theirs, strict=False))
