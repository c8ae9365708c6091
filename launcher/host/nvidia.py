"""NVIDIA GPUs, as their kernel driver lists them in procfs, and those that only the PCI bus knows.

`/proc/driver/nvidia/gpus/<address>/information` has "Model:", "GPU UUID:" and "Device Minor:". The
compute capability is not there: it follows from the PCI device (`nvidia_chips.txt`), or is asked of
the driver's library when that is loaded on this very host.
"""

from __future__ import annotations

import re
from pathlib import Path

from launcher.host import pci
from launcher.host.facts import Driver, Gpu
from launcher.host.tree import Tree

VENDOR = 0x10DE
ROOT = "/proc/driver/nvidia"
SHARED_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
CHIPS = Path(__file__).with_name("nvidia_chips.txt")
VERSION = r"NVRM version:.*?(\d+(?:\.\d+)+)"


def gpus(tree: Tree, ask_driver: bool) -> tuple[Gpu, ...]:
    """List the GPUs by PCI address; `ask_driver` allows loading the driver's library."""
    functions = {f.address: f for f in pci.functions(tree) if f.vendor == VENDOR}
    driven = tree.names(f"{ROOT}/gpus")
    if not functions and not driven:
        return ()
    chips = capabilities(CHIPS.read_text())
    found = []
    for number, address in enumerate(sorted(driven)):
        keys = _information(tree, address)
        minor = int(keys.get("device minor", number))
        device = functions[address].device if address in functions else _device(tree, address)
        instances = _instances(tree, minor)
        arch = chips.get(device, (None, ""))[0] or (_asked(address) if ask_driver else None)
        found.append(
            Gpu(
                vendor="nvidia",
                index=minor,
                arch=arch,
                product=keys.get("model", "NVIDIA GPU"),
                pci=address,
                nodes=(f"/dev/nvidia{minor}",),
                uuid=keys.get("gpu uuid"),
                mode="MIG" if instances else None,
                instances=instances,
            )
        )
    for function in functions.values():
        # Class 0300 or 0302; a device without a driver that is not in the table is no computer's.
        if function.address not in driven and function.device in chips:
            arch, chip = chips[function.device]
            product = f"NVIDIA {chip}"
            found.append(Gpu("nvidia", len(found), arch, product, function.address, driven=False))
    return tuple(found)


def driver(tree: Tree) -> Driver | None:
    """Return the kernel driver and its version.

    Both forms are known: "... UNIX x86_64 Kernel Module  535.54.03 ..." and
    "... UNIX Open Kernel Module for x86_64  555.42.02 ...".
    """
    path = f"{ROOT}/version"
    try:
        match = re.search(VERSION, tree.text(path))
    except OSError:
        return None
    return Driver("nvidia", match[1] if match else None, path)


def capabilities(text: str) -> dict[int, tuple[str, str]]:
    """Read the table of chips: PCI device -> ("sm_80", "GA100")."""
    table = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            chip, capability, *devices = line.split()
            arch = "sm_" + capability.replace(".", "")
            table.update({int(device, 16): (arch, chip) for device in devices})
    return table


def _information(tree: Tree, address: str) -> dict[str, str]:
    try:
        lines = tree.text(f"{ROOT}/gpus/{address}/information").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _device(tree: Tree, address: str) -> int:
    text = pci.attribute(tree, address, "device")
    return int(text, 16) if text else 0


def _instances(tree: Tree, minor: int) -> int:
    """Count the MIG compute instances of a GPU from its capabilities."""
    base = f"{ROOT}/capabilities/gpu{minor}/mig"
    return sum(
        name.startswith("ci")
        for group in tree.names(base)
        if group.startswith("gi")
        for name in tree.names(f"{base}/{group}")
    )


def _asked(address: str) -> str | None:
    """Ask NVML, if the driver's library can be loaded; never an error."""
    import ctypes

    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        if library.nvmlInit_v2() != 0:
            return None
        device, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
        name = ctypes.c_char_p(address.encode())
        failed = library.nvmlDeviceGetHandleByPciBusId_v2(name, ctypes.byref(device))
        failed = failed or library.nvmlDeviceGetCudaComputeCapability(
            device, ctypes.byref(major), ctypes.byref(minor)
        )
        library.nvmlShutdown()
    except (OSError, AttributeError):
        return None
    return None if failed else f"sm_{major.value}{minor.value}"
