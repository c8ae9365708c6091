"""NVML: compute capability of a GPU and UUIDs of MIG instances, by ctypes.

The library is loaded only for facts that no file holds, because its start takes long on a host
whose GPUs sleep. A failure gives None or an empty result.
Interface: NVML API reference, nvml.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
UUID_LENGTH = 96  # NVML_DEVICE_UUID_V2_BUFFER_SIZE


def capability(address: str) -> str | None:
    """Return the arch ("sm_90") of the GPU at a PCI address, or None."""
    with _device(address) as (library, device):
        if device is None:
            return None
        major, minor = ctypes.c_int(), ctypes.c_int()
        failed = library.nvmlDeviceGetCudaComputeCapability(
            device, ctypes.byref(major), ctypes.byref(minor)
        )
        return None if failed else f"sm_{major.value}{minor.value}"


def instances(address: str) -> dict[tuple[int, int], str]:
    """Return the UUIDs of the MIG instances of a GPU by the numbers of (GPU, compute) instance."""
    found: dict[tuple[int, int], str] = {}
    with _device(address) as (library, device):
        most = ctypes.c_uint()
        if device is None or library.nvmlDeviceGetMaxMigDeviceCount(device, ctypes.byref(most)):
            return {}
        for number in range(most.value):
            part, gpu, compute = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint()
            name = ctypes.create_string_buffer(UUID_LENGTH)
            failed = (
                library.nvmlDeviceGetMigDeviceHandleByIndex(device, number, ctypes.byref(part))
                or library.nvmlDeviceGetGpuInstanceId(part, ctypes.byref(gpu))
                or library.nvmlDeviceGetComputeInstanceId(part, ctypes.byref(compute))
                or library.nvmlDeviceGetUUID(part, name, UUID_LENGTH)
            )
            if not failed:
                found[gpu.value, compute.value] = name.value.decode()
    return found


@contextmanager
def _device(address: str) -> Iterator[tuple[Any, ctypes.c_void_p | None]]:
    """Open the library for one device; the handle is None if it fails."""
    try:
        library = ctypes.CDLL(LIBRARY)
        started = library.nvmlInit_v2() == 0
    except (OSError, AttributeError):
        yield None, None
        return
    device = ctypes.c_void_p()
    try:
        known = started and not library.nvmlDeviceGetHandleByPciBusId_v2(
            ctypes.c_char_p(address.encode()), ctypes.byref(device)
        )
        yield library, device if known else None
    finally:
        if started:
            library.nvmlShutdown()
