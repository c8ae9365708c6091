"""AMD GPUs from KFD and the PCI bus: MI50 to MI300, partitions, drivers, jobs of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.detect import detect
from launcher.host.facts import Gpu
from tests.support.hosts import MI50, MI250X, MI300A, MI300X, Tree, captured

# --- captured hosts


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


# --- built hosts


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


# --- small rules
