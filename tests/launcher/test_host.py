"""Detection of a host and its GPUs: captures in folders and tars, reading within bounds."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Literal

import pytest

from aam.contract.errors import MissingInput
from launcher.detect import detect
from launcher.gpus import VENDORS
from launcher.host.facts import Gpu, GpuInstance
from launcher.host.tree import open_tree
from tests.support.hosts import MI50, MI250X, MI300A, MI300X, NODES, Tree, captured, write
from tests.support.launches import program


def test_both_vendors_and_a_server_vga(tmp_path: Path) -> None:
    tree = Tree(tmp_path).amd(MI50, 0x03).nvidia(0x1DB1, 0x41, 0, "Tesla V100-SXM2-16GB")
    tree.pci("0000:65:00.0", 0x1A03, 0x2000, 0x030000)
    host = detect(tree.nvidia_driver("470.1").root)
    assert [(gpu.vendor, gpu.arch) for gpu in host.gpus] == [("amd", "gfx906"), ("nvidia", "sm_70")]
    assert "0000:65:00.0 1a03:2000 0300" in host.bus


def test_an_empty_host(tmp_path: Path) -> None:
    host = detect(Tree(tmp_path).root)
    assert host.gpus == host.drivers == host.engines == ()
    assert host.slurm is host.user is None


# --- where it is read from


def test_a_tar_says_the_same_as_a_folder(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "h").cpu().amd(MI300A, 2).amd(MI300A, 2, domain=1, readable=False)
    tree.recorded(environment={"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0-1,3"})
    with tarfile.open(tmp_path / "h.tar.gz", "w:gz") as archive:
        archive.add(tree.root, arcname="some/where")
    folder, tar = detect(tree.root), detect(tmp_path / "h.tar.gz")
    assert tar.gpus == folder.gpus
    assert tar.slurm == folder.slurm
    assert tar.slurm is not None
    assert tar.slurm.gpus == (0, 1, 3)


def test_a_hostile_tar_writes_nothing_and_is_read(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "h.tar", "w") as archive:
        for name in ("../../evil", "/etc/passwd", "sys/../../x", "proc/version"):
            archive.addfile(tarfile.TarInfo(name))
    before = set(tmp_path.rglob("*"))
    assert detect(tmp_path / "h.tar").gpus == ()
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("content", [b"", b"not a tar", b"\x1f\x8b broken"])
def test_a_capture_that_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "h.tar").write_bytes(content)
    with pytest.raises(MissingInput, match=r"h\.tar"):
        detect(tmp_path / "h.tar")
    with pytest.raises(MissingInput, match="nothing"):
        detect(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingInput, match="neither"):
        detect(tmp_path / "empty")


def test_this_host() -> None:
    host = detect(environment={"PATH": os.environ["PATH"]})
    assert host.live
    assert host.user is not None
    assert host.user.uid == os.geteuid()
    assert host.kernel == os.uname().release


def test_nothing_but_files_is_touched(tmp_path: Path) -> None:
    """Detection starts no program."""
    code = (
        "import sys; from launcher.detect import detect; started = []\n"
        "starts = ('subprocess.Popen', 'os.exec', 'os.posix_spawn', 'os.system', 'os.fork')\n"
        "sys.addaudithook(lambda event, _: started.append(event) if event in starts else None)\n"
        "detect(); print(started)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# --- bounded reads and damaged captures


@pytest.mark.parametrize("name", ["/dev/zero", "fifo"])
def test_only_regular_files_are_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(MissingInput, match="not a regular file"):
        detect(path)
    tree = Tree(tmp_path / "h").cpu().amd(MI300A, 2).amd_driver("6.10.5")
    version = tree.root / "sys/module/amdgpu/version"
    version.unlink()
    version.symlink_to(path)
    (driver,) = detect(tree.root).drivers
    assert driver.version is None


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz"])
def test_a_tar_is_bounded_whatever_it_unpacks_to(tmp_path: Path, suffix: str) -> None:
    kinds: dict[str, Literal["w", "w:gz", "w:bz2", "w:xz"]] = {
        "": "w", ".gz": "w:gz", ".bz2": "w:bz2", ".xz": "w:xz"
    }  # fmt: skip
    for size, refused in ((2 << 20, False), (65 << 20, True)):
        file = tmp_path / f"{size}.tar{suffix}"
        with tarfile.open(file, kinds[suffix]) as archive:
            member = tarfile.TarInfo("proc/large")
            member.size = size
            archive.addfile(member, io.BytesIO(bytes(size)))
        if refused:
            with pytest.raises(MissingInput, match="more than 64 MiB"):
                detect(file)
        else:
            with pytest.raises(MissingInput, match="holds neither"):  # the member is left out
                detect(file)


def test_a_tar_with_very_deep_names_is_read(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "h.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("proc/" + "a/" * 100_000))
        archive.addfile(tarfile.TarInfo("proc/" + "9" * 3000))
        archive.addfile(tarfile.TarInfo("sys/class/kfd/kfd/topology/nodes/²/properties"))
    assert detect(tmp_path / "h.tar").gpus == ()


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"user": {"uid": 1, "gid": 1}}', "user has no 'groups'"),
        ('{"environment": {"A": 1}}', "environment.A is 1, expected text"),
        ('{"engines": [{"name": "podman"}]}', "engines[0] has no 'path'"),
        (
            '{"nodes": {"/dev/kfd": {"mode": "rw"}}}',
            "nodes./dev/kfd.mode is 'rw', expected a whole number",
        ),
    ],
)
def test_a_damaged_manifest_is_one_sentence(tmp_path: Path, content: str, named: str) -> None:
    tree = Tree(tmp_path).cpu().amd(MI300A, 2)
    write(tree.root / "aam-capture.json", content)
    with pytest.raises(MissingInput, match="A damaged capture") as caught:
        detect(tree.root)
    assert named in str(caught.value)


def test_files_of_a_capture_that_hold_nonsense(tmp_path: Path) -> None:
    tree = Tree(tmp_path).cpu().amd(MI300A, 2).nvidia(0x20B2, 1, 0, "A100").nvidia_driver("535.1")
    tree.recorded(environment={"SLURM_JOB_ID": "1", "SLURM_JOB_GPUS": "0-99999999999",
                               "SLURM_NTASKS": "²"})  # fmt: skip
    write(tree.root / NODES / "7/properties", "simd_count " + "9" * 5000 + "\n")
    write(tree.root / "sys/bus/pci/devices/0000:01:00.0/device", "no number\n")
    information = tree.root / "proc/driver/nvidia/gpus/0000:01:00.0/information"
    write(information, "Model: A100\nDevice Minor: N/A\n")
    host = detect(tree.root)
    assert [(gpu.vendor, gpu.arch) for gpu in host.gpus] == [("amd", "gfx942"), ("nvidia", None)]
    assert host.slurm is not None
    assert (host.slurm.gpus, host.slurm.tasks) == (None, 1)


# --- AMD GPUs: MI50 to MI300, partitions, jobs of others


@pytest.mark.parametrize(
    ("name", "count", "arch", "product", "first"),
    [("mi300a-4apu-spx", 4, "gfx942", "MI300A", 4), ("mi210-8gpu", 8, "gfx90a", "MI210", 2),
     ("mi300x-cpx", 63, "gfx942", "MI300X", 2), ("mi100", 1, "gfx908", "MI100", 0),
     ("phoenix-igpu", 1, "gfx1103", "AMD gfx1103", 1)],
)  # fmt: skip
def test_captured_hosts(name: str, count: int, arch: str, product: str, first: int) -> None:
    gpus = detect(captured(name)).gpus
    assert [(gpu.arch, gpu.product) for gpu in gpus] == [(arch, product)] * count
    indices = [gpu.index for gpu in gpus]
    assert (indices, indices[0]) == (sorted(indices), first)
    assert len({gpu.nodes for gpu in gpus}) == count
    assert all(gpu.integrated == (name == "phoenix-igpu") for gpu in gpus)


def test_cards_of_captured_hosts() -> None:
    # location_id is 512 on all four MI300A: only the domain differs
    apus = detect(captured("mi300a-4apu-spx")).gpus
    assert [gpu.pci for gpu in apus] == [f"000{n}:02:00.0" for n in range(4)]
    assert [gpu.nodes[0][-3:] for gpu in apus] == ["128", "136", "144", "152"]
    partitions = detect(captured("mi300x-cpx")).gpus
    assert len({gpu.card for gpu in partitions}) == len({gpu.uuid for gpu in partitions}) == 8


def test_a_radeon_without_a_driver_is_named(tmp_path: Path) -> None:
    """A table has it, so it is no display of a desktop that nobody computes on."""
    tree = Tree(tmp_path).pci("0000:03:00.0", 0x1002, 0x73BF, 0x030000)
    (gpu,) = detect(tree.root).gpus
    assert (gpu.arch, gpu.product, gpu.driven) == ("gfx1030", "Radeon RX 6800, 6900", False)


@pytest.mark.parametrize("version", ["6.8.5", None])  # None: that of the kernel itself
def test_mi50_and_its_driver(tmp_path: Path, version: str | None) -> None:
    host = detect(Tree(tmp_path).cpu().amd(MI50, 0x03).amd_driver(version).root)
    assert [(g.arch, g.product) for g in host.gpus] == [("gfx906", "MI50")]
    driver = host.driver("amd")
    assert driver is not None
    assert driver.version == version
    assert version is None or driver.source == "/sys/module/amdgpu/version"


def test_more_than_ten_nodes_keep_their_order(tmp_path: Path) -> None:
    tree = Tree(tmp_path).cpu().cpu().cpu().cpu()
    for bus in range(8):  # MI250X: 4 processors and 8 dies
        tree.amd(MI250X, 0xC1 + bus)
    assert [gpu.index for gpu in detect(tree.root).gpus] == list(range(4, 12))


def test_an_old_kernel_lacks_keys(tmp_path: Path) -> None:
    (gpu,) = detect(Tree(tmp_path).cpu().amd(MI50, 0x03, old_kernel=True).root).gpus
    assert (gpu.arch, gpu.pci, gpu.uuid) == ("gfx906", "0000:03:00.0", None)
    unknown = Tree(tmp_path / "2").amd((0, 0x1234), 0x03, old_kernel=True)
    assert detect(unknown.root).gpus[0].arch is None


def test_nodes_of_other_jobs_are_not_ours_and_not_fatal(tmp_path: Path) -> None:
    tree = Tree(tmp_path).cpu()
    for number in range(8):
        tree.amd(MI300A, 0x02, domain=number, readable=number >= 4)
    host = detect(tree.root)
    assert [gpu.readable for gpu in host.gpus] == [False] * 4 + [True] * 4
    assert all(gpu.driven for gpu in host.gpus)  # not taken for undriven ones from the PCI bus


def test_partitions_of_a_card(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for part in range(8):
        tree.amd(MI300X, 0x05, function=part, unique=7)
    tree.partition("0000:05:00.0", "CPX", "NPS4")
    host = detect(tree.root)
    assert {(g.card, g.uuid, g.mode, g.memory_mode) for g in host.gpus} == {
        ("0000:05:00", "GPU-0000000000000007", "CPX", "NPS4")
    }
    assert [gpu.pci for gpu in host.gpus] == [f"0000:05:00.{part}" for part in range(8)]


def test_garbage_in_properties_is_skipped(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree._node("simd_count 4\nnonsense\nname text\ngfx_target_version 90402\ndomain -1\n\n")
    (gpu,) = detect(tree.root).gpus
    assert (gpu.arch, gpu.nodes) == ("gfx942", ())


MODES = {"gid": 44, "group": "video", "mode": 0o660}


def partly(tmp_path: Path, nodes: dict[str, dict[str, object]]) -> tuple[Gpu, ...]:
    """Two A100, one of them cut in two, as somebody of the group video sees them."""
    tree = Tree(tmp_path).nvidia(0x20B2, 0x01, 0, "A100", mig=["gi1/ci0", "gi2/ci0"])
    tree.nvidia(0x20B2, 0x81, 1, "A100").nvidia_driver("535.54.03")
    tree.recorded(nodes=nodes, user={"uid": 5, "gid": 5, "groups": [44]})
    return detect(tree.root).gpus


def test_a_device_cgroup_hides_a_card_that_permissions_would_open(tmp_path: Path) -> None:
    cut, whole = partly(tmp_path, {
        "/dev/nvidia0": {**MODES, "access": False}, "/dev/nvidia1": {**MODES, "access": True},
    })  # fmt: skip
    assert (cut.readable, whole.readable) == (False, True)
    # without the group it is a matter of permission, which somebody can give
    nodes = {f"/dev/nvidia{n}": {**MODES, "gid": 9, "access": False} for n in (0, 1)}
    assert [gpu.readable for gpu in partly(tmp_path, nodes)] == [True, True]
    # a container that was given one card has no node of the other
    one = partly(tmp_path, {"/dev/nvidia1": {**MODES, "access": True}})
    assert [gpu.readable for gpu in one] == [False, True]


def test_mig_instances_of_other_jobs_are_not_ours(tmp_path: Path) -> None:
    caps = {
        f"/dev/nvidia-caps/nvidia-cap{n}": {**MODES, "access": n >= 20} for n in (10, 11, 20, 21)
    }
    cards = {f"/dev/nvidia{n}": {**MODES, "access": True} for n in (0, 1)}
    cut, _ = partly(tmp_path, cards | caps)
    assert [part.place for part in cut.instances] == ["2/0"]


# --- NVIDIA GPUs from procfs


@pytest.mark.parametrize(("version", "is_open"), [("535.54.03", False), ("555.42.02", True)])
def test_nvidia_with_its_driver(tmp_path: Path, version: str, is_open: bool) -> None:
    """The open kernel module states its version elsewhere."""
    tree = Tree(tmp_path).nvidia(0x20B2, 0x81, 1, "NVIDIA A100-SXM4-80GB")
    tree.nvidia(0x20B2, 0x01, 0, "NVIDIA A100-SXM4-80GB", mig=["gi1/ci0", "gi2/ci0"])
    host = detect(tree.nvidia_driver(version, is_open).root)
    first, second = host.gpus
    assert (first.arch, first.mode) == ("sm_80", "MIG")
    caps = "/dev/nvidia-caps/nvidia-cap"
    assert first.instances == (
        GpuInstance(1, 0, (f"{caps}10", f"{caps}11")),
        GpuInstance(2, 0, (f"{caps}20", f"{caps}21")),
    )
    assert (second.arch, second.mode, second.nodes) == ("sm_80", None, ("/dev/nvidia1",))
    assert second.uuid == "GPU-00000081-0000-0000-0000-000000000000"
    driver = host.driver("nvidia")
    assert driver is not None
    assert driver.version == version


def test_a_chip_that_no_table_has_is_there_without_an_arch(tmp_path: Path) -> None:
    tree = Tree(tmp_path).nvidia(0xFFF0, 1, 0, "NVIDIA X1000").nvidia_driver("600.1")
    tree.pci("0000:02:00.0", 0x10DE, 0xFFF1, 0x030200)
    driven, idle = detect(tree.root).gpus
    assert (driven.product, driven.arch, driven.driven) == ("NVIDIA X1000", None, True)
    assert (idle.product, idle.arch, idle.driven) == ("NVIDIA 10de:fff1", None, False)


def test_a_capture_has_the_arch_of_a_new_chip(tmp_path: Path) -> None:
    tree = Tree(tmp_path).nvidia(0xFFF0, 1, 0, "X1000", mig=["gi1/ci0"]).nvidia_driver("600.1")
    tree.recorded(archs={"0000:01:00.0": "sm_140"})
    (gpu,) = detect(tree.root).gpus
    assert gpu.arch == "sm_140"
    assert [part.place for part in gpu.instances] == ["1/0"]


@pytest.mark.parametrize(("printed", "arch"), [("13.1", "sm_131"), ("[N/A]", None)])
def test_nvidia_smi_prints_the_capability_of_a_new_chip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, arch: str | None
) -> None:
    program(tmp_path / "nvidia-smi", f"echo '{printed}'")
    monkeypatch.setenv("PATH", str(tmp_path))
    tree = Tree(tmp_path / "h").nvidia(0xFFF0, 1, 0, "X1000").nvidia_driver("600.1")
    (gpu,) = VENDORS["nvidia"].gpus(open_tree(tree.root), live=True)
    assert gpu.arch == arch
