"""GPU vendors without PyTorch: device type, PCI address and driver version.

`network.numerics.device` has the same facts from PyTorch; no other module names a vendor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from aam.contract.dataclass import dataclass

GPU = "cuda"  # device type and --device value of PyTorch's builds for both vendors

CHECK_REPORTS = "AAM_CHECK_REPORTS"
"""Variable with the folder in which `aam` keeps its check reports; `aam-launch` sets it."""
_NVIDIA_DRIVER = re.compile(r"NVRM version:.*?(\d+(?:\.\d+)+)")


@dataclass(frozen=True)
class GpuVendor:
    """Vendor of GPUs that `aam` can use."""

    name: str  # name in sites, records and the command line of jobs
    driver_file: str  # file with the version of the kernel driver, relative to the root
    driver_version: Callable[[str], str | None]  # parser of this file; None without a version


def nvidia_driver_version(text: str) -> str | None:
    """Return the version in /proc/driver/nvidia/version.

    It has two forms: "... UNIX x86_64 Kernel Module  535.54.03 ..." and
    "... UNIX Open Kernel Module for x86_64  555.42.02 ...".
    """
    match = _NVIDIA_DRIVER.search(text)
    return match[1] if match else None


def one_gpu(variables: Mapping[str, str], number: int) -> dict[str, str]:
    """Return the variables that restrict a process to one of the visible GPUs.

    HIP reads its own variable, else CUDA's; both count the GPUs that the runtime shows.

    >>> one_gpu({"CUDA_VISIBLE_DEVICES": "GPU-1a,GPU-2b"}, 1)
    {'HIP_VISIBLE_DEVICES': 'GPU-2b', 'CUDA_VISIBLE_DEVICES': 'GPU-2b'}
    """
    names = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    visible = next((variables[name] for name in names if variables.get(name)), "")
    seen = visible.split(",")[number].strip() if visible else str(number)
    return dict.fromkeys(names, seen)


AMD = GpuVendor("amd", "sys/module/amdgpu/version", lambda text: text.strip() or None)
NVIDIA = GpuVendor("nvidia", "proc/driver/nvidia/version", nvidia_driver_version)
VENDORS = {vendor.name: vendor for vendor in (AMD, NVIDIA)}
