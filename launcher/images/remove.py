"""Remove images, and what was recorded of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from aam.contract.errors import MissingInput
from launcher.engines import ENGINES, of_format
from launcher.engines.installed import which
from launcher.engines.sif import SIF
from launcher.images import index
from launcher.plan.catalog import Image


def remove(
    images: Sequence[Image], engine: str | None, folder: Path, variables: Mapping[str, str]
) -> int:
    """Remove every form of the images, or that of one engine.

    Raises:
        MissingInput: there is nothing to remove.
        CannotCreate: the engine refuses.
    """
    image_format = ENGINES[engine].traits.image_format if engine else None
    for image in images:
        with index.locked(folder, f"{image.name}.build"):
            held = index.read(folder).get(image.name, {})
            place = folder / f"{image.name}.sif"
            formats = {*held, *([SIF] if place.exists() else [])}
            wanted = sorted(formats if image_format is None else formats & {image_format})
            if not wanted:
                evidence = f"{image.name} in '{folder}'"
                raise MissingInput("No such image is built", evidence, "see `aam-launch images`")
            for each in wanted:
                owner = of_format(each)[0]
                program = which(owner.name, variables.get("PATH", "")) or owner.name
                owner.remove(program, index.entry({image.name: held}, image.name, each), place)
                index.write(folder, image.name, each, None)
                print(f"removed {image.name} ({each})")
    return 0
