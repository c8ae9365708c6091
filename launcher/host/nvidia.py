"""NVIDIA GPUs, as their kernel driver lists them in procfs, and those that only the PCI bus knows.

`/proc/driver/nvidia/gpus/<address>/information` has "Model:", "GPU UUID:" and "Device Minor:". The
compute capability is not there: it follows from the PCI device (`nvidia_chips.txt`), or is asked of
the driver's library (`nvml`) on this very host, as are the names of MIG instances.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from launcher.host import pci
from launcher.host.facts import Driver, Gpu, Instance
from launcher.host.numbers import whole_number
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
    found = [
        _driven(tree, number, address, chips, ask_driver)
        for number, address in enumerate(sorted(driven))
    ]
    for function in functions.values():
        if function.address not in driven:
            arch, chip = chips.get(function.device, (None, f"10de:{function.device:04x}"))
            place = function.address
            found.append(Gpu("nvidia", len(found), arch, f"NVIDIA {chip}", place, driven=False))
    return tuple(found)


def _driven(
    tree: Tree, number: int, address: str, chips: dict[int, tuple[str, str]], ask_driver: bool
) -> Gpu:
    """Describe a GPU that the driver lists."""
    keys = _information(tree, address)
    minor = whole_number(keys.get("device minor", ""))
    minor = number if minor is None else minor
    device = pci.number(tree, address, "device")
    arch, _ = chips.get(device or 0, (None, ""))
    instances = _instances(tree, minor)
    if ask_driver and (arch is None or instances):
        from launcher.host import nvml

        arch = arch or nvml.capability(address)
        uuids = nvml.instances(address) if instances else {}
        instances = tuple(replace(i, uuid=uuids.get((i.gpu, i.compute))) for i in instances)
    elif not ask_driver:  # a capture, which may have what the library said
        said = tree.manifest.answers.get("nvml", {}).get(address, {})
        arch = arch or _text(said.get("arch"))
        names = said.get("mig")
        known = names if isinstance(names, dict) else {}
        instances = tuple(replace(i, uuid=_text(known.get(i.place))) for i in instances)
    return Gpu(
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


def _text(value: object) -> str | None:
    """Return a text of a capture; None for anything else."""
    return value if isinstance(value, str) else None


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
            for device in devices:
                first, _, last = device.partition("-")
                block = range(int(first, 16), int(last or first, 16) + 1)
                table.update(dict.fromkeys(block, (arch, chip)))
    return table


def _information(tree: Tree, address: str) -> dict[str, str]:
    try:
        lines = tree.text(f"{ROOT}/gpus/{address}/information").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _instances(tree: Tree, minor: int) -> tuple[Instance, ...]:
    """List the MIG compute instances of a GPU, each with the two nodes that open it.

    Source: MIG user guide, "Device Nodes and Capabilities".
    """
    base = f"{ROOT}/capabilities/gpu{minor}/mig"
    return tuple(
        Instance(
            int(group[2:]),
            int(name[2:]),
            tuple(
                node
                for place in (f"{base}/{group}", f"{base}/{group}/{name}")
                if (node := _capability_node(tree, place))
            ),
        )
        for group in tree.names(base)
        if group.startswith("gi") and whole_number(group[2:]) is not None
        for name in tree.names(f"{base}/{group}")
        if name.startswith("ci") and whole_number(name[2:]) is not None
    )


def _capability_node(tree: Tree, place: str) -> str | None:
    try:
        match = re.search(r"DeviceFileMinor:\s*(\d+)", tree.text(f"{place}/access"))
    except OSError:
        return None
    return f"/dev/nvidia-caps/nvidia-cap{match[1]}" if match else None
