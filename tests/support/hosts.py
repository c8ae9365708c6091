"""Made-up hosts: small trees of sysfs and procfs, in the formats of the kernels.

Where a whole captured host is needed, `captured` gives the folder of one, outside this repository.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

NODES = "sys/class/kfd/kfd/topology/nodes"

# arch -> (gfx_target_version, device_id); values of the kernel, see launcher/gpus/amd.py
MI25 = (90000, 0x6860)
MI50 = (90006, 0x66A1)
MI100 = (90008, 0x738C)
MI210 = (90010, 0x740F)
MI250X = (90010, 0x7408)
MI300A = (90402, 0x74A0)
MI300X = (90402, 0x74A1)
RX7900 = (110000, 0x744C)
NAVI22 = (100301, 0x73DF)
PHOENIX = (110003, 5567)


def captured(name: str) -> Path:
    """Return a captured host of the folder AAM_SHARED_HOSTS, or skip the test."""
    shared = os.environ.get("AAM_SHARED_HOSTS")
    if shared is None:
        pytest.skip("AAM_SHARED_HOSTS names no folder of captured hosts")
    return Path(shared) / name


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


class Tree:
    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "sys").mkdir(parents=True, exist_ok=True)
        (root / "proc").mkdir(exist_ok=True)
        self.count = 0
        self.manifest: dict[str, Any] = {}

    def cpu(self) -> Tree:
        return self._node("cpu_cores_count 64\nsimd_count 0\nvendor_id 0\n")

    def amd(
        self,
        kind: tuple[int, int],
        bus: int,
        *,
        domain: int = 0,
        function: int = 0,
        minor: int | None = None,
        unique: int | None = None,
        old_kernel: bool = False,
        readable: bool = True,
    ) -> Tree:
        """Add a GPU; an old kernel has neither arch, domain, unique_id nor num_xcc."""
        version, device = kind
        minor = 128 + self.count if minor is None else minor
        unique = 0x1000 + self.count if unique is None else unique
        lines = ["cpu_cores_count 0", "simd_count 240", f"vendor_id {0x1002}"]
        lines += [f"device_id {device}", f"location_id {bus << 8 | function}"]
        lines += [f"drm_render_minor {minor}", "local_mem_size 0"]
        if not old_kernel:
            lines += [f"gfx_target_version {version}", f"domain {domain}"]
            lines += [f"unique_id {unique}", "num_xcc 1", "capability2 0"]
        self._node("\n".join(lines) + "\n", 0o444 if readable else 0)
        address = f"{domain:04x}:{bus:02x}:00.0"
        return self.pci(address, 0x1002, device, 0x120000)

    def _node(self, text: str, mode: int = 0o444) -> Tree:
        write(self.root / NODES / str(self.count) / "properties", text, mode)
        self.count += 1
        return self

    def pci(self, address: str, vendor: int, device: int, kind: int) -> Tree:
        folder = self.root / "sys/bus/pci/devices" / address
        write(folder / "vendor", f"0x{vendor:04x}\n")
        write(folder / "device", f"0x{device:04x}\n")
        write(folder / "class", f"0x{kind:06x}\n")
        return self

    def partition(self, address: str, compute: str, memory: str) -> Tree:
        folder = self.root / "sys/bus/pci/devices" / address
        write(folder / "current_compute_partition", f"{compute}\n")
        write(folder / "current_memory_partition", f"{memory}\n")
        return self

    def nvidia(
        self, device: int, bus: int, minor: int, model: str, mig: Iterable[str] = ()
    ) -> Tree:
        address = f"0000:{bus:02x}:00.0"
        self.pci(address, 0x10DE, device, 0x030200)
        uuid = f"GPU-{bus:08x}-0000-0000-0000-000000000000"
        information = f"Model: \t\t {model}\nIRQ:   \t\t 16\nGPU UUID: \t {uuid}\n"
        base = self.root / "proc/driver/nvidia"
        write(
            base / "gpus" / address / "information",
            f"{information}Bus Type: \t PCIe\nDevice Minor: \t {minor}\n",
        )
        for number, place in enumerate(mig, 1):  # "gi1/ci0"
            folder = base / f"capabilities/gpu{minor}/mig" / place
            rest = "DeviceFileMode: 292\nDeviceFileModify: 1\n"
            for node, where in ((10 * number, folder.parent), (10 * number + 1, folder)):
                write(where / "access", f"DeviceFileMinor: {node}\n{rest}")
        return self

    def nvidia_driver(self, version: str, open_module: bool = False) -> Tree:
        words = "Open Kernel Module for x86_64" if open_module else "x86_64 Kernel Module"
        text = f"NVRM version: NVIDIA UNIX {words}  {version}  Thu Mar 16 19:23:46 UTC 2023\n"
        write(self.root / "proc/driver/nvidia/version", text)
        return self

    def amd_driver(self, version: str | None) -> Tree:
        write(self.root / "sys/module/amdgpu/initstate", "live\n")
        if version:
            write(self.root / "sys/module/amdgpu/version", f"{version}\n")
        return self

    def recorded(
        self,
        *,
        environment: Mapping[str, str] | None = None,
        nodes: Mapping[str, Mapping[str, Any]] | None = None,
        user: Mapping[str, Any] | None = None,
        engines: Iterable[Mapping[str, Any]] = (),
        archs: Mapping[str, str] | None = None,
        machine: str = "x86_64",
    ) -> Tree:
        """Write what `doctor --capture` would say beside the files of the kernel."""
        self.manifest = {
            "machine": machine,
            "environment": dict(environment or {}),
            "nodes": dict(nodes or {}),
            "user": user or {"uid": 1000, "gid": 1000, "groups": [1000]},
            "engines": list(engines),
            "archs": dict(archs or {}),
        }
        write(self.root / "aam-capture.json", json.dumps(self.manifest))
        return self
