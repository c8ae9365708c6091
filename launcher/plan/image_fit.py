"""Fitness of an image for a processor, GPUs and their driver."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.gpus import VENDORS, title
from launcher.host.facts import Gpu, Host
from launcher.plan.catalog import CPU, Catalog, Image


def problems(image: Image, gpus: Sequence[Gpu], catalog: Catalog, host: Host) -> list[str]:
    """List the reasons why `image` does not fit this processor, `gpus` and their driver."""
    found = processor_problems(image, host)
    if image.vendor in (CPU, None):
        return found
    if not gpus:
        return [*found, f"it needs a GPU of {title(image.vendor)} and none can be used"]
    vendors = {gpu.vendor for gpu in gpus}
    if vendors != {image.vendor}:
        names = ", ".join(sorted(title(vendor) for vendor in vendors))
        return [*found, f"it is for GPUs of {title(image.vendor)}, not of {names}"]
    if obstacles := dict.fromkeys(gpu.obstacle for gpu in gpus if gpu.obstacle):
        return [*found, *obstacles]
    for arch in sorted({gpu.arch or "unknown" for gpu in gpus}):
        if image.archs and not served(image, arch):
            whom = "a GPU of unknown architecture" if arch == "unknown" else arch
            found.append(f"its PyTorch was not compiled for {whom}")
        if arch in image.failed:
            found.append(f"aam check failed with it on {arch}: {image.failed[arch]}")
    misfit = driver_problem(image, catalog, host)
    return [*found, misfit] if misfit else found


def driver_problem(image: Image, catalog: Catalog, host: Host) -> str | None:
    """Return the reason why the host's kernel driver cannot serve `image`, or None."""
    driver = host.driver(image.vendor) if image.vendor in VENDORS else None
    if driver is None:
        return None
    ranges = catalog.drivers.get(driver.vendor, ())
    return VENDORS[driver.vendor].driver_misfit(driver, image.pins, image.least_driver, ranges)


def processor_problems(image: Image, host: Host) -> list[str]:
    """List the reasons why `image` does not run on this processor."""
    if not image.machines or host.machine in image.machines:
        return []
    built = " and ".join(image.machines)
    return [f"it is built for {built} and the processor is {host.machine}"]


def for_processors(catalog: Catalog, host: Host) -> tuple[Image, ...]:
    """Return the images for computing without a GPU that are built for this processor."""
    return tuple(
        image for image in catalog.images
        if image.vendor == CPU and not processor_problems(image, host)
    )  # fmt: skip


def served(image: Image, arch: str) -> bool:
    """Return whether the image's PyTorch runs on `arch`."""
    return image.vendor in VENDORS and VENDORS[image.vendor].serves(image.archs, arch)


def has_code(catalog: Catalog, vendor: str, arch: str) -> bool:
    """Return whether an image of the catalog for a vendor's GPUs runs on `arch`."""
    return any(image.vendor == vendor and served(image, arch) for image in catalog.images)


def fast(image: Image, arch: str) -> bool:
    """Return whether the image has fused attention kernels for `arch`."""
    return image.vendor in VENDORS and VENDORS[image.vendor].fused(image.attention, arch)
