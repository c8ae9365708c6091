"""The device of a run as PyTorch sees it: choice, name, architecture, vendor, collective backend.

This module and `aam.contract.gpus`, its part without PyTorch, are the only ones of `aam` that name
a GPU vendor or branch on one.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from aam.console import info
from aam.contract.errors import Unavailable
from aam.contract.gpus import AMD, GPU, NVIDIA, GpuVendor
from aam.contract.options.device import DeviceOptions
from aam.numerics import aotriton
from aam.numerics.precision import CPU

CONTROL_BACKEND = "gloo"
"""Collective backend of CPUs, and of small messages between ranks on any device."""


def choose_device(options: DeviceOptions) -> torch.device:
    """Return the device of the options; of several GPUs the current one of the process.

    Args:
        options: options with --device: "auto", "cpu" or "cuda".

    Raises:
        Unavailable: a GPU was requested and there is none.
    """
    if options.device == GPU and not torch.cuda.is_available():
        raise Unavailable("No GPU", f"--device {GPU}", "use --device auto or cpu")
    there = options.device != CPU and torch.cuda.is_available()
    return torch.device(GPU, torch.cuda.current_device()) if there else torch.device(CPU)


def select_gpu(number: int) -> torch.device:
    """Make a GPU the current one, and return it."""
    device = torch.device(GPU, number)
    torch.cuda.set_device(device)
    return device


def is_gpu(device: torch.device) -> bool:
    """Return whether a device is a GPU."""
    return device.type == GPU


def collective_backend(device: torch.device) -> str:
    """Return the backend of `torch.distributed` for a device; with ROCm, NCCL is RCCL."""
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
    """Print the device, which is the first line of a log."""
    info(f"Device: {device_name(device)}")


def arch_of(device: torch.device) -> str:
    """Return the architecture of a device, such as gfx942 or sm_90; "cpu" for a CPU."""
    if not is_gpu(device):
        return CPU
    properties = torch.cuda.get_device_properties(device)
    if vendor() is AMD:
        # Followed by features, as in gfx90a:sramecc+:xnack-.
        return str(properties.gcnArchName).partition(":")[0]
    return f"sm_{properties.major}{properties.minor}"


def vendor() -> GpuVendor:
    """Return the vendor whose GPUs this build of PyTorch computes on."""
    return AMD if torch.version.hip else NVIDIA


def runtime() -> str:
    """Return the runtime of this build of PyTorch, such as "ROCm 6.3.42133"."""
    return f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"


def attention_library() -> str | None:
    """Return the version of the vendor's library of attention kernels; None without one."""
    return aotriton.version(Path(torch.__file__).parent / "lib") if vendor() is AMD else None


def compile_fault() -> str:
    """Return why torch.compile fails with this build on the network's masks; empty if it does not.

    With ROCm, torch gives Triton the loads of masks as int8 where the loop that carries them has
    int1, which Triton refuses: upstream's cast is left out for ROCm (pytorch#110531), in torch
    2.13.0 still.
    """
    if vendor() is NVIDIA:
        return ""
    return f"Triton with {runtime()} mixes int1 and int8 in loops over masks"
