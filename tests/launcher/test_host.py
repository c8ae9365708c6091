"""Detection of a host: several vendors, captures in folders and tars, reading within bounds."""

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
from tests.support.hosts import MI50, MI300A, NODES, Tree, write


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


def endless(folder: Path, kind: str) -> Path:
    """A path whose content never ends, or never begins."""
    if kind == "device":
        return Path("/dev/zero")
    os.mkfifo(folder / "fifo")
    return folder / "fifo"


@pytest.mark.parametrize("kind", ["device", "fifo"])
def test_only_regular_files_are_read(tmp_path: Path, kind: str) -> None:
    path = endless(tmp_path, kind)
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
