"""Which images are there, and what they say of themselves.

A SIF lies in the image folder under the image's name, or where a configuration says. What podman
and docker have is listed in `images.json` of that folder, because asking them takes longer than
everything else together:

    {"rocm63": {"podman": {"reference": "localhost/aam:rocm63", "digest": "sha256:..."},
                "sif": {"sha256": "...", "bytes": 1234}}}

What an image's labels say was measured in it when it was built, and counts more than the catalog.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from launcher.errors import MissingInput
from launcher.images import record
from launcher.plan.catalog import Catalog
from launcher.plan.choose import OCI_ENGINES, SIF_ENGINES, Built
from launcher.plan.layers import Settings


def built(settings: Settings, catalog: Catalog) -> tuple[Built, ...]:
    """List the images that are there.

    Raises:
        ConfigurationError: images.json is damaged.
    """
    folder = Path(settings.text("image_dir"))
    listed = record.read(folder)
    found: list[Built] = []
    for image in catalog.images:
        entries = listed.get(image.name, {})
        sif = Path(image.sif).expanduser() if image.sif else folder / f"{image.name}.sif"
        if sif.is_file():
            found.append(Built(image.name, SIF_ENGINES, str(sif), _locked(entries, sif)))
        if image.reference:
            found.append(Built(image.name, OCI_ENGINES, image.reference))
        for engine in OCI_ENGINES:
            held = entries.get(engine)
            if isinstance(held, dict) and held.get("reference"):
                found.append(
                    Built(image.name, (engine,), str(held["reference"]), held.get("digest"))
                )
    name = settings.text("image")
    if name == "auto" or ("/" not in name and ":" not in name and not name.endswith(".sif")):
        return tuple(found)
    if catalog.image(name) is None and os.path.isfile(name):
        found.append(Built(name, SIF_ENGINES, os.path.abspath(name)))
    elif catalog.image(name) is None and name.endswith(".sif"):
        raise MissingInput("No such image", f"'{name}' does not exist", "check the path")
    elif catalog.image(name) is None:
        found.append(Built(name, OCI_ENGINES, name))
    return tuple(found)


def assumed(settings: Settings, catalog: Catalog) -> tuple[Built, ...]:
    """Pretend that every image is there, to decide for another host."""
    folder = settings.text("image_dir")
    return tuple(
        Built(image.name, SIF_ENGINES + OCI_ENGINES, f"{folder}/{image.name}.sif")
        for image in catalog.images
    )


def _locked(entries: dict[str, Any], sif: Path) -> str | None:
    """Return the digest that was recorded for a SIF, if the file can still be that one."""
    held = entries.get("sif")
    if isinstance(held, dict) and held.get("bytes") == sif.stat().st_size:
        return f"sha256:{held.get('sha256')}"
    return None
