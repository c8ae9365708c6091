"""Topology of a node from sysfs: the CPUs near each GPU, network interfaces and plugins."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from aam.contract.errors import Unavailable
from launcher.detect import detect
from launcher.host.facts import Gpu, Host
from launcher.slurm import log

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


def gpus(host: Host, vendor: str | None = None) -> list[Gpu]:
    """Return the GPUs, of a vendor or all, that this process may use, in their runtime's order."""
    usable = (gpu for gpu in host.gpus if gpu.driven and gpu.readable and not gpu.integrated)
    return [gpu for gpu in usable if vendor in (None, gpu.vendor)]


def require_gpus(host: Host, vendor: str, ranks: int) -> None:
    """Check that a node shows a GPU for each of its ranks.

    Raises:
        Unavailable: there are fewer that this process may use.
    """
    shown = len(gpus(host, vendor))
    if shown < ranks:
        evidence = f"{host.name} shows {shown} of the {ranks} that its ranks take"
        remedy = "ask Slurm for GPUs (`--gpus-per-node`), or give --device cpu"
        raise Unavailable("The job needs GPUs", evidence, remedy)


def require_no_gpus(host: Host, site: str) -> None:
    """Check that a node shows no GPU to a job that was decided for the processor.

    Raises:
        Unavailable: there is one, which the site does not state.
    """
    if shown := gpus(host):
        evidence = f"{host.name} shows {len(shown)} x {shown[0].product}, site {site} states none"
        remedy = "state `vendor` and `arch` in a site file, or give --image cpu or --device cpu"
        raise Unavailable("The GPUs would stay idle", evidence, remedy)


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
    for folder in plugin:
        for name in ("librccl-net.so", "libnccl-net.so"):
            if (folder / name).exists():
                variables.setdefault("NCCL_NET_PLUGIN", str(folder / name))
    return {name: value for name, value in variables.items() if name not in present}


def main(folder: Path, patterns: Sequence[str]) -> None:
    """Print the GPUs of this node with the CPUs near them, its interfaces and its disk."""
    host = detect()
    log(f"node {host.name}, {os.cpu_count()} CPUs")
    log(f"interfaces {', '.join(interfaces(patterns)) or 'none of those named'}")
    log(f"'{folder}' has {shutil.disk_usage(folder).free // 10**9} GB free")
    for gpu in host.gpus:
        near = ", ".join(map(str, sorted(cpus_near(gpu.pci)))) or "unknown"
        log(f"GPU {gpu.index}, {gpu.product}, at {gpu.pci}: CPUs {near}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
