"""NVIDIA: GPUs as the kernel driver lists them in procfs, MIG, CUDA, and visible devices.

`/proc/driver/nvidia/gpus/<address>/information` has "Model:", "GPU UUID:" and "Device Minor:". The
compute capability is not there: it follows from the PCI device (`nvidia_chips.txt`); of a chip that
is newer than this table `nvidia-smi` prints it. A MIG instance is the one that CUDA_VISIBLE_DEVICES
names; of a card that is named CUDA takes the first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from aam.contract.errors import Problem
from aam.contract.gpus import nvidia_driver_version
from launcher import system
from launcher.findings import warning
from launcher.gpus.vendor import Vendor
from launcher.host import pci
from launcher.host.facts import Driver, Gpu, GpuInstance, Host, whole_number
from launcher.host.tree import HostTree

PCI_VENDOR = 0x10DE
ROOT = "/proc/driver/nvidia"
BOARD = "/proc/device-tree/compatible"
WSL_DEVICE, WSL_DRIVER = "/dev/dxg", "/usr/lib/wsl/lib/libcuda.so.1"
UVM = "/dev/nvidia-uvm"
CHIPS = Path(__file__).with_name("nvidia_chips.txt")


class Nvidia(Vendor):
    """GPUs of NVIDIA, used through CUDA; the driver's libraries come from the host."""

    name = "nvidia"
    title = "NVIDIA"
    module = "nvidia"
    visible_devices = "CUDA_VISIBLE_DEVICES"
    other_variables = ("NVIDIA_VISIBLE_DEVICES",)
    order = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    variables = ("CUDA_DEVICE_ORDER",)
    shared_nodes = ("/dev/nvidiactl", UVM)
    host_libraries = True
    library_flags = ("--nv", "--no-nv")
    cdi = ("nvidia.com/gpu", "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml")
    instance = "MIG-"
    one_instance = "CUDA computes on one MIG instance at a time"
    torch_field = "cuda"
    arch_prefix = "sm_"
    install_variables = ("CUDA_HOME", "CUDA_PATH")
    files = (
        f"{ROOT}/version", f"{ROOT}/gpus/*/information", f"{ROOT}/capabilities/gpu*/mig/gi*/access",
        f"{ROOT}/capabilities/gpu*/mig/gi*/ci*/access", BOARD, WSL_DRIVER,
    )  # fmt: skip

    def gpus(self, tree: HostTree, live: bool) -> tuple[Gpu, ...]:
        functions = {f.address: f for f in pci.functions(tree, PCI_VENDOR)}
        driven = tree.names(f"{ROOT}/gpus")
        if not functions and not driven:
            # Programs of the host itself can use the GPU of a Jetson or of WSL2.
            product = obstacle = ""
            if "nvidia,tegra" in (tree.read(BOARD) or ""):
                product, why = "GPU of a Jetson", "a Jetson needs NVIDIA's builds of PyTorch"
                obstacle = f"{why} for JetPack; no image has them"
            elif tree.has(WSL_DEVICE) and tree.has(WSL_DRIVER):
                product = "NVIDIA GPU of Windows"
                obstacle = f"WSL2 offers it through {WSL_DEVICE}; no image uses that device"
            return (Gpu("nvidia", 0, None, product, "", obstacle=obstacle),) if obstacle else ()
        chips = capabilities(CHIPS.read_text())
        gpus = []
        for number, address in enumerate(sorted(driven)):
            lines = (tree.read(f"{ROOT}/gpus/{address}/information") or "").splitlines()
            pairs = (line.partition(":") for line in lines)
            keys = {name.strip().lower(): value.strip() for name, _, value in pairs}
            minor_number = whole_number(keys.get("device minor", ""))
            minor = number if minor_number is None else minor_number
            arch, _ = chips.get(pci.number(tree, address, "device") or 0, (None, ""))
            if arch is None and live:  # a chip that is newer than the table
                program = system.which("nvidia-smi", os.environ.get("PATH", ""))
                query = ("--query-gpu=compute_cap", "--format=csv,noheader", f"--id={address}")
                with suppress(OSError):  # a TimeoutError among them
                    printed = system.run([program, *query], timeout=10).stdout if program else ""
                    capability = re.fullmatch(r"(\d+)\.(\d)", printed.strip())
                    arch = f"sm_{capability[1]}{capability[2]}" if capability else None
            instances = _instances(tree, minor)
            gpus.append(Gpu(
                "nvidia", minor, arch, keys.get("model", "NVIDIA GPU"), address,
                nodes=(f"/dev/nvidia{minor}",), uuid=keys.get("gpu uuid"),
                mode="MIG" if instances else None, instances=instances,
            ))  # fmt: skip
        for slot, function in functions.items():
            if slot not in driven:
                arch, chip = chips.get(function.device, (None, f"10de:{function.device:04x}"))
                passthrough = pci.passed_through(tree, slot)
                gpus.append(Gpu("nvidia", len(gpus), arch, f"NVIDIA {chip}", slot, driven=False,
                                 obstacle=passthrough))  # fmt: skip
        return tuple(gpus)

    def driver(self, tree: HostTree) -> Driver | None:
        path = f"{ROOT}/version"
        text = tree.read(path)
        return None if text is None else Driver("nvidia", nvidia_driver_version(text), path)

    def serves(self, archs: Sequence[str], arch: str) -> bool:
        major, minor = arch[3:-1], arch[-1]
        return any(candidate[3:-1] == major and candidate[-1] <= minor for candidate in archs)

    def capability(self, arch: str) -> int:
        return whole_number(arch.removeprefix(self.arch_prefix)) or 0

    def checks(
        self, host: Host, gpus: Sequence[Gpu], served: Callable[[str], bool]
    ) -> list[Problem]:
        # Without the node of the module for memory cuInit fails. The driver's set-uid helper makes
        # it for a program of the host; no image has that helper.
        if not gpus or not host.complete or host.node(UVM):
            return []
        remedy = "`sudo nvidia-modprobe -u -c=0` (or `sudo modprobe nvidia-uvm`) makes it"
        evidence = f"{UVM} is absent, and a program in a container cannot make it"
        return [warning("CUDA may not start", evidence, remedy)]


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


def _instances(tree: HostTree, minor: int) -> tuple[GpuInstance, ...]:
    """List the MIG compute instances of a GPU, with the nodes that open them (MIG user guide)."""
    base = f"{ROOT}/capabilities/gpu{minor}/mig"
    instances = []
    for group in tree.names(base):
        for name in tree.names(f"{base}/{group}"):
            numbers = whole_number(group.removeprefix("gi")), whole_number(name.removeprefix("ci"))
            if group.startswith("gi") and name.startswith("ci") and None not in numbers:
                places = (group, f"{group}/{name}")
                texts = (tree.read(f"{base}/{folder}/access") for folder in places)
                minors = (re.search(r"DeviceFileMinor:\s*(\d+)", text or "") for text in texts)
                nodes = tuple(f"/dev/nvidia-caps/nvidia-cap{m[1]}" for m in minors if m)
                instances.append(GpuInstance(int(group[2:]), int(name[2:]), nodes))
    return tuple(instances)
