"""SBOM of an image: SPDX 2.3 JSON beside the image, made by containers/sbom.py inside of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from aam.contract.errors import CannotCreate, Unavailable
from aam.contract.files import atomic_write
from launcher import documents, processes
from launcher.engines.base import PYTHON
from launcher.images import index
from launcher.images.builder import Builder

SCRIPT = "/opt/aam/containers/sbom.py"
LARGEST = 64 << 20
NAMESPACE = "documentNamespace"


def path_of(folder: Path, name: str, image_format: str) -> Path:
    """Return the place of the SBOM of an image."""
    return folder / f"{name}.{image_format}.spdx.json"


def stored(folder: Path, name: str, image_format: str, recorded: Mapping[str, Any]) -> str | None:
    """Return the stored SBOM of a recorded image; None if there is none, or that of another."""
    with suppress(OSError, ValueError):
        text = documents.regular(path_of(folder, name, image_format), LARGEST).decode()
        content = documents.parsed(text)
        if isinstance(content, dict) and content.get(NAMESPACE, "").endswith(_identity(recorded)):
            return text
    return None


def make(folder: Path, name: str, builder: Builder, recorded: Mapping[str, Any]) -> str:
    """Make the SBOM of a recorded image, store it and return it.

    A reader of another user's image folder gets it without storing it.

    Raises:
        Unavailable: the image has no program that makes it, or does not start.
    """
    place = str(recorded.get("id") or folder / f"{name}.sif")
    argv = builder.engine.exec_argv(builder.program, place, [PYTHON, SCRIPT])
    done = processes.run(argv)
    try:
        content = json.loads(done.stdout)
    except ValueError as error:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        remedy = f"build it again: `aam-launch images build {name} --rebuild`"
        raise Unavailable("The image makes no SBOM", f"{place}: {lines[-1]}", remedy) from error
    base = content[NAMESPACE].rpartition("-")[0]
    content[NAMESPACE] = f"{base}-{_identity(recorded)}"
    if "sha256" in recorded:  # of a SIF; other engines have no file
        digest = {"algorithm": "SHA256", "checksumValue": recorded["sha256"]}
        content["packages"][0]["checksums"] = [digest]
    text = json.dumps(content, indent=1) + "\n"
    place_of_it = path_of(folder, name, builder.engine.traits.image_format)
    with suppress(CannotCreate), index.locked(folder, "sbom"), atomic_write(place_of_it) as file:
        file.write_text(text)
    return text


def _identity(recorded: Mapping[str, Any]) -> str:
    """Return what no other image has: the SHA-256 of a SIF, or the id in a storage."""
    return str(recorded.get("sha256") or recorded.get("id", "")).removeprefix("sha256:")
