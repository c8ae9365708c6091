"""Identity of a stack: versions of torch, ROCm or CUDA, aotriton, Triton, GPU and kernel driver."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

import torch

from aam.contract.gpus import AMD, VENDORS
from aam.numerics.device import CPU, arch_of, is_gpu, runtime, vendor

TRITON = ("triton", "triton-rocm", "pytorch-triton-rocm", "pytorch-triton")
"""Names under which Triton is installed; for ROCm the name changed with torch 2.10."""


@dataclass(frozen=True)
class Identity:
    """Versions of a stack; None for an absent part, "unknown" for one that states no version.

    Attributes:
        vendor: name in `aam.contract.gpus.VENDORS`, or "cpu".
        torch: version of the build, "2.7.1+rocm6.3".
        runtime: "ROCm 6.3.42133", "CUDA 12.6", or None.
        aotriton: version of AMD's attention kernels.
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
    gpu, library = is_gpu(device), Path(torch.__file__).parent / "lib"
    triton = (found.version for name in TRITON for found in distributions(name=name))
    return Identity(
        vendor=vendor().name if gpu else CPU,
        torch=str(torch.__version__),
        runtime=runtime() if gpu else None,
        aotriton=aotriton_version(library) if gpu and vendor() is AMD else None,
        triton=next(triton, None),
        device=torch.cuda.get_device_properties(device).name if gpu else processor(root),
        arch=arch_of(device),
        driver=driver(vendor().name, root) if gpu else None,
    )


def driver(vendor: str, root: Path = Path("/")) -> str:
    """Return the version of a vendor's kernel driver, which containers see too."""
    known = VENDORS[vendor]
    try:
        version = known.driver_version((root / known.driver_file).read_text())
    except OSError:
        version = None
    return version or f"kernel {os.uname().release}"


def aotriton_version(folder: Path) -> str | None:
    """Return the version of aotriton, AMD's attention kernels, in a folder such as torch/lib.

    Since 0.9 the library carries "AOTriton 0.9.2" in its ELF section `.comment` (ROCm/aotriton PR
    74); 0.9.1 states 0.9.0 (pytorch PR 148615). Older ones state nothing, and the version of torch
    does not imply it: AMD's own builds of one torch version hold different ones.
    """
    libraries = sorted(folder.glob("libaotriton_v2.so*"))
    for library in libraries:
        # ValueError: an empty file cannot be mapped.
        with (
            contextlib.suppress(OSError, ValueError),
            library.open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            if found := re.search(rb"AOTriton (\d+(?:\.\d+)+)", content):
                return found[1].decode()
    return "unknown" if libraries else None


def processor(root: Path = Path("/")) -> str:
    """Return the model of the CPU; "processor" where the kernel names none."""
    try:
        text = (root / "proc/cpuinfo").read_text()
    except OSError:
        return "processor"
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else "processor"
