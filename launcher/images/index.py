"""Built images, and images.json, the record of the images in an image folder.

    {"rocm63": {"sif": {"sha256": "...", "bytes": 1234, "mtime_ns": ..., "labels": {...}, ...},
                "podman": {"reference": "localhost/aam:rocm63", "digest": "sha256:...", ...}}}

It is written atomically, under a lock of its own, with the access of the folder, whatever the
umask is. Labels were measured in an image when it was built, and take precedence over the catalog.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from aam.contract.errors import CannotCreate, ConfigurationError, DataError, MissingInput
from aam.contract.files import atomic_write, try_lock
from aam.contract.records import Sourced, decode_json, read_json
from launcher import system
from launcher.engines import containers
from launcher.engines.engine import ImageRecord
from launcher.engines.sif import SIF, difference, sif_id
from launcher.gpus import VENDORS
from launcher.plan.catalog import Catalog, StoredName
from launcher.plan.inputs import BuiltImage
from launcher.plan.settings import LaunchSettings

LIST = "images.json"
PUBLISHED = Path(__file__).with_name("published.json")
LARGEST = 64 << 20
ARCH_PREFIXES = tuple(vendor.arch_prefix for vendor in VENDORS.values() if vendor.arch_prefix)
Entries = dict[str, dict[str, ImageRecord]]
"""Image -> format of `EngineTraits.image_format` -> record."""


class Published(msgspec.Struct, frozen=True):
    """Images of a release; `.ci/release` writes published.json before it builds the wheel."""

    registry: str
    # digests in the registry, by image: "oci" of its manifest, "sif" of the file of its SIF
    images: dict[str, dict[str, str]]
    source: str = ""  # address of the repository of the code, whose workflow attests the images


def published() -> Published | None:
    """Return the images of the release that is installed; None for any other installation."""
    noun, remedy = "list of published images", "install the release again"
    return read_json(PUBLISHED, Published, noun, remedy) if PUBLISHED.exists() else None


def read(folder: Path) -> Entries:
    """Return the content of a folder's images.json; empty if there is none."""
    path = folder / LIST
    try:
        content = system.regular(path, LARGEST)
        return decode_json(content, Entries, "list of images", f"'{path}'")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, DataError) as error:
        remedy = "remove it, then `aam-launch images build NAME --from FILE`"
        evidence = error.evidence if isinstance(error, DataError) else f"'{path}', {error}"
        raise ConfigurationError("A damaged list of images", evidence, remedy) from error


def write(folder: Path, image: str, image_format: str, record: ImageRecord) -> None:
    """Set the record of an image in a format."""
    with locked(folder, LIST):
        entries = read(folder)
        entries[image] = {**entries.get(image, {}), image_format: record}
        content = msgspec.json.encode(dict(sorted(entries.items())))
        with atomic_write(folder / LIST) as temporary:
            temporary.write_bytes(msgspec.json.format(content, indent=1) + b"\n")


@contextlib.contextmanager
def locked(folder: Path, name: str, what: str = "") -> Iterator[None]:
    """Hold the lock `.NAME.lock` of a folder; `what` is under way, for the message of a wait."""
    previous = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        previous = os.umask(0o077 & ~folder.stat().st_mode)
        stream = (folder / f".{name}.lock").open("a+")
    except OSError as error:
        if previous is not None:
            os.umask(previous)
        evidence = f"'{folder}', {error.strerror}"
        remedy = "set AAM_IMAGE_DIR to a folder of yours, or let its owner run `chmod g+ws` on it"
        raise CannotCreate("The image folder cannot be written", evidence, remedy) from error
    try:
        with stream:
            state, message = try_lock(stream), ""
            if state == "taken" and what:
                stream.seek(0)
                holder = stream.read() or "an unknown process"
                message = f"{what} in '{folder}' is under way ({holder}); waiting for it."
            elif state == "unsupported":
                message = f"warning: '{folder}' has no file locks: start one build at a time."
            if message:
                print(message, file=sys.stderr)
            if state == "taken":
                fcntl.flock(stream, fcntl.LOCK_EX)
            user, host = os.environ.get("USER", os.geteuid()), os.uname().nodename
            stream.truncate(0)
            stream.write(f"{user} on {host}, process {os.getpid()}, since {time.ctime()}")
            stream.flush()
            yield
    finally:
        os.umask(previous)


# --- what is built


def built(settings: LaunchSettings, catalog: Catalog) -> tuple[BuiltImage, ...]:
    """List the built images."""
    folder, images = Path(settings.image_dir.value), list[BuiltImage]()
    records = read(folder)
    sif_engines = tuple(e.name for e in containers() if e.traits.image_format == SIF)
    with_storage = tuple(e.name for e in containers() if e.traits.image_format != SIF)
    for image in catalog.images:
        sif_file = Path(image.sif or "").expanduser().absolute()
        sif = sif_file if image.sif else folder / f"{image.name}.sif"
        formats = records.get(image.name, {})
        if sif.is_file():
            record = ImageRecord() if image.sif else formats.get(SIF, ImageRecord())
            changed, mismatch = difference(sif, record), None
            if changed:
                record = ImageRecord(digest=sif_id(sif))
                remedy = f"`aam-launch images build {image.name} --from {sif}` reads its labels"
                # One that a configuration names needs no record.
                mismatch = None if image.sif else (changed, f"{remedy} and records it")
            images.append(BuiltImage(image.name, sif_engines, str(sif), record.known_digest,
                                    record.labels, mismatch))  # fmt: skip
        if image.reference:
            images.append(BuiltImage(image.name, with_storage, image.reference))
        for engine in containers():
            record = formats.get(engine.traits.image_format or "", ImageRecord())
            if reference := record.id or record.reference:  # by its id: no tag can change it
                images.append(BuiltImage(image.name, (engine.name,), reference, record.known_digest,
                                        record.labels))  # fmt: skip
    # The image that is requested by a path or a reference instead of its name.
    name = settings.image.value
    by_path = "/" in name or ":" in name or name.endswith(".sif")
    if by_path and catalog.image(name) is None:
        if os.path.isfile(name):
            images.append(BuiltImage(name, sif_engines, os.path.abspath(name), sif_id(name)))
        elif name.endswith(".sif"):
            raise MissingInput("No such image", f"'{name}' does not exist", "check the path")
        else:
            Sourced(name, settings.image.source).decoded(StoredName, "image")
            images.append(BuiltImage(name, with_storage, name))
    return tuple(images)


def assumed(settings: LaunchSettings, catalog: Catalog) -> tuple[BuiltImage, ...]:
    """Return every image of the catalog as built, to decide for another host."""
    folder, engines = settings.image_dir.value, tuple(engine.name for engine in containers())
    return tuple(BuiltImage(i.name, engines, f"{folder}/{i.name}.sif") for i in catalog.images)


def measured(catalog: Catalog, available: Sequence[BuiltImage], runtime: str = "auto") -> Catalog:
    """Return the catalog with the versions of the images' labels, narrowed to the labels' archs."""
    labels: dict[str, Mapping[str, str]] = {}
    for form in available:
        if form.labels and runtime in ("auto", *form.engines):
            labels.setdefault(form.image, form.labels)
    keys = {key for image in catalog.images for key in image.pins}
    images = []
    for image in catalog.images:
        if stated := labels.get(image.name):
            versions = {key: stated[f"org.aam.{key}"] for key in keys if f"org.aam.{key}" in stated}
            image = replace(image, pins={**image.pins, **versions}, source="label")
            if vendor := VENDORS.get(image.vendor or ""):
                archs = _archs(stated.get("org.aam.archs", ""))
                fused = _archs(stated.get("org.aam.attention-archs", ""))
                image = replace(
                    image,
                    archs=_narrowed(image.archs, archs, vendor.serves),
                    attention=_narrowed(image.attention, fused, vendor.fused) or (),
                )
        images.append(image)
    return replace(catalog, images=tuple(images))


def _narrowed(
    stated: tuple[str, ...] | None, measured: tuple[str, ...],
    serves: Callable[[Sequence[str], str], bool],
) -> tuple[str, ...] | None:  # fmt: skip
    """Return the archs of the catalog that a label serves; the label's if it states none."""
    if not measured:
        return stated
    return tuple(arch for arch in stated if serves(measured, arch)) if stated else measured


def _archs(text: str) -> tuple[str, ...]:
    """Return the archs of a label, without features (gfx90a:xnack-) and virtual ones (compute_90).

    >>> _archs("gfx90a:xnack- sm_90 compute_90")
    ('gfx90a', 'sm_90')
    """
    names = (entry.partition(":")[0] for entry in text.split())
    return tuple(dict.fromkeys(name for name in names if name.startswith(ARCH_PREFIXES)))
