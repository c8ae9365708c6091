"""Identity of a stack: versions of torch, ROCm or CUDA, aotriton, Triton, GPU and kernel driver."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from aam.contract.precision import CPU
from aam.numerics import aotriton
from aam.numerics.device import arch_of

TRITON = ("triton", "triton-rocm", "pytorch-triton-rocm", "pytorch-triton")
"""Names under which Triton is installed; for ROCm the name changed with torch 2.10."""

AMD_DRIVER = "sys/module/amdgpu/version"
NVIDIA_DRIVER = "proc/driver/nvidia/version"
_NVIDIA = re.compile(r"NVRM version:.*?(\d+(?:\.\d+)+)")


@dataclass(frozen=True)
class Identity:
    """Versions of a stack; None for an absent part, "unknown" for one that states no version.

    Attributes:
        vendor: "amd", "nvidia" or "cpu".
        torch: version of the build, "2.7.1+rocm6.3".
        runtime: "ROCm 6.3.42133", "CUDA 12.6", or None.
        aotriton: version of AMD's attention kernels.
        triton: version of the compiler.
        device: name of the GPU or processor.
        arch: "gfx942", "sm_90"; "cpu" without a GPU.
        driver: version of the kernel driver; "kernel 6.8.0" for one that came with the kernel.
    """

    vendor: str
    torch: str
    runtime: str | None
    aotriton: str | None
    triton: str | None
    device: str
    arch: str
    driver: str | None


def identify(device: torch.device, root: Path = Path("/")) -> Identity:
    """Return the identity of the stack of `device`; this initializes the GPU's runtime."""
    if device.type == "cpu":
        return _of("cpu", None, None, _processor(root), CPU, None)
    facts = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        kernels = aotriton.version(Path(torch.__file__).parent / "lib")
        runtime = f"ROCm {torch.version.hip}"
        return _of("amd", runtime, kernels, facts.name, arch_of(device), driver("amd", root))
    runtime = f"CUDA {torch.version.cuda}"
    return _of("nvidia", runtime, None, facts.name, arch_of(device), driver("nvidia", root))


def driver(vendor: str, root: Path = Path("/")) -> str:
    """Return the version of a vendor's kernel driver, which containers see too."""
    of_kernel = f"kernel {os.uname().release}"
    try:
        if vendor == "amd":
            return (root / AMD_DRIVER).read_text().strip() or of_kernel
        found = _NVIDIA.search((root / NVIDIA_DRIVER).read_text())
    except OSError:
        return of_kernel
    return found[1] if found else of_kernel


def _of(
    vendor: str,
    runtime: str | None,
    kernels: str | None,
    device: str,
    arch: str,
    driver: str | None,
) -> Identity:
    return Identity(
        vendor, str(torch.__version__), runtime, kernels, _triton(), device, arch, driver
    )


def _triton() -> str | None:
    for name in TRITON:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def _processor(root: Path) -> str:
    try:
        text = (root / "proc/cpuinfo").read_text()
    except OSError:
        return "processor"
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else "processor"
