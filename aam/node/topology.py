"""Topology of a node from sysfs: the CPUs near each GPU, network interfaces and plugins."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from aam.contract.errors import Unavailable
from aam.contract.gpus import GpuVendor

SYS = Path("/sys")


def cpus_near(address: str, sys: Path = SYS) -> set[int]:
    """Return the CPUs of the NUMA node of a PCI device; empty if sysfs states none."""
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


def require_gpus(vendor: GpuVendor, ranks: int, root: Path = Path("/")) -> None:
    """Check that this node shows a GPU for each of its ranks.

    Raises:
        Unavailable: a device file is absent or refused, or there are fewer GPUs than ranks.
    """
    host, device = os.uname().nodename, root / "dev" / vendor.device_file
    remedy = "ask Slurm for GPUs (`--gpus-per-node`), or give --device cpu"
    if not device.exists():
        raise Unavailable("The job needs GPUs", f"{host} has no {device}", remedy)
    if not os.access(device, os.R_OK | os.W_OK):
        raise Unavailable("The job needs GPUs", f"{device} on {host} may not be opened", remedy)
    shown = len(vendor.addresses(root))
    if shown < ranks:
        evidence = f"{host} shows {shown} of the {ranks} that its ranks take"
        raise Unavailable("The job needs GPUs", evidence, remedy)


def interfaces(patterns: Sequence[str], sys: Path = SYS) -> list[str]:
    """Return the network interfaces that match the first pattern that any interface matches."""
    found = (sorted(path.name for path in (sys / "class/net").glob(p)) for p in patterns)
    return next(filter(None, found), [])


def network(
    present: Mapping[str, str], patterns: Sequence[str], plugin: Sequence[Path], sys: Path = SYS
) -> dict[str, str]:
    """Return the variables with which NCCL, RCCL and gloo use the fast network.

    Args:
        present: variables that the user has set; they stay.
        patterns: names of interfaces, the preferred first.
        plugin: folders of the host that may hold a network plugin.
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
