"""Which images are there, and whether a SIF is one.

A SIF lies in the image folder under the image's name, or where a configuration says. What podman
and docker have is listed in `images.json` of that folder, because asking them takes longer than
everything else together:

    {"rocm63": {"podman": {"reference": "localhost/aam:rocm63", "digest": "sha256:..."},
                "sif": {"sha256": "...", "bytes": 1234}}}
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

from launcher.errors import ConfigurationError, MissingInput
from launcher.plan.catalog import Catalog
from launcher.plan.choose import OCI_ENGINES, SIF_ENGINES, Built
from launcher.plan.layers import Settings

LIST = "images.json"
MAGIC, MAGIC_AT = b"SIF_MAGIC", 32
HEADER = struct.Struct("<32s10s3s3s16sqqqqqqqq")
"""SIF header: launch script, magic, version, arch, id, created, modified, descriptors free and in
all, their offset and length, offset and length of the data (sylabs/sif, pkg/sif/sif.go)."""
DESCRIPTOR = struct.Struct("<iBIIIqqq")
"""Start of a descriptor: type, used, id, group, link, offset, size, size with padding."""
DESCRIPTOR_SIZE = 585


def built(settings: Settings, catalog: Catalog) -> tuple[Built, ...]:
    """List the images that are there.

    Raises:
        ConfigurationError: images.json is damaged.
    """
    folder = Path(settings.text("image_dir"))
    listed = _listed(folder / LIST)
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


def check_sif(path: str) -> None:
    """Check that a file is a SIF and whole: what its descriptors name lies within the file.

    Raises:
        MissingInput: it is not, or a part is missing.
    """
    with open(path, "rb") as stream:
        head = stream.read(HEADER.size)
        if len(head) < HEADER.size or not head[MAGIC_AT:].startswith(MAGIC):
            raise _broken(path, "it has no SIF header", "is it really an image?")
        total, start = HEADER.unpack(head)[8:10]
        size = os.fstat(stream.fileno()).st_size
        if not 0 < total <= 4096 or start + total * DESCRIPTOR_SIZE > size:
            raise _broken(path, f"it ends after {size} bytes", "build or copy it again")
        stream.seek(start)
        table = stream.read(total * DESCRIPTOR_SIZE)
    for number in range(total):
        _, used, _, _, _, offset, length, _ = DESCRIPTOR.unpack_from(
            table, number * DESCRIPTOR_SIZE
        )
        if used and offset + length > size:
            evidence = f"it has {size} bytes and needs {offset + length}"
            raise _broken(path, evidence, "build or copy it again")


def _broken(path: str, evidence: str, remedy: str) -> MissingInput:
    return MissingInput("Not a whole SIF", f"'{path}', {evidence}", remedy)


def _locked(entries: dict[str, Any], sif: Path) -> str | None:
    """Return the digest that was recorded for a SIF, if the file can still be that one."""
    held = entries.get("sif")
    if isinstance(held, dict) and held.get("bytes") == sif.stat().st_size:
        return f"sha256:{held.get('sha256')}"
    return None


def _listed(path: Path) -> dict[str, dict[str, Any]]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        remedy = "remove it; `podman images` shows what is there"
        raise ConfigurationError(
            "A damaged list of images", f"'{path}', {error}", remedy
        ) from error
    if not isinstance(content, dict) or not all(isinstance(v, dict) for v in content.values()):
        raise ConfigurationError("A damaged list of images", f"'{path}'", "remove it")
    return content
