"""GPU vendors without PyTorch: device type, PCI address and driver version.

PyTorch's side of the same facts is `network.numerics.device`; no other module of `aam` names a
vendor or branches on one.
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
    """A vendor whose GPUs `aam` computes on."""

    name: str  # name in sites, records and the command line of jobs
    driver_file: str  # the file below the root that states the version of the kernel driver
    driver_version: Callable[[str], str | None]  # finds the version in that file; None without one


def kfd_properties(text: str) -> dict[str, int]:
    """Return the numbers of a node of AMD's compute driver, lines "name value"; skip other lines.

    Source: drivers/gpu/drm/amd/amdkfd/kfd_topology.c, `node_show`.
    """
    pairs = (line.split() for line in text.splitlines())
    return {
        pair[0]: int(pair[1])
        for pair in pairs
        if len(pair) == 2 and pair[1].isascii() and pair[1].isdecimal() and len(pair[1]) <= 20
    }


def kfd_address(properties: dict[str, int]) -> str:
    """Return the PCI address of a node of AMD's compute driver.

    All GPUs of a host can have the same location_id (MI300A has), and only the domain differs.

    >>> kfd_address({"domain": 3, "location_id": 512}), kfd_address({"location_id": 1287})
    ('0003:02:00.0', '0000:05:00.7')
    """
    domain, place = properties.get("domain", 0), properties.get("location_id", 0)
    return f"{domain:04x}:{place >> 8 & 255:02x}:{place >> 3 & 31:02x}.{place & 7}"


def nvidia_driver_version(text: str) -> str | None:
    """Return the version in /proc/driver/nvidia/version.

    Both forms are known: "... UNIX x86_64 Kernel Module  535.54.03 ..." and
    "... UNIX Open Kernel Module for x86_64  555.42.02 ...".
    """
    match = _NVIDIA_DRIVER.search(text)
    return match[1] if match else None


def one_gpu(variables: Mapping[str, str], number: int) -> dict[str, str]:
    """Return the variables with which a process sees one alone of the GPUs that this one sees.

    HIP reads its own variable and, without it, CUDA's; both count what the runtime below
    them shows.

    >>> one_gpu({"CUDA_VISIBLE_DEVICES": "GPU-1a,GPU-2b"}, 1)
    {'HIP_VISIBLE_DEVICES': 'GPU-2b', 'CUDA_VISIBLE_DEVICES': 'GPU-2b'}
    """
    names = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    listed = next((variables[name] for name in names if variables.get(name)), "")
    seen = listed.split(",")[number].strip() if listed else str(number)
    return dict.fromkeys(names, seen)


AMD = GpuVendor("amd", "sys/module/amdgpu/version", lambda text: text.strip() or None)
NVIDIA = GpuVendor("nvidia", "proc/driver/nvidia/version", nvidia_driver_version)
VENDORS = {vendor.name: vendor for vendor in (AMD, NVIDIA)}
