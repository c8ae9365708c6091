"""NVIDIA GPUs from procfs: chips, MIG instances, drivers."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.detect import detect
from launcher.gpus import VENDORS
from launcher.host.facts import GpuInstance
from launcher.host.tree import open_tree
from tests.support.hosts import Tree
from tests.support.launches import program


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
