"""Topology of a node, read from a made tree of sysfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from aam.contract.errors import Unavailable
from launcher.detect import detect
from launcher.slurm import topology
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
    found = detect(tmp_path).gpus
    assert [gpu.pci for gpu in found] == addresses
    near = [topology.cpus_near(gpu.pci, sys) for gpu in found]
    assert near == [{2 * number, 2 * number + 1, 96 + number} for number in range(4)]
    assert topology.cpus_near("0000:00:00.0", tmp_path / "none") == set()


def test_a_job_without_its_gpus_is_refused(tmp_path: Path) -> None:
    tree = Tree(tmp_path).cpu()
    sentence = "The job needs GPUs: .* shows {} of the 4 that its ranks take; ask Slurm for GPUs"
    with pytest.raises(Unavailable, match=sentence.format(0)):
        topology.require_gpus(detect(tmp_path), "amd", 4)
    for domain in range(2):
        tree.amd(MI300A, 2, domain=domain)
    with pytest.raises(Unavailable, match=sentence.format(2)):
        topology.require_gpus(detect(tmp_path), "amd", 4)
    topology.require_gpus(detect(tmp_path), "amd", 2)
    with pytest.raises(Unavailable, match="shows 0 of the 1"):
        topology.require_gpus(detect(tmp_path), "nvidia", 1)


def test_gpus_that_the_site_does_not_state_stop_a_job_for_the_processor(tmp_path: Path) -> None:
    tree = Tree(tmp_path).cpu()
    topology.require_no_gpus(detect(tmp_path), "slurm")
    tree.amd(MI300A, 2)
    sentence = "would stay idle: .* shows 1 x MI300A, site slurm states none; state `vendor`"
    with pytest.raises(Unavailable, match=sentence):
        topology.require_no_gpus(detect(tmp_path), "slurm")


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
    found = topology.network({}, ["hsn*"], [plugin], tmp_path)
    assert found == {
        "NCCL_SOCKET_IFNAME": "hsn0",
        "GLOO_SOCKET_IFNAME": "hsn0",
        "NCCL_NET_PLUGIN": f"{plugin}/librccl-net.so",
    }
    assert topology.network({"NCCL_SOCKET_IFNAME": "eth0"}, ["hsn*"], [], tmp_path) == {
        "GLOO_SOCKET_IFNAME": "hsn0"
    }
