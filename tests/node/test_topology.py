"""Topology of a node, read from a made tree of sysfs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aam.contract.errors import Unavailable
from aam.contract.gpus import AMD, NVIDIA
from aam.node import topology
from tests.support.hosts import MI300A, Tree


def test_each_gpu_has_the_cpus_of_its_numa_node(tmp_path: Path) -> None:
    """On MI300A all GPUs have one location_id, and only the domain differs."""
    tree = Tree(tmp_path).cpu()
    for domain in range(4):
        tree.amd(MI300A, 2, domain=domain)
    sys = tmp_path / "sys"
    addresses = sorted(path.name for path in (sys / "bus/pci/devices").iterdir())
    for number, address in enumerate(addresses):
        (sys / f"bus/pci/devices/{address}/numa_node").write_text(f"{number}\n")
        node = sys / f"devices/system/node/node{number}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(f"{2 * number}-{2 * number + 1},{96 + number}\n")
    found = AMD.addresses(tmp_path)
    assert found == addresses
    near = [topology.cpus_near(address, sys) for address in found]
    assert near == [{2 * number, 2 * number + 1, 96 + number} for number in range(4)]
    assert AMD.addresses(tmp_path / "none") == []
    assert topology.cpus_near("0000:00:00.0", tmp_path / "none") == set()


def test_nvidia_gpus_come_from_procfs(tmp_path: Path) -> None:
    for address in ("0000:b1:00.0", "0000:17:00.0"):
        (tmp_path / "proc/driver/nvidia/gpus" / address).mkdir(parents=True)
    assert NVIDIA.addresses(tmp_path) == ["0000:17:00.0", "0000:b1:00.0"]


def test_a_job_without_its_gpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="The job needs GPUs: .* has no .*/kfd; ask Slurm"):
        topology.require_gpus(AMD, 4, tmp_path)
    tree = Tree(tmp_path).cpu()
    for domain in range(2):
        tree.amd(MI300A, 2, domain=domain)
    device = tmp_path / "dev/kfd"
    device.parent.mkdir(exist_ok=True)
    device.touch()
    with pytest.raises(Unavailable, match="shows 2 of the 4 that its ranks take"):
        topology.require_gpus(AMD, 4, tmp_path)
    topology.require_gpus(AMD, 1, tmp_path)
    if os.geteuid() != 0:
        device.chmod(0)
        with pytest.raises(Unavailable, match="may not be opened"):
            topology.require_gpus(AMD, 1, tmp_path)


def test_interfaces_are_found_in_the_order_of_the_patterns(tmp_path: Path) -> None:
    for name in ("lo", "eth0", "hsi0", "hsn1", "hsn0"):
        (tmp_path / "class/net" / name).mkdir(parents=True)
    assert topology.interfaces(["hsn*", "hsi*"], tmp_path) == ["hsn0", "hsn1"]
    assert topology.interfaces(["ib*"], tmp_path) == []


def test_the_network_is_configured_unless_the_user_has_done_so(tmp_path: Path) -> None:
    (tmp_path / "class/net/hsn0").mkdir(parents=True)
    plugin = tmp_path / "plugin"
    plugin.mkdir()
    (plugin / "librccl-net.so").touch()
    found = topology.network({"LD_LIBRARY_PATH": "/opt"}, ["hsn*"], [plugin], tmp_path)
    assert found == {
        "NCCL_SOCKET_IFNAME": "hsn0",
        "GLOO_SOCKET_IFNAME": "hsn0",
        "NCCL_NET_PLUGIN": f"{plugin}/librccl-net.so",
        "LD_LIBRARY_PATH": f"/opt:{plugin}",
    }
    assert topology.network({"NCCL_SOCKET_IFNAME": "eth0"}, ["hsn*"], [], tmp_path) == {
        "GLOO_SOCKET_IFNAME": "hsn0"
    }
