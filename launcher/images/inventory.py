"""Inventory of built images, and the versions that their labels record.

A SIF lies in the image folder under the image's name, or at the path of a configuration. Images
in the storages of other engines are listed in `images.json` of that folder (see `index`), because
queries to them take longer than the rest of a start.

Labels were measured in the image when it was built, and take precedence over the catalog.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from aam.contract.errors import MissingInput
from launcher.engines import containers
from launcher.engines.sif import SIF, difference, sif_id
from launcher.gpus import VENDORS
from launcher.images import index
from launcher.plan.catalog import Catalog
from launcher.plan.inputs import BuiltImage
from launcher.plan.settings import LaunchSettings

ARCH_PREFIXES = tuple(vendor.arch_prefix for vendor in VENDORS.values() if vendor.arch_prefix)


def built(settings: LaunchSettings, catalog: Catalog) -> tuple[BuiltImage, ...]:
    """List the built images."""
    folder = Path(settings.image_dir.value)
    listed = index.read(folder)
    found: list[BuiltImage] = []
    sif_engines = tuple(e.name for e in containers() if e.traits.image_format == SIF)
    with_storage = tuple(e.name for e in containers() if e.traits.image_format != SIF)
    for image in catalog.images:
        sif = Path(image.sif).expanduser() if image.sif else folder / f"{image.name}.sif"
        if sif.is_file():
            recorded = {} if image.sif else index.entry(listed, image.name, SIF)
            known = "sha256" in recorded
            changed = difference(sif, recorded) if known else "it has no record in images.json"
            digest = sif_id(sif) if changed else f"sha256:{recorded['sha256']}"
            labels = {} if changed else recorded.get("labels", {})
            remedy = f"`aam-launch images build {image.name} --from {sif}` reads its labels"
            # One that a configuration names needs no record.
            mismatch = (changed, f"{remedy} and records it") if changed and not image.sif else None
            place = str(sif)
            found.append(BuiltImage(image.name, sif_engines, place, digest, labels, mismatch))
        if image.reference:
            found.append(BuiltImage(image.name, with_storage, image.reference))
        for engine in containers():
            recorded = index.entry(listed, image.name, engine.traits.image_format)
            if recorded.get("reference"):  # by its id, which no later tag can change
                place = str(recorded.get("id") or recorded["reference"])
                digest, labels = recorded.get("digest"), recorded.get("labels", {})
                found.append(BuiltImage(image.name, (engine.name,), place, digest, labels))
    # The image that is requested by a path or a reference instead of its name.
    name = settings.image.value
    by_path = "/" in name or ":" in name or name.endswith(".sif")
    if by_path and catalog.image(name) is None:
        if os.path.isfile(name):
            found.append(BuiltImage(name, sif_engines, os.path.abspath(name), sif_id(name)))
        elif name.endswith(".sif"):
            raise MissingInput("No such image", f"'{name}' does not exist", "check the path")
        else:
            found.append(BuiltImage(name, with_storage, name))
    return tuple(found)


def assumed(settings: LaunchSettings, catalog: Catalog) -> tuple[BuiltImage, ...]:
    """Return every image of the catalog as built, to decide for another host."""
    folder = settings.image_dir.value
    return tuple(
        BuiltImage(image.name, tuple(e.name for e in containers()), f"{folder}/{image.name}.sif")
        for image in catalog.images
    )


def measured(catalog: Catalog, available: Sequence[BuiltImage], runtime: str = "auto") -> Catalog:
    """Return the catalog with the versions and archs of the images' labels.

    Of several forms of an image the first counts that `runtime` can run.
    """
    labels: dict[str, Mapping[str, str]] = {}
    for found in available:
        if found.labels and runtime in ("auto", *found.engines):
            labels.setdefault(found.image, found.labels)
    keys = {key for image in catalog.images for key in image.pins}
    images = []
    for image in catalog.images:
        if own := labels.get(image.name):
            known = {key: own[f"org.aam.{key}"] for key in keys if f"org.aam.{key}" in own}
            image = replace(
                image,
                pins={**image.pins, **known},
                archs=_archs(own.get("org.aam.archs", "")) or image.archs,
                attention=_archs(own.get("org.aam.attention-archs", "")) or image.attention,
                source="label",
            )
        images.append(image)
    return replace(catalog, images=tuple(images))


def _archs(text: str) -> tuple[str, ...]:
    """Return the archs of a label, without features (gfx90a:xnack-) and virtual ones (compute_90).

    >>> _archs("gfx90a:xnack- sm_90 compute_90")
    ('gfx90a', 'sm_90')
    """
    names = (entry.partition(":")[0] for entry in text.split())
    return tuple(dict.fromkeys(name for name in names if name.startswith(ARCH_PREFIXES)))
