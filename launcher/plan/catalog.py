"""Catalog of images, supported drivers and known faults of stacks."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from aam.contract.errors import UsageError, nearest
from aam.contract.records import Sourced, convert
from launcher.gpus.vendor import DriverRange

StoredName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*\Z")]
"""Name, tag or id of an image in the storage of an engine; it becomes an argument of the engine."""
SHIPPED = Path(__file__).parents[1] / "catalog.yaml"
COMPILED = SHIPPED.with_suffix(".json")
"""The same as JSON, written by `make definitions`; PyYAML takes 18 ms of a start."""
CPU = "cpu"
LOCAL = re.compile(r"([a-z]+)([\d.]+)")  # the local part of a release of PyTorch: "rocm6.2"


class Image(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An image: its pinned versions, and the GPUs and drivers that it serves."""

    name: str  # "rocm63"
    title: str  # for messages
    vendor: str | None = None  # of `launcher.gpus.VENDORS`, or "cpu"; None: nothing is known
    pins: dict[str, str] = {}  # versions of the runtime, torch, triton and more
    machines: tuple[str, ...] = ()  # processors (`uname -m`); empty where nothing is known
    archs: tuple[str, ...] | None = None  # what it computes on; None where nothing is known
    no_blas: tuple[str, ...] = ()  # archs with kernels of its PyTorch, and none of its BLAS
    attention: tuple[str, ...] = ()  # archs with fused attention kernels
    prefer: dict[str, str] = {}  # archs for which it comes before others, and why
    least_driver: str | None = None  # oldest kernel driver
    definition: str | None = None  # file it is built from, in this repository
    arguments: dict[str, str] = {}  # build arguments: the base, Debian's day, torch and its index
    room: tuple[float, float] = (0, 0)  # GiB that building it takes, and GiB of the image
    sif: str | None = None  # file of the image, if a configuration names one
    reference: StoredName | None = None  # its name in an engine's own storage, where one is named
    source: str = "catalog"  # where this entry stands


class StackFault(msgspec.Struct, frozen=True):
    """A known fault of a stack, the reason and the source."""

    name: str  # "aotriton-mask"
    vendor: str  # name in `launcher.gpus.VENDORS`
    reason: str  # what is wrong
    source: str  # issue, pull request or measurement
    versions: Mapping[str, tuple[str, ...]]  # that have it by pin of an image; "7.2": every 7.2.x
    flags: tuple[str, ...] = ()  # arguments of `aam` that avoid it
    known_from: str = "catalog"  # "catalog", or the measurement
    archs: tuple[str, ...] = ()  # GPU architectures on which it is known; empty: all of the vendor
    variables: Mapping[str, str] = {}  # environment variables that avoid it


class Catalog(msgspec.Struct, frozen=True):
    """Images in order of preference, drivers and faults."""

    images: tuple[Image, ...]
    drivers: Mapping[str, tuple[DriverRange, ...]]
    faults: tuple[StackFault, ...]

    def image(self, name: str) -> Image | None:
        """Return the image called `name`, or None."""
        return next((image for image in self.images if image.name == name), None)

    def require(self, name: str, noun: str = "image") -> Image:
        """Return the image called `name`; messages call it a `noun`."""
        image = self.image(name)
        if image is None:
            names = [image.name for image in self.images]
            remedy = nearest(name, names, f"known are {', '.join(names)}")
            raise UsageError(f"No such {noun}", f"'{name}'", remedy)
        return image

    def faults_of(
        self, vendor: str | None, pins: Mapping[str, str], arch: str | None = None
    ) -> tuple[StackFault, ...]:
        """Return the known faults of a stack by its pins; a release of PyTorch may state others.

        "2.5.1+rocm6.2" is PyTorch 2.5.1 with ROCm 6.2.
        """
        release, _, local = pins.get("torch", "").partition("+")
        version = LOCAL.match(local)
        stack = {**({version[1]: version[2]} if version else {}), **pins, "torch": release}
        return tuple(
            f for f in self.faults
            if f.vendor == vendor
            and all(f"{stack.get(pin)}.".startswith(tuple(f"{prefix}." for prefix in releases))
                    for pin, releases in f.versions.items())
            and (not f.archs or arch in f.archs)
        )  # fmt: skip


def content_of(text: bytes) -> Any:
    """Return the content of a catalog; it may have aliases, files of users may not."""
    import yaml

    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def shipped() -> Catalog:
    """Return the catalog of this package: its JSON, unless the YAML was edited since."""
    text, content = SHIPPED.read_bytes(), None
    with suppress(OSError, msgspec.DecodeError, KeyError):
        compiled = msgspec.json.decode(COMPILED.read_bytes())
        content = compiled["content"] if compiled["crc32"] == zlib.crc32(text) else None
    content = content or content_of(text)
    ranges = {vendor: tuple(convert({**keys, "release": name}, DriverRange)
                            for name, keys in releases.items())
              for vendor, releases in content["drivers"].items()}  # fmt: skip
    faults = (convert({**keys, "name": name}, StackFault)
              for name, keys in content["faults"].items())  # fmt: skip
    images = Sourced[dict[str, dict[str, Any]]](content["images"], "catalog")
    return extended(Catalog((), ranges, tuple(faults)), (images,))


def extended(catalog: Catalog, images: tuple[Sourced[dict[str, dict[str, Any]]], ...]) -> Catalog:
    """Return the catalog with images of configurations changed or added."""
    by_name = {image.name: image for image in catalog.images}
    for layer in images:
        for name, keys in layer.value.items():
            base = msgspec.structs.asdict(by_name[name]) if name in by_name else {"title": name}
            entry = {**base, **keys, "name": name, "source": layer.source}
            by_name[name] = Sourced(entry, layer.source).decoded(Image, f"images.{name}").value
    return replace(catalog, images=tuple(by_name.values()))
