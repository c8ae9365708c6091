"""What to say when there is nothing to run with."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.errors import Unavailable
from launcher.gpus import VENDORS
from launcher.host.facts import Host
from launcher.plan.catalog import CPU, Image
from launcher.plan.layers import Settings


def nothing(
    candidates: Sequence[Image],
    engines: Sequence[str],
    install: str | None,
    settings: Settings,
    host: Host,
) -> Unavailable:
    """Explain why there is nothing to run with, and what would help."""
    name = candidates[0].name if candidates else CPU
    obstacles = "; ".join(f"{e.name}: {e.obstacle}" for e in host.engines if e.obstacle)
    image = candidates[0] if candidates else None
    if not engines:
        known = ", ".join(engine.name for engine in host.absent_engines)
        evidence = obstacles or f"none of {known} is on PATH"
        remedy = "install one of them"
        if install is not None:
            remedy += f", or PyTorch here: `{install}`"
        return Unavailable("There is nothing to run aam with", evidence, remedy)
    if image and lacks_cdi(image, host) and all(host.traits(e).needs_cdi for e in engines):
        vendor = VENDORS[image.vendor or ""]
        remedy = f"`{vendor.cdi_command}` makes it"
        cause = f"{engines[0]} needs a CDI description of {vendor.title} GPUs"
        return Unavailable(cause, "none in /etc/cdi", remedy)
    folder = settings.text("image_dir")
    where = f"no {folder}/{name}.sif, and {folder}/images.json names none for {', '.join(engines)}"
    remedy = how_to_build(image, engines, folder, host)
    if install is not None:
        remedy += f"; `{install}` lets aam run without an image"
    return Unavailable(f"Image {name} is not built", where, remedy)


def lacks_cdi(image: Image, host: Host) -> bool:
    """Return whether the host has no CDI description of the devices that the image needs."""
    vendor = VENDORS.get(image.vendor or "")
    if vendor is None or not vendor.cdi:
        return False
    return not any(vendor.name in name for name in host.cdi)


def how_to_build(image: Image | None, engines: Sequence[str], folder: str, host: Host) -> str:
    """Return the command that builds an image, with an engine that is there."""
    if image is None or not image.definition:
        return f"put a SIF at {folder}, or name one with --image FILE"
    usual = next((engine.name for engine in host.engines if engine.obstacle is None), None)
    with_engine = "" if usual in engines else f" --engine {engines[0]}"
    return f"`aam-launch images build {image.name}{with_engine}` builds it"
