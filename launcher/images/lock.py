"""Locks of images: resolve pins without a digest, and record copied images.

In a checkout `images lock` writes the outcome where the pin stands: the lock, the definitions, the
catalog. A plain install cannot be written, and `images build` changes no checkout; there the lock
goes to `locks/` of the image folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from aam.contract.errors import MissingInput, Unavailable
from aam.contract.files import atomic_write
from launcher.engines.sif import difference, record_of
from launcher.engines.sif_file import check_sif
from launcher.images import definitions, index, registry
from launcher.images.definitions import MARK, BuildSources
from launcher.plan.catalog import Image

PLATFORMS = ("manylinux_2_28_x86_64", "linux_x86_64")


def lock(images: Sequence[Image], folder: Path) -> None:
    """Lock images and print what was written.

    Raises:
        Unavailable: a registry or an index cannot be reached.
    """
    for image in images:
        record_copy(image.name, folder)
        if image.arguments:
            sources = definitions.sources()
            _wheels(image, sources, folder)
            _base(image, sources)


def record_copy(name: str, folder: Path) -> None:
    """Record a SIF that was copied into the image folder, or copied with its record.

    Raises:
        MissingInput: the SIF is another one than was recorded.
    """
    place = folder / f"{name}.sif"
    recorded = index.entry(index.read(folder), name, "sif")
    if not place.is_file() or (recorded and difference(place, recorded) is None):
        return
    check_sif(str(place))
    facts = record_of(place)
    if recorded and recorded.get("sha256") != facts["sha256"]:
        before = recorded["sha256"]
        evidence = f"'{place}' is sha256:{facts['sha256']}, recorded was sha256:{before}"
        remedy = f"build it with --rebuild, or `aam-launch images rm {name}` and copy it again"
        raise MissingInput("The image is another one than was recorded", evidence, remedy)
    index.write(folder, name, "sif", {**(recorded or {"from": "a copy"}), **facts})
    print(f"{name:<10} recorded {place} as sha256:{facts['sha256']}")


def _wheels(image: Image, sources: BuildSources, folder: Path) -> None:
    """Write the hashes of PyTorch's builds from its index."""
    path = definitions.lock_of(sources, folder, image.name)
    text = path.read_text()
    if MARK not in text:
        print(f"{image.name:<10} every package has a hash: {path}")
        return
    if sources.checkout is None:
        path = definitions.own_lock(folder, image.name)
    write_lock(path, resolved(image, text))
    print(f"{image.name:<10} written: {path}")


def lock_path(image: Image, folder: Path) -> Path:
    """Return the lock of an image; `folder` is the image folder, which may have a completed one.

    Raises:
        MissingInput: there is none.
    """
    lock = definitions.lock_of(definitions.sources(), folder, image.name)
    if not lock.is_file():
        remedy = "choose one of `aam-launch images`"
        raise MissingInput("This image has no lock", f"'{lock}'", remedy)
    return lock


def complete_lock(
    image: Image, arguments: Mapping[str, str], folder: Path, allow_one_source: bool = False
) -> Path:
    """Return a lock with a hash of every pin, which the index provides where the lock has none.

    Args:
        arguments: build arguments.
        folder: the image folder, to which a completed lock is written.
        allow_one_source: take a hash that a single source has without a comparison with the index.

    Raises:
        MissingInput: there is none.
        Unavailable: a hash is unknown, because the index does not provide it; or it has one source,
            and the index has another hash or does not answer.
    """
    lock = lock_path(image, folder)
    text = lock.read_text()
    missing = definitions.unresolved(text, arguments)
    if missing:
        try:
            text = resolved(image, text)
        except Unavailable as error:
            open_pins, reason = ", ".join(missing), f"{error.cause}: {error.evidence}"
            raise Unavailable(
                f"Image {image.name} cannot be built",
                f"no SHA-256 of {open_pins} is known, and its index does not provide one "
                f"({reason})",
                "build it where the index answers, or choose another of `aam-launch images`",
            ) from error
        if still := definitions.unresolved(text, arguments):
            raise Unavailable(f"Image {image.name} cannot be built",
                              f"{', '.join(still)} is not pinned by its digest",
                              "name it as NAME@sha256:...")  # fmt: skip
    if not allow_one_source:
        for pin, value in definitions.one_source(text, arguments).items():
            _require_confirmed(image, pin, value)
    if not missing:
        return lock
    place = definitions.own_lock(folder, image.name)
    write_lock(place, text)
    return place


def _require_confirmed(image: Image, pin: str, value: str) -> None:
    """Compare a hash that has one source with those that the index has of the project.

    Raises:
        Unavailable: the index has it not, or does not answer.
    """
    index, project = image.arguments["TORCH_INDEX"], pin.partition("==")[0]
    remedy = "build it where the index answers, or add --allow-one-source"
    try:
        known = registry.wheel_hashes(index, project)
    except Unavailable as error:
        reason = f"its index does not answer ({error.evidence})"
    else:
        if value in known.values():
            return
        reason = f"{index} has no wheel of {project} with it"
        remedy = "choose another of `aam-launch images`, and report the wrong hash"
    evidence = f"the SHA-256 of {pin} has one source, and {reason}"
    raise Unavailable(f"Image {image.name} cannot be built", evidence, remedy)


def write_lock(path: Path, text: str) -> None:
    """Write a lock atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        temporary.write_text(text)


def resolved(image: Image, lock: str) -> str:
    """Return a lock with the hash that the index has of each pin without one.

    Raises:
        Unavailable: the index does not answer, or has no such wheel.
    """
    index, python = image.arguments["TORCH_INDEX"], image.pins["python"].replace(".", "")
    lines = lock.splitlines()
    for place, line in enumerate(lines):
        if line.endswith(MARK):
            name, _, version = line.split()[0].partition("==")
            value = _hash(index, name, version, python)
            lines[place] = f"# sha256: {index}\n{name}=={version} \\\n    --hash=sha256:{value}"
    return "\n".join(lines) + "\n"


def _hash(index: str, name: str, version: str, python: str) -> str:
    known = registry.wheel_hashes(index, name)
    for platform in PLATFORMS:
        wheel = f"{name.replace('-', '_')}-{version}-cp{python}-cp{python}-{platform}.whl"
        if wheel in known:
            return known[wheel]
    evidence = f"no {name} {version} for Python {python[0]}.{python[1:]} with a hash in {index}"
    raise Unavailable("The index has no such wheel", evidence, "choose a version that it has")


def _base(image: Image, sources: BuildSources) -> None:
    """Resolve the base's digest, or compare the pinned digest with the tag's current one."""
    base = image.arguments["BASE"]
    tag, _, pinned = base.partition("@")
    if pinned:
        print(f"{image.name:<10} {base} {_compare_with_tag(tag, pinned)}")
        return
    now = registry.digest(tag)
    if sources.checkout is None:
        remedy = f"build with --build-arg BASE={tag}@{now}"
        raise Unavailable("An installed catalog cannot be written", base, remedy)
    places = [sources.containers / f"{image.name}.def",
              sources.containers / f"{image.name}.Dockerfile",
              sources.checkout / "launcher/catalog.yaml"]  # fmt: skip
    for path in places:
        text = path.read_text()
        found = f"{tag}@{now}"  # the catalog keeps the tag, to compare it with the digest later
        found = found if path.suffix == ".yaml" else definitions.by_digest(found)
        with atomic_write(path) as temporary:
            temporary.write_text(re.sub(f'{re.escape(base)}(?=["\n])', found, text))
        print(f"{image.name:<10} {found}: {path}")


def _compare_with_tag(tag: str, pinned: str) -> str:
    """Compare a pinned digest with the current one of its tag; a registry moves tags."""
    try:
        now = registry.digest(tag)
    except Unavailable as error:
        return f"is pinned; not compared with its tag: {error.evidence}"
    return "is what its tag is" if pinned == now else f"is pinned; its tag is now {now}"
