"""Whether an image fits GPUs and their driver."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.host.facts import Driver, Gpu, Host
from launcher.plan.catalog import CPU, Catalog, Image


def problems(image: Image, gpus: Sequence[Gpu], catalog: Catalog, host: Host) -> list[str]:
    """Say why `image` does not fit `gpus`; nothing if it does."""
    if image.vendor in (CPU, None):
        return []
    if not gpus:
        return [f"it needs a GPU of {image.vendor.upper()}, and there is none to use"]
    found = []
    vendors = {gpu.vendor for gpu in gpus}
    if vendors != {image.vendor}:
        return [f"it is for GPUs of {image.vendor.upper()}, not of {', '.join(sorted(vendors))}"]
    for arch in sorted({gpu.arch or "unknown" for gpu in gpus}):
        if image.archs and not served(image, arch):
            whom = "a GPU of unknown arch" if arch == "unknown" else arch
            found.append(f"its PyTorch was not compiled for {whom}")
    driver = host.driver(gpus[0].vendor)
    return found + (_driver_problems(image, driver, catalog) if driver else [])


def served(image: Image, arch: str) -> bool:
    """Tell whether the image's torch runs on `arch`.

    CUDA code runs on every chip of the same major capability and no smaller minor one (CUDA
    programming guide, "binary compatibility"); AMD's runs on its own arch alone.
    """
    if not arch.startswith("sm_"):
        return arch in image.archs
    major, minor = arch[3:-1], arch[-1]
    return any(known[3:-1] == major and known[-1] <= minor for known in image.archs)


def _driver_problems(image: Image, driver: Driver, catalog: Catalog) -> list[str]:
    if driver.version is None:
        return []
    if image.least_driver and _numbers(driver.version) < _numbers(image.least_driver):
        return [f"it needs a driver of at least {image.least_driver}, here is {driver.version}"]
    known = catalog.range_of(driver.version)
    release = ".".join(image.pins.get("rocm", "").split(".")[:2])
    if driver.vendor == "amd" and known and release and release not in known.serves:
        tested = ", ".join(known.serves)
        doubt = "" if known.confirmed else " (by AMD's rules, unconfirmed)"
        return [f"driver {driver.version} was tested with ROCm {tested}{doubt}, not with {release}"]
    return []


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def fast(image: Image, arch: str) -> bool:
    """Tell whether the image has fused attention kernels for `arch`."""
    if arch.startswith("sm_"):
        return served(image, arch)
    return any(_covers(known, arch) for known in image.attention)


def _covers(known: str, arch: str) -> bool:
    """Compare archs; aotriton names a family with an x for any digit (gfx11xx)."""
    pairs = zip(known[3:], arch[3:], strict=False)
    return len(known) == len(arch) and all(a in ("x", b) for a, b in pairs)
