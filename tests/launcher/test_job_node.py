"""Node of a job: topology from a made tree of sysfs, verified copies of inputs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from aam.contract.errors import CannotCreate
from launcher.detect import detect
from launcher.slurm import node
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
        folder = sys / f"devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{2 * number}-{2 * number + 1},{96 + number}\n")
    found = detect(tmp_path).gpus
    assert [gpu.pci for gpu in found] == addresses
    near = [node.cpus_near(gpu.pci, sys) for gpu in found]
    assert near == [{2 * number, 2 * number + 1, 96 + number} for number in range(4)]
    assert node.cpus_near("0000:00:00.0", tmp_path / "none") == set()


def test_interfaces_are_found_in_the_order_of_the_patterns(tmp_path: Path) -> None:
    for name in ("lo", "eth0", "hsi0", "hsn1", "hsn0"):
        (tmp_path / "class/net" / name).mkdir(parents=True)
    assert node.interfaces(["hsn*", "hsi*"], tmp_path) == ["hsn0", "hsn1"]
    assert node.interfaces(["ib*"], tmp_path) == []


def test_the_network_is_configured_unless_the_user_has_done_so(tmp_path: Path) -> None:
    (tmp_path / "class/net/hsn0").mkdir(parents=True)
    plugin = tmp_path / "plugin"
    plugin.mkdir()
    (plugin / "librccl-net.so").touch()
    found = node.network({}, ["hsn*"], [str(plugin)], tmp_path)
    assert found == {
        "NCCL_SOCKET_IFNAME": "hsn0",
        "GLOO_SOCKET_IFNAME": "hsn0",
        "NCCL_NET_PLUGIN": f"{plugin}/librccl-net.so",
    }
    assert node.network({"NCCL_SOCKET_IFNAME": "eth0"}, ["hsn*"], [], tmp_path) == {
        "GLOO_SOCKET_IFNAME": "hsn0"
    }


# --- staging


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    """Two files with names that need quoting, and a folder."""
    argv = ["stat", "--file-system", "--format=%T", str(tmp_path)]
    if subprocess.run(argv, capture_output=True, text=True).stdout.strip() in ("tmpfs", "ramfs"):
        pytest.skip("temporary files are in memory here, and nothing is staged to memory")
    paths = [tmp_path / "a b", tmp_path / "c,d"]
    for path in paths:
        path.write_text(path.name)
    (tmp_path / "folder").mkdir()
    return [*paths, tmp_path / "folder"]


def test_files_are_copied_once_and_folders_are_not(inputs: list[Path], tmp_path: Path) -> None:
    copies = node.stage(inputs, tmp_path / "staged", 1)
    assert [copy.read_text() for copy in copies.values()] == ["a b", "c,d"]
    assert list(copies) == inputs[:2]
    inodes = [copy.stat().st_ino for copy in copies.values()]
    # Another rank of the node, and the next start of the job, use the same copies.
    again = node.stage(inputs, tmp_path / "staged", 1)
    assert again == copies
    assert [copy.stat().st_ino for copy in again.values()] == inodes
    inputs[1].write_text("c,d and more")
    changed = node.stage(inputs, tmp_path / "staged", 1)
    assert changed[inputs[1]].read_text() == "c,d and more"


def test_inputs_that_are_too_large_stay(
    inputs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with inputs[0].open("r+b") as stream:
        stream.truncate(2 * node.GB)
    assert node.stage(inputs, tmp_path / "staged", 1) == {}
    assert "inputs of 2 GB are not copied; --stage is 1 GB" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_a_disk_that_is_too_small_keeps_the_inputs_where_they_are(
    inputs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("no mkfs.ext4")
    disk, image = tmp_path / "disk", tmp_path / "image"
    disk.mkdir()
    with image.open("wb") as stream:
        stream.truncate(4 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", str(image), str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("no loop device")
    try:
        inputs[0].write_bytes(bytes(8 << 20))
        assert node.stage(inputs, disk / "staged", 1) == {}
        assert "they are not copied" in capsys.readouterr().err
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_copy_that_cannot_be_written_is_named(inputs: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "staged"
    folder.mkdir()
    facts = inputs[0].stat()
    (folder / f"0-{facts.st_size}-{facts.st_mtime_ns}.part").mkdir()
    with pytest.raises(CannotCreate, match="An input cannot be staged: '.*a b' to"):
        node.stage(inputs, folder, 1)
