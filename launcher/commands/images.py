"""`aam-launch images`: list, build, pull and verify images."""

import contextlib
import datetime
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aam import __version__
from aam.contract.errors import (
    CannotCreate,
    MissingInput,
    Unavailable,
    UsageError,
    nearest,
    printable,
)
from aam.contract.options import basic_option
from launcher import config
from launcher.commands import HOST, parse_own, print_json, show
from launcher.engines import BUILDERS, spython_client
from launcher.engines.base import PYTHON, SMOKE
from launcher.engines.sif import SIF
from launcher.images import build, definitions, index
from launcher.images.build import TEST, ImagesBuild, InstalledBuilder, SeveralImages
from launcher.plan.catalog import Catalog, Image
from launcher.plan.decision import assess
from launcher.plan.environment import unset
from launcher.plan.inputs import NATIVE, Request
from launcher.planning import gather

ROW = "{:<15}  {:<4}  {}"
"""Image, whether it fits this host, stack."""
REPOSITORY = re.compile(r"[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+")
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
"""Grammar of references: github.com/distribution/reference; a host has no scheme, a path no tag."""
WRONG = 1
"""Exit status of `aam check` if an attention backend computes wrong results."""


@dataclass(frozen=True)
class Images:
    """List the images: versions, where they are, and whether they fit this host.

    Examples:
        aam-launch images
        aam-launch images --json --image-dir /project/aam/images
    """


@dataclass(frozen=True)
class ImagesPull(SeveralImages):
    """Pull images that a release has published, compare their digests, and record them.

    Without options an installed release pulls its own images, by the digests that it was built
    with. --registry, --tag and --digest name another image.

    Examples:
        aam-launch images pull rocm63
        aam-launch images pull cpu --registry ghcr.io/owner/aam
        aam-launch images pull rocm63 --registry ghcr.io/owner/aam --digest sha256:3f5d...
    """

    registry: str | None = basic_option(
        "Repository in a registry, where a release has its images as NAME-vVERSION; by default "
        "that of this release.",
        metavar="REPOSITORY",
    )
    tag: str | None = basic_option(
        "Tag of one image instead of that of this version.", metavar="TAG"
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


def run(launcher_options: Mapping[str, Any], argv: Sequence[str]) -> int:
    """Run one action on images; without an action, list them."""
    settings, catalog = config.configured(launcher_options)
    folder = Path(settings.image_dir.value)
    action = argv[0] if argv else "list"
    if action == "list":
        parse_own(Images, argv[1:], "images")
        _list(launcher_options, folder)
    elif action == "build":
        _build(_checked(parse_own(ImagesBuild, argv[1:], "images build")), catalog, folder)
    elif action == "pull":
        _pull(_checked(parse_own(ImagesPull, argv[1:], "images pull")), catalog, folder)
    elif action == "verify":
        options = _checked(parse_own(ImagesVerify, argv[1:], "images verify"))
        for image in [catalog.require(name) for name in options.names]:
            _verify(image, options.engine, folder, options.test)
    else:
        known = ("list", "build", "pull", "verify")
        remedy = nearest(action, known, f"known are {', '.join(known)}")
        raise UsageError("Unknown subcommand of `images`", f"'{action}'", remedy)
    return 0


def _checked(options: Any) -> Any:
    """Return the options of a command with --engine, which has to be one that builds."""
    if options.engine is not None and options.engine not in BUILDERS:
        remedy = nearest(options.engine, BUILDERS, f"known are {', '.join(BUILDERS)}")
        raise UsageError("No such engine", f"--engine {options.engine}", remedy)
    return options


def _list(launcher_options: Mapping[str, Any], folder: Path) -> None:
    root = launcher_options.get(HOST) or Path("/")
    inputs = gather(Request("check", {}, launcher_options), root)
    assessment, catalog = assess(inputs, requested=False), inputs.catalog
    built = index.built(inputs.settings, catalog)
    fitting = {image.name for image in assessment.fitting}
    recorded = index.read(folder)
    # Of a SIF that was removed by hand the record is left.
    stored = {
        name: {kind: facts for kind, facts in formats.items()
               if kind != SIF or (folder / f"{name}.sif").is_file()}
        for name, formats in recorded.items()
    }  # fmt: skip
    against = {image.name: assessment.against(image.name) for image in catalog.images}
    if "--json" in launcher_options:
        print_json([
            {
                "name": image.name,
                "title": image.title,
                "fits": image.name in fitting,
                "reason": reason.brief if (reason := against[image.name]) else "",
                "pins": dict(image.pins),
                "places": [place.place for place in built if place.image == image.name],
                "digests": [place.digest for place in built if place.image == image.name],
                "stored": [{"image_format": kind, **facts}
                           for kind, facts in stored.get(image.name, {}).items()],
            }
            for image in catalog.images
        ])  # fmt: skip
        return
    print(ROW.format("image", "fits", "stack"))
    for image in catalog.images:
        show(ROW.format(image.name, "yes" if image.name in fitting else "no", image.title))
        below = [index.shown(facts, kind) for kind, facts in stored.get(image.name, {}).items()]
        below += [place.place for place in built if place.image == image.name]
        reason = against[image.name]
        _print_below(*below, *([reason.brief] if reason else []))
    native, reason = inputs.native, assessment.against(NATIVE)
    if NATIVE in assessment.candidates:
        stack = "no image: the environment of aam-launch"
        show(ROW.format(NATIVE, "no" if reason else "yes", stack))
        _print_below(reason.brief if reason else f"PyTorch {native.torch}, {native.python}")
    for name in recorded.keys() - {image.name for image in catalog.images}:
        show(ROW.format(name, "no", "not in the catalog"))
        _print_below(*(index.shown(facts, kind) for kind, facts in stored[name].items()))


def _print_below(*texts: str) -> None:
    for text in texts:
        print(textwrap.fill(printable(text, 1000), 80, initial_indent=" " * 4,
                            subsequent_indent=" " * 6, break_long_words=False,
                            break_on_hyphens=False))  # fmt: skip


def _build(options: ImagesBuild, catalog: Catalog, folder: Path) -> None:
    chosen = [catalog.require(name) for name in options.names]
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
    found = build.find_builder(options.engine, SIF if options.from_ else None)
    # Every image is checked before the first is built.
    arguments: list[dict[str, str]] = [{} for _ in chosen]
    if not options.from_:
        arguments = [definitions.arguments(image, options.build_arg) for image in chosen]
        for image, given in zip(chosen, arguments, strict=True):
            definitions.require_locked(image.name, given)
    for image, given in zip(chosen, arguments, strict=True):
        made = build.build(image, found, folder, options, given)
        _print_made(image.name, made, folder)


def _pull(options: ImagesPull, catalog: Catalog, folder: Path) -> None:
    chosen = [catalog.require(name) for name in options.names]
    if (options.tag or options.digest) and len(chosen) != 1:
        evidence = f"{len(chosen)} images are named"
        raise UsageError("--tag and --digest are of one image", evidence, "pull them one by one")
    if options.digest and not re.fullmatch("sha256:[0-9a-f]{64}", options.digest):
        evidence, remedy = f"--digest {options.digest}", "give sha256: and 64 hexadecimal digits"
        raise UsageError("Not a digest", evidence, remedy)
    if options.registry is not None and not REPOSITORY.fullmatch(options.registry):
        evidence = f"--registry {options.registry!a}"
        remedy = "write it as ghcr.io/owner/aam, without https:// and without a tag"
        raise UsageError("Not a repository", evidence, remedy)
    if options.tag is not None and not TAG.fullmatch(options.tag):
        remedy = "give letters, digits, '.', '_' and '-' alone"
        raise UsageError("Not a tag", f"--tag {options.tag!a}", remedy)
    release = index.published()
    if options.registry is None and release is None:
        evidence = "this installation is not that of a release"
        remedy = "name a repository with --registry, or build the image: `aam-launch images build"
        raise UsageError("No registry to pull from", evidence, f"{remedy} {options.names[0]}`")
    found = build.find_builder(options.engine)
    for image in chosen:
        reference = _reference(image.name, found, options, release)
        plain = ImagesBuild(engine=options.engine, names=())
        made = build.build(image, found, folder, plain, {}, reference)
        _print_made(image.name, made, folder)


def _reference(
    name: str, found: InstalledBuilder, options: ImagesPull, release: index.Published | None
) -> str:
    """Return what to pull: the image of the options, or that of this release by its digest."""
    registry = options.registry or (release.registry if release else "")
    tag = f"{name}-v{__version__}"
    # Apptainer and podman take a digest only without a tag, and compare what they get with it.
    if options.digest:
        return f"{registry}@{options.digest}"
    if options.tag or options.registry or release is None:
        return f"{registry}:{options.tag or tag}"
    if name not in release.images:
        remedy = f"build it: `aam-launch images build {name}`"
        raise MissingInput("This release has no such image", name, remedy)
    if found.engine.traits.image_format == SIF:
        return f"oras://{registry}:{tag}-sif@{release.images[name].sif}"
    return f"{registry}@{release.images[name].oci}"


def _print_made(name: str, made: Mapping[str, Any], folder: Path) -> None:
    place = made.get("reference") or folder / f"{name}.sif"
    remark = "" if made["new"] else " (built of the same inputs before; --rebuild repeats it)"
    digest = f"sha256:{made['sha256']}" if "sha256" in made else made["digest"]
    show(f"{name:<10} {place}  {digest}{remark}")


def _verify(image: Image, engine: str | None, folder: Path, test: bool) -> None:
    """Verify every recorded form of an image, or that of one engine."""
    requested = BUILDERS[engine].traits.image_format if engine else None
    name, place = image.name, folder / f"{image.name}.sif"
    for image_format, recorded in index.of_image(folder, name, requested).items():
        if image_format == SIF and not test:  # a file, compared without a program
            build.suitable(SIF)[0].verify("", name, recorded, place)
        else:
            found = build.find_builder(engine, image_format)
            verified = found.engine.verify(found.program, name, recorded, place)
        print(f"ok      {name} ({image_format}) is what was recorded")
        # The versions that were measured in the image, compared with the catalog's pins.
        labels = recorded.get("labels", {})
        for key, pin in image.pins.items():
            measured = labels.get(f"org.aam.{key}")
            if measured is not None:
                verdict = "ok     " if agree(measured, pin) else "differs"
                show(f"{verdict} {key}: {measured} measured, {pin} in the catalog")
        if image_format == SIF and labels and spython_client.available():  # a second reader
            theirs = spython_client.labels(str(place))
            other = sorted(each for each in labels if labels[each] != theirs.get(each))
            verdict = f"differs spython reads other labels: {', '.join(other)}"
            show(verdict if other else f"ok      spython reads the same {len(labels)} labels")
        if not test:
            continue
        argv = found.engine.exec_argv(found.program, verified, [PYTHON, SMOKE])
        hidden = unset(os.environ, found.engine.traits)
        variables = {name: value for name, value in os.environ.items() if name not in hidden}
        sys.stdout.flush()
        own = subprocess.run(argv, check=False, env=variables).returncode
        # On the available device, as a job does. Python imports from the current folder with -m;
        # the root folder holds no modules.
        argv = [sys.executable, "-m", "launcher.cli", f"--image-dir={folder}", "--image", name,
                "--runtime", found.engine.name, "check", "--quick"]  # fmt: skip
        checked = own or subprocess.run(argv, check=False, cwd="/").returncode
        if own or checked not in (0, WRONG):
            evidence = (
                f"{'its own test' if own else 'aam check'} ended with status {own or checked}"
            )
            raise Unavailable("The image does not work here", evidence, "see its output above")
        if checked == WRONG:
            print("note    a backend computes wrong here; jobs are kept from it")
        day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        with contextlib.suppress(CannotCreate):  # the image folder of another user
            index.write(folder, name, image_format, {**recorded, "verified": day})


def agree(measured: str, pin: str) -> bool:
    """Return whether a version is that of a pin, as far as both go.

    What follows the numbers (+rocm6.2, -fa1d09cbd, b) does not matter.

    >>> agree("6.3.42131-fa1d09cbd", "6.3.42131"), agree("6.3.0", "6.3"), agree("6.4.1", "6.3")
    (True, True, False)
    """
    ours, theirs = (re.findall(r"\d+", re.split(r"[-+]", v)[0]) for v in (measured, pin))
    return all(a == b for a, b in zip(ours, theirs, strict=False))
