"""Topology of a node from sysfs: GPUs, the CPUs near each GPU, network interfaces and plugins."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from aam.contract.errors import Unavailable

SYS = Path("/sys")

DEVICES = {"amd": "kfd", "nvidia": "nvidiactl"}
"""Vendor -> the device file that every process on its GPUs opens."""


def gpu_addresses(vendor: str, sys: Path = SYS, proc: Path = Path("/proc")) -> list[str]:
    """Return the PCI addresses of a node's GPUs in the order in which the driver counts them."""
    return {"amd": lambda: _amd(sys), "nvidia": lambda: _nvidia(proc)}[vendor]()


def _amd(sys: Path) -> list[str]:
    """Read KFD's topology; a processor is a node of it, too, without SIMDs.

    All GPUs of a host can have the same location_id (MI300A has), and only the domain differs.
    """
    found = []
    nodes = sys / "class/kfd/kfd/topology/nodes"
    for node in sorted(nodes.glob("*"), key=lambda path: int(path.name)):
        try:
            lines = (node / "properties").read_text().splitlines()
            facts = {name: int(value) for name, value in (line.split() for line in lines)}
        except (OSError, ValueError):  # a device cgroup hides the GPUs of other jobs
            continue
        if facts.get("simd_count", 0) > 0:
            place = facts.get("location_id", 0)
            found.append(
                f"{facts.get('domain', 0):04x}:{place >> 8 & 255:02x}:{place >> 3 & 31:02x}"
                f".{place & 7}"
            )
    return found


def _nvidia(proc: Path) -> list[str]:
    return sorted(path.name for path in proc.glob("driver/nvidia/gpus/*"))


def cpus_near(address: str, sys: Path = SYS) -> set[int]:
    """Return the CPUs of the NUMA node of a PCI device; empty where sysfs does not tell."""
    # A partition of a card has a function of its own, which may have no device.
    for name in (address, f"{address[:-1]}0"):
        try:
            numa = int((sys / "bus/pci/devices" / name / "numa_node").read_text())
            if numa >= 0:
                return cpu_list((sys / f"devices/system/node/node{numa}/cpulist").read_text())
        except (OSError, ValueError):
            continue
    return set()


def cpu_list(text: str) -> set[int]:
    """Read a list of CPUs as the kernel writes it.

    >>> sorted(cpu_list("0-2,8"))
    [0, 1, 2, 8]
    """
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def require_gpus(
    vendor: str, ranks: int, addresses: Sequence[str], dev: Path = Path("/dev")
) -> None:
    """Check that this node shows a GPU for each of its ranks.

    Raises:
        Unavailable: a device file is absent or refused, or there are fewer GPUs than ranks.
    """
    host = os.uname().nodename
    device = dev / DEVICES[vendor]
    remedy = "ask Slurm for GPUs (`--gpus-per-node`), or give --device cpu"
    if not device.exists():
        raise Unavailable("The job needs GPUs", f"{host} has no {device}", remedy)
    if not os.access(device, os.R_OK | os.W_OK):
        raise Unavailable("The job needs GPUs", f"{device} on {host} may not be opened", remedy)
    if len(addresses) < ranks:
        evidence = f"{host} shows {len(addresses)} of the {ranks} that its ranks take"
        raise Unavailable("The job needs GPUs", evidence, remedy)


def interfaces(patterns: Sequence[str], sys: Path = SYS) -> list[str]:
    """Return the network interfaces that match the first pattern that any interface matches."""
    for pattern in patterns:
        found = sorted(glob.glob(str(sys / "class/net" / pattern)))
        if found:
            return [os.path.basename(path) for path in found]
    return []


def network(
    present: Mapping[str, str], patterns: Sequence[str], plugin: Sequence[Path], sys: Path = SYS
) -> dict[str, str]:
    """Return the variables with which NCCL, RCCL and gloo use the fast network.

    Args:
        present: variables that the user has set; they stay.
        patterns: names of interfaces, the preferred first.
        plugin: folders of the host that may hold a network plugin.
        sys: where sysfs is mounted.
    """
    found = interfaces(patterns, sys)
    variables: dict[str, str] = {}
    if found:
        variables |= {"NCCL_SOCKET_IFNAME": ",".join(found), "GLOO_SOCKET_IFNAME": found[0]}
    folders = [folder for folder in plugin if folder.is_dir()]
    for folder in folders:
        for name in ("librccl-net.so", "libnccl-net.so"):
            if (folder / name).exists():
                variables.setdefault("NCCL_NET_PLUGIN", str(folder / name))
    variables = {name: value for name, value in variables.items() if name not in present}
    if folders:  # behind the image's own libraries
        paths = [present.get("LD_LIBRARY_PATH", ""), *map(str, folders)]
        variables["LD_LIBRARY_PATH"] = ":".join(filter(None, paths))
    return variables
