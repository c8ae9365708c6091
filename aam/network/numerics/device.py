"""Device of a run in PyTorch: choice, name, architecture, precision, rounding, stack identity.

The stack is identified by the versions of PyTorch, ROCm or CUDA, aotriton, Triton and the kernel
driver. Only this module and `aam.contract.gpus`, which needs no PyTorch, name a GPU vendor or
branch on one. Precision follows from the architecture: `torch.cuda.is_bf16_supported()` cannot
decide it, since with ROCm it is true for every GPU, even for GPUs without bf16.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import re
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from aam.console import info
from aam.contract.errors import Unavailable, UsageError
from aam.contract.gpus import AMD, GPU, NVIDIA, VENDORS, GpuVendor
from aam.contract.options.groups import DeviceOptions, MixedPrecision

CPU = "cpu"
CONTROL_BACKEND = "gloo"
"""Collective backend for CPUs, and for small messages between ranks on any device."""


def choose_device(options: DeviceOptions) -> torch.device:
    """Return the device that the options choose; a GPU is the current GPU of the process."""
    if options.device == GPU and not torch.cuda.is_available():
        raise Unavailable("No GPU", f"--device {GPU}", "use --device auto or cpu")
    if options.device != CPU and torch.cuda.is_available():
        return torch.device(GPU, torch.cuda.current_device())
    return torch.device(CPU)


def select_gpu(number: int) -> torch.device:
    """Make a GPU the current GPU of the process, and return it."""
    device = torch.device(GPU, number)
    torch.cuda.set_device(device)
    return device


def is_gpu(device: torch.device) -> bool:
    """Return whether a device is a GPU."""
    return device.type == GPU


class HostCopy:
    """Asynchronous copy of a tensor to the CPU; reading it waits for the device."""

    def __init__(self, value: Tensor) -> None:
        # PyTorch copies to page-locked memory if the copy does not block.
        self._copy = value.detach().to(CPU, non_blocking=True)
        self._done = None
        if is_gpu(value.device):
            # Reading waits for work launched before the copy, not for work launched since.
            self._done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            self._done.record()

    def read(self) -> Tensor:
        """Wait until the copy is complete, and return it."""
        if self._done is not None:
            self._done.synchronize()
        return self._copy


def collective_backend(device: torch.device) -> str:
    """Return the backend of `torch.distributed` for a device; with ROCm, "nccl" is RCCL."""
    return "nccl" if is_gpu(device) else CONTROL_BACKEND


def device_name(device: torch.device) -> str:
    """Return the name of a device, such as "GPU 0, NVIDIA H200"."""
    if is_gpu(device):
        return f"GPU {device.index or 0}, {torch.cuda.get_device_name(device)}"
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' if threads > 1 else ''}"


def gpu_names() -> list[str]:
    """Return the names of the GPUs that this process sees."""
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


def hardware_name(device: torch.device) -> str:
    """Return the name of a device without its number, such as "NVIDIA H200" or "CPU, 2 cores"."""
    if is_gpu(device):
        return str(torch.cuda.get_device_name(device))
    cores = len(os.sched_getaffinity(0))
    return f"CPU, {cores} core{'s' if cores > 1 else ''}"


def print_device(device: torch.device) -> None:
    """Print the device, the first line of a log."""
    info(f"Device: {device_name(device)}")


def arch_of(device: torch.device) -> str:
    """Return the architecture of a device, such as gfx942 or sm_90; "cpu" for a CPU."""
    if not is_gpu(device):
        return CPU
    properties = torch.cuda.get_device_properties(device)
    if vendor() is AMD:
        # Features may follow the name, as in gfx90a:sramecc+:xnack-.
        return str(properties.gcnArchName).partition(":")[0]
    return f"sm_{properties.major}{properties.minor}"


def vendor() -> GpuVendor:
    """Return the vendor of the GPUs that this build of PyTorch supports."""
    return AMD if torch.version.hip else NVIDIA


def runtime() -> str:
    """Return the runtime of this build of PyTorch, such as "ROCm 6.3.42133"."""
    return f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"


def compile_fault() -> str:
    """Return why torch.compile of this build fails on the network's masks; "" if it does not.

    For ROCm, PyTorch omits the cast of loaded masks from int8 to int1 (pytorch#110531, still in
    2.13.0), and Triton refuses loops in which a mask has both types.
    """
    if vendor() is NVIDIA:
        return ""
    return f"Triton with {runtime()} mixes int1 and int8 in loops over masks"


Precision = Literal["none", "bf16", "fp16"]

WITH_BF16 = ("gfx908", "gfx90a", "gfx94", "gfx950", "gfx11", "gfx12")
"""Prefixes of AMD targets with bf16 matrix instructions: MFMA, or WMMA from gfx11 on."""
WITHOUT_BF16 = ("gfx8", "gfx900", "gfx902", "gfx904", "gfx906", "gfx909", "gfx90c", "gfx10")
FIRST_CUDA_WITH_BF16 = 80  # compute capability 8.0, Ampere


def has_bf16(arch: str) -> bool | None:
    """Return whether an architecture supports bf16; None for an unknown architecture.

    >>> has_bf16("gfx942"), has_bf16("sm_75"), has_bf16("gfx9999")
    (True, False, None)
    """
    if arch == CPU or arch.startswith(WITH_BF16):
        return True
    if arch.startswith(WITHOUT_BF16):
        return False
    capability = re.fullmatch(r"sm_(\d+)", arch)
    # None and not False for an unknown architecture, so that bf16 is not refused there.
    return int(capability[1]) >= FIRST_CUDA_WITH_BF16 if capability else None


def choose_precision(requested: MixedPrecision, arch: str) -> Precision:
    """Choose the precision of training.

    'auto' is bf16 on a GPU that is known to support it, else none. fp16 needs loss scaling and can
    overflow, so it must be requested. A CPU gains nothing from either precision.

    >>> choose_precision("auto", "sm_90"), choose_precision("auto", "cpu")
    ('bf16', 'none')
    """
    if requested == "auto":
        # An unknown architecture (None) counts as one without bf16.
        return "bf16" if arch != CPU and has_bf16(arch) else "none"
    if requested == "fp16" and arch == CPU:
        raise UsageError("fp16 needs a GPU", "--mixed-precision fp16", "use bf16 or none on a CPU")
    if requested == "bf16" and has_bf16(arch) is False:
        raise UsageError(
            "This GPU has no bf16", f"--mixed-precision bf16 on {arch}", "use fp16 or none"
        )
    return requested


UNIT = {"none": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
"""Unit roundoff of each precision: IEEE 754, and 8 significant bits of bf16; "none" is fp32."""

SAFETY = 8.0
"""Factor from the expected rounding error to the tolerance.

The largest of thousands of errors is four or five standard deviations, and both of the computations
that are compared have rounding errors."""


def product_tolerance(precision: MixedPrecision, products: int, inner: int) -> float:
    """Return the largest difference of two correct results, relative to their largest value.

    A matrix product of inner size K in a precision of unit roundoff u is off by about sqrt(K) u,
    relative to its largest value: rounding errors are independent, so they grow with the root of
    their number (Higham and Mary, SIAM J. Sci. Comput. 2019). The errors of successive products add
    up likewise. Under mixed precision sums are computed in fp32 and only inputs and outputs are
    rounded, so the u of the half precision counts without the root of K.

    >>> fp32, bf16 = (product_tolerance(name, products=1, inner=64) for name in ("none", "bf16"))
    >>> bf16 > 1000 * fp32
    True
    """
    wide = math.sqrt(inner) * UNIT["none"]
    unit = wide if precision == "none" else wide + UNIT[precision]
    return SAFETY * math.sqrt(products) * unit


TRITON = ("triton", "triton-rocm", "pytorch-triton-rocm", "pytorch-triton")
"""Names of Triton's distribution; for ROCm the name changed with PyTorch 2.10."""


@dataclass(frozen=True)
class Identity:
    """Versions of a stack; None for an absent component, "unknown" if it states no version."""

    vendor: str  # name in `aam.contract.gpus.VENDORS`, or "cpu"
    torch: str  # of the build, "2.7.1+rocm6.3"
    runtime: str | None  # "ROCm 6.3.42133", "CUDA 12.6"
    aotriton: str | None  # AMD's attention kernels
    triton: str | None
    device: str
    arch: str  # "gfx942", "sm_90"; "cpu" without a GPU
    driver: str | None  # "kernel 6.8.0" for a driver that is part of the kernel


def identify(device: torch.device, root: Path = Path("/")) -> Identity:
    """Return the identity of the stack of `device`; this initializes the GPU's runtime."""
    gpu, library = is_gpu(device), Path(torch.__file__).parent / "lib"
    triton = (distribution.version for name in TRITON for distribution in distributions(name=name))
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
    """Return the version of a vendor's kernel driver, also in a container."""
    gpu_vendor = VENDORS[vendor]
    try:
        version = gpu_vendor.driver_version((root / gpu_vendor.driver_file).read_text())
    except OSError:
        version = None
    return version or f"kernel {os.uname().release}"


def aotriton_version(folder: Path) -> str | None:
    """Return the version of aotriton, AMD's attention kernels, in a folder such as torch/lib.

    Since 0.9 the ELF section `.comment` of the library has the version, such as "AOTriton 0.9.2"
    (ROCm/aotriton PR 74); 0.9.1 states 0.9.0 (pytorch PR 148615). Older libraries state no version,
    and it does not follow from PyTorch's version: AMD's own builds of one version differ in it.
    """
    libraries = sorted(folder.glob("libaotriton_v2.so*"))
    for library in libraries:
        # ValueError: an empty file cannot be mapped.
        with (
            contextlib.suppress(OSError, ValueError),
            library.open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            if match := re.search(rb"AOTriton (\d+(?:\.\d+)+)", content):
                return match[1].decode()
    return "unknown" if libraries else None


def processor(root: Path = Path("/")) -> str:
    """Return the model of the CPU; "processor" if the kernel does not name it."""
    try:
        text = (root / "proc/cpuinfo").read_text()
    except OSError:
        return "processor"
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else "processor"
