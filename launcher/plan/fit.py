"""Whether an image fits a processor, GPUs and their driver."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.gpus import VENDORS, title
from launcher.host.facts import Gpu, Host
from launcher.plan.catalog import CPU, Catalog, Image


def problems(image: Image, gpus: Sequence[Gpu], catalog: Catalog, host: Host) -> list[str]:
    """List the reasons why `image` does not fit this processor, `gpus` and their driver."""
    found = []
    if image.machines and host.machine not in image.machines:
        built = " and ".join(image.machines)
        found.append(f"it is built for {built} and the processor is {host.machine}")
    if image.vendor in (CPU, None):
        return found
    if not gpus:
        return [*found, f"it needs a GPU of {title(image.vendor)} and none can be used"]
    vendors = {gpu.vendor for gpu in gpus}
    if vendors != {image.vendor}:
        names = ", ".join(sorted(title(vendor) for vendor in vendors))
        return [*found, f"it is for GPUs of {title(image.vendor)}, not of {names}"]
    for arch in sorted({gpu.arch or "unknown" for gpu in gpus}):
        if image.archs and not served(image, arch):
            whom = "a GPU of unknown architecture" if arch == "unknown" else arch
            found.append(f"its PyTorch was not compiled for {whom}")
    driver = host.driver(image.vendor)
    if driver:
        vendor = VENDORS[image.vendor]
        ranges = catalog.drivers.get(image.vendor, ())
        misfit = vendor.driver_misfit(driver, image.pins, image.least_driver, ranges)
        found += [misfit] if misfit else []
    return found


def served(image: Image, arch: str) -> bool:
    """Return whether the image's PyTorch runs on `arch`."""
    return image.vendor in VENDORS and VENDORS[image.vendor].serves(image.archs, arch)


def fast(image: Image, arch: str) -> bool:
    """Return whether the image has fused attention kernels for `arch`."""
    return image.vendor in VENDORS and VENDORS[image.vendor].fused(image.attention, arch)
