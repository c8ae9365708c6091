"""Whether an image fits GPUs and their driver."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.host.facts import Driver, Gpu, Host
from launcher.plan.catalog import CPU, Catalog, Image
from launcher.plan.decision import Finding, Severity


def problems(image: Image, gpus: Sequence[Gpu], catalog: Catalog, host: Host) -> list[str]:
    """List the reasons why `image` does not fit this processor, `gpus` and their driver."""
    found = []
    if image.machines and host.machine not in image.machines:
        built = " and ".join(image.machines)
        found.append(f"it is built for {built} and the processor is {host.machine}")
    if image.vendor in (CPU, None):
        return found
    if not gpus:
        return [*found, f"it needs a GPU of {image.vendor.upper()} and none can be used"]
    vendors = {gpu.vendor for gpu in gpus}
    if vendors != {image.vendor}:
        names = ", ".join(sorted(vendors)).upper()
        return [*found, f"it is for GPUs of {image.vendor.upper()}, not of {names}"]
    for arch in sorted({gpu.arch or "unknown" for gpu in gpus}):
        if image.archs and not served(image, arch):
            whom = "a GPU of unknown architecture" if arch == "unknown" else arch
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
        return [f"it needs driver {image.least_driver} or later and the host has {driver.version}"]
    known = catalog.range_of(driver.version)
    release = ".".join(image.pins.get("rocm", "").split(".")[:2])
    if driver.vendor == "amd" and known and release and release not in known.serves:
        supported = f"driver {driver.version} ({known.release}) supports ROCm {known.tested}"
        return [f"{supported}, not {release}"]
    return []


def unknown_driver(driver: Driver, catalog: Catalog) -> Finding | None:
    """Return a finding if nothing is known about the user spaces that a driver supports."""
    if driver.vendor != "amd" or (driver.version and catalog.range_of(driver.version)):
        return None
    evidence = f"amdgpu {driver.version} is not in the catalog"
    if driver.version is None:
        evidence = f"amdgpu states no version ({driver.source})"
    remedy = (
        "no image is refused because of it; `aam-launch check` measures whether the one that is "
        "chosen computes correctly"
    )
    severity: Severity = "note" if driver.version is None else "warning"
    return Finding(severity, "The ROCm releases that the driver supports are unknown", evidence,
                   remedy)  # fmt: skip


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
