"""Hosts and the plan that each gets: image, devices and the one visible-devices variable.

Trees are written as the kernels write them; five captured hosts are read where they are at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from aam.contract.errors import AamError
from aam.contract.gpus import CHECK_REPORTS
from launcher.detect import detect
from launcher.host.facts import Host, NativeStack
from launcher.plan.assembly import Plan, assemble_plan
from launcher.plan.decision import decide as choose
from tests.launcher.test_plan import PRETRAIN
from tests.support.decisions import APPTAINER, inputs_of
from tests.support.hosts import (
    MI25,
    MI50,
    MI100,
    MI210,
    MI250X,
    MI300A,
    MI300X,
    NAVI22,
    PHOENIX,
    RX7900,
    Tree,
    captured,
    write,
)
from tests.support.launches import parse

MI308X = (90402, 0x74A2)
MI300X_VF = (90402, 0x74B5)  # the function that SR-IOV gives to a guest
MI350X = (90500, 0x75A0)
MI355X = (90500, 0x75A3)
RX9070 = (120001, 0x7550)
STRIX_HALO = (110501, 0x1586)
A100, H100, B200, V100, K80, RTX5090 = 0x20B2, 0x2330, 0x2901, 0x1DB1, 0x102D, 0x2B85
B300, GB10 = 0x3182, 0x2E12
Make = Callable[[Tree], Tree]


@dataclass(frozen=True)
class Case:
    """A host and its plan: the image, or the text of the refusal; render minors or GPU numbers."""

    make: Make | str
    image: str = ""
    refused: str = ""
    devices: tuple[int, ...] | None = None
    variable: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


def amd(*kinds: tuple[int, int], driver: str | None = None, **options: int) -> Make:
    def make(tree: Tree) -> Tree:
        tree.cpu().amd_driver(driver)
        for number, kind in enumerate(kinds, 1):
            tree.amd(kind, number, minor=127 + number, **options)
        return tree

    return make


def partitions(kind: tuple[int, int], cards: int, each: int, mode: str, memory: str) -> Make:
    """Cards that are cut into devices of one unique_id, as DPX, TPX and CPX list them."""

    def make(tree: Tree) -> Tree:
        tree.cpu().amd_driver("6.14.14")
        for card in range(cards):
            for part in range(each):
                tree.amd(kind, 2, domain=card, function=part, minor=128 + card * each + part,
                         unique=0x1000 + card)  # fmt: skip
            tree.partition(f"{card:04x}:02:00.0", mode, memory)
        return tree

    return make


def nvidia(*devices: int, driver: str = "580.65.06", mig: tuple[str, ...] = ()) -> Make:
    def make(tree: Tree) -> Tree:
        for number, device in enumerate(devices):
            tree.nvidia(device, number + 1, number, f"NVIDIA {device:x}", mig=mig)
        return tree.nvidia_driver(driver)

    return make


def both(first: Make, second: Make) -> Make:
    return lambda tree: second(first(tree))


def passed_through(tree: Tree) -> Tree:
    """Two MI210 on the bus of a host, both held by vfio-pci for guests."""
    for bus in (1, 2):
        address = f"0000:{bus:02x}:00.0"
        tree.pci(address, 0x1002, 0x740F, 0x038000)
        write(tree.root / "sys/bus/pci/devices" / address / "uevent", "DRIVER=vfio-pci\n")
    return tree


def jetson(tree: Tree) -> Tree:
    write(tree.root / "proc/device-tree/compatible", "nvidia,p3737-0000\0nvidia,tegra234\0")
    return tree.recorded(machine="aarch64")


def wsl(tree: Tree) -> Tree:
    tree.pci("0000:00:00.0", 0x1414, 0x008E, 0x030200)  # Microsoft's virtual adapter
    write(tree.root / "dev/dxg", "")
    write(tree.root / "usr/lib/wsl/lib/libcuda.so.1", "")
    return tree


def container(tree: Tree) -> Tree:
    """A container in a container: sysfs shows four GPUs, /dev has two of them."""
    amd(MI300A, MI300A, MI300A, MI300A)(tree)
    nodes = ("/dev/kfd", "/dev/dri/renderD129", "/dev/dri/renderD131")
    known = {path: {"gid": 44, "group": None, "mode": 0o660, "access": True} for path in nodes}
    return tree.recorded(nodes=known, user={"uid": 5, "gid": 5, "groups": [44]})


def on_arm(make: Make) -> Make:
    return lambda tree: make(tree).recorded(machine="aarch64")


def confined(tree: Tree) -> Tree:
    """A job with the last two of four GPUs: the kernel refuses the nodes of the others."""
    tree.cpu().amd_driver("6.10.5")
    for number in range(4):
        tree.amd(MI300A, 2, domain=number, minor=128 + 8 * number, readable=number > 1)
    return tree


ROCR, CUDA = "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"
UUID = "GPU-0000000{}-0000-0000-0000-000000000000"
CASES: dict[str, Case] = {
    "4 x MI300A, SPX": Case(amd(*4 * [MI300A]), "rocm64", devices=(128, 129, 130, 131),
                            variable="0,1,2,3"),
    "MI300A, ROCm 6.3's driver": Case(amd(MI300A, driver="6.10.5"), "rocm64", devices=(128,)),
    "MI300A, ROCm 6.2's driver": Case(amd(MI300A, driver="6.8.5"), "rocm64", devices=(128,)),
    "MI300A, ROCm 6.1's driver": Case(amd(MI300A, driver="6.7.0"), "rocm64"),
    "MI300A, ROCm 6.0's driver": Case(amd(MI300A, driver="6.3.6"), "rocm62", devices=(128,)),
    "MI300A, the driver of release 30.30": Case(amd(MI300A, driver="6.16.13"), "rocm64"),
    "MI300A, a driver that no table has": Case(amd(MI300A, driver="6.19.0"), "rocm64"),
    "MI300A, TPX": Case(partitions(MI300A, 4, 3, "TPX", "NPS1"), "rocm64",
                        devices=tuple(range(128, 140))),
    "MI300A, CPX": Case(partitions(MI300A, 4, 6, "CPX", "NPS1"), "rocm64",
                        devices=tuple(range(128, 152))),
    "MI308X, CPX and NPS4": Case(partitions(MI308X, 2, 4, "CPX", "NPS4"), "rocm64",
                                 devices=tuple(range(128, 136))),
    "MI308X, two partitions masked": Case(partitions(MI308X, 2, 4, "CPX", "NPS4"), "rocm64",
                                          devices=(129, 133), variable="1,0",
                                          variables={ROCR: "5,1"}),
    "MI300X in a guest": Case(amd(MI300X_VF), "rocm64", devices=(128,), variable="0"),
    "8 x MI300X": Case(amd(*8 * [MI300X]), "rocm64", devices=tuple(range(128, 136))),
    "MI355X": Case(amd(MI355X, driver="6.16.13"), "rocm72", devices=(128,)),
    "MI350X": Case(amd(MI350X), "rocm72"),
    "MI350X, ROCm 7.0's driver": Case(amd(MI350X, driver="6.14.14"), "rocm72"),
    # The reason is that of the image that comes nearest: its PyTorch is compiled for the GPU.
    "MI350X, ROCm 6.3's driver": Case(amd(MI350X, driver="6.10.5"), refused=r"1 x MI350X .gfx950.; "
                                      "rocm72: driver 6.10.5 .*not 7.2"),
    "MI355X, ROCm 6.4's driver": Case(amd(MI355X, driver="6.12.12"),
                                      refused="not compiled for gfx950|supports ROCm"),
    "MI250X": Case(amd(MI250X, MI250X), "rocm72", devices=(128, 129)),
    "MI210 in a job": Case(amd(*4 * [MI210]), "rocm72", devices=(129, 130), variable="0,1",
                           variables={ROCR: "1,2", "SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "1,2"}),
    "MI210, ROCm 5.7's driver": Case(amd(MI210, driver="6.2.4"), "rocm60"),
    "MI100": Case(amd(MI100), "rocm72", devices=(128,)),
    # rocBLAS has kernels for gfx900, which an old kernel does not state, and gfx906 up to 6.3.
    "MI50": Case(amd(MI50, MI50), "rocm63", devices=(128, 129)),
    "MI50, ROCm 6.2's driver": Case(amd(MI50, driver="6.8.5"), "rocm63"),
    "MI50, ROCm 6.3's driver": Case(amd(MI50, driver="6.10.5"), "rocm63"),
    "MI50, ROCm 6.0's driver: no options against faults": Case(amd(MI50, driver="6.3.6"), "rocm60"),
    "MI25": Case(amd(MI25, old_kernel=True), "rocm63", devices=(128,)),
    "RX 7900": Case(amd(RX7900), "rocm72", devices=(128,)),
    "RX 9070": Case(amd(RX9070), "rocm72", devices=(128,)),
    "RX 9070, ROCm 6.3's driver": Case(amd(RX9070, driver="6.10.5"), "rocm64"),
    "RX 6700": Case(amd(NAVI22), refused=r"\); no image has code for gfx1031; add"),
    "integrated and discrete": Case(amd(PHOENIX, RX7900), "rocm72", devices=(129,), variable="0"),
    "integrated alone": Case(amd(PHOENIX), "cpu", devices=()),
    "Strix Halo": Case(amd(STRIX_HALO), "rocm72", devices=(128,), variable="0"),
    "Strix Halo and discrete": Case(amd(STRIX_HALO, RX7900), "rocm72", devices=(129,),
                                    variable="0"),
    "MI300A and MI50": Case(amd(MI50, MI300A), "rocm64", devices=(129,), variable="0"),
    "a job with two of four": Case(confined, "rocm64", devices=(144, 152), variable="0,1"),
    "a container in a container": Case(container, "rocm64", devices=(129, 131), variable="0,1"),
    "MI210 held for guests": Case(passed_through, refused="vfio-pci holds it for a virtual"),
    "B200": Case(nvidia(B200), "cuda132", variable=UUID.format(1)),
    "B300": Case(nvidia(B300), "cuda132", variable=UUID.format(1)),
    "B300, CUDA 12.8's driver": Case(nvidia(B300, driver="570.124.06"), "cuda128"),
    "P100, sm_60": Case(nvidia(0x15F8, driver="535.54.03"), "cuda"),
    "RTX 4090 runs code for sm_86": Case(nvidia(0x2684, driver="555.42.02"), "cuda128"),
    "A100, CUDA 12.0's driver": Case(nvidia(A100, driver="525.60.13"), "cuda128"),
    "RTX 5090": Case(nvidia(RTX5090), "cuda132"),
    "H100, CUDA 12's driver": Case(nvidia(H100, driver="550.54.15"), "cuda128"),
    "A100, an old driver": Case(nvidia(A100, driver="470.82"), refused="needs driver .*or later .*"
                                "has 470.82; install a newer GPU driver"),
    "V100": Case(nvidia(V100), "cuda128"),
    "K80": Case(nvidia(K80, driver="470.82"), refused="no image has code for sm_37; add"),
    "A100 beside a GT 1030": Case(nvidia(0x1D01, A100), "cuda132", variable=UUID.format(2)),
    "A100 with MIG": Case(nvidia(A100, mig=("gi1/ci0", "gi2/ci0")), "cuda132"),
    "two A100, one masked": Case(nvidia(A100, A100), "cuda132", variable=UUID.format(2),
                                 variables={CUDA: "1"}),
    "AMD and NVIDIA": Case(both(amd(MI300A), nvidia(A100)),
                           refused="choose with --image rocm64 or cuda132"),
    "AMD and an NVIDIA that is too old": Case(both(amd(MI300A), nvidia(K80)), "rocm64",
                                              devices=(128,)),
    "NVIDIA and an integrated AMD": Case(both(amd(PHOENIX), nvidia(A100)), "cuda132",
                                         variable=UUID.format(1)),
    "two NVIDIA and an integrated AMD, one masked": Case(
        both(amd(PHOENIX), nvidia(A100, A100)), "cuda132", variable=UUID.format(2),
        variables={CUDA: "1"}),
    "NVIDIA and an AMD with a wrong variable": Case(
        both(amd(MI300A), nvidia(A100)), "cuda132", variable=UUID.format(1),
        variables={ROCR: "3"}),
    "AMD with a wrong variable": Case(amd(MI300A), refused="'3' of ROCR_VISIBLE_DEVICES=3",
                                      variables={ROCR: "3"}),
    "Jetson": Case(jetson, refused="NVIDIA's builds of PyTorch for JetPack"),
    "WSL2": Case(wsl, refused="WSL2 offers it through /dev/dxg"),
    "Arm server": Case(on_arm(nvidia(H100)), "cuda132-aarch64", variable=UUID.format(1)),
    "Arm server with AMD": Case(on_arm(amd(MI210)),
                                refused="built for x86_64 and the processor is aarch64"),
    "DGX Spark": Case(on_arm(nvidia(GB10)), "cuda132-aarch64", variable=UUID.format(1)),
    "GH200": Case(on_arm(nvidia(0x2342)), "cuda132-aarch64"),
    "GB200": Case(on_arm(nvidia(0x2941)), "cuda132-aarch64"),
    "GB300": Case(on_arm(nvidia(0x31C2)), "cuda132-aarch64"),
    "GH200, an old driver": Case(on_arm(nvidia(0x2342, driver="560.28")),
                                 refused=r"1 x .*\(sm_.*cuda132-aarch64: .*needs driver 580"),
    "T4 on Arm": Case(on_arm(nvidia(0x1EB8)), refused=r"1 x .*\(sm_.*cuda132-aarch64: its PyTorch "
                      "was not compiled for sm_75"),
    "no GPU": Case(lambda tree: tree.cpu(), "cpu", devices=()),
    "captured: 4 x MI300A": Case("mi300a-4apu-spx", "rocm64", devices=(128, 136, 144, 152),
                                 variable="0,1,2,3"),
    "captured: 8 x MI210": Case("mi210-8gpu", "rocm72"),
    "captured: MI300X, CPX": Case("mi300x-cpx", "rocm64"),
    "captured: MI100": Case("mi100", "rocm72"),
    "captured: integrated": Case("phoenix-igpu", "cpu", devices=()),
}  # fmt: skip


def plan_of(host: Host) -> Plan:
    inputs = inputs_of(host, parse(PRETRAIN))
    return assemble_plan(inputs, choose(inputs))


def detected(case: Case, folder: Path) -> Host:
    if isinstance(case.make, str):
        host = detect(captured(case.make))
    else:
        host = detect(case.make(Tree(folder)).root, case.variables or None)
    return replace(host, engines=(APPTAINER,))


@pytest.mark.parametrize("name", CASES)
def test_a_host_gives_the_expected_plan(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    if case.refused:
        with pytest.raises(AamError, match=case.refused):
            plan_of(detected(case, tmp_path))
        return
    plan = plan_of(detected(case, tmp_path))
    assert plan.image == case.image
    if case.devices is not None:
        minors = [path for path in plan.devices if path != "/dev/kfd"]
        assert minors == [f"/dev/dri/renderD{minor}" for minor in case.devices]
    given = {k: v for k, v in plan.variables.items() if k.endswith("VISIBLE_DEVICES")}
    assert len(given) <= 1
    if case.variable is not None:
        assert list(given.values()) == [case.variable]


@pytest.mark.parametrize(("name", "mounted"), [("MI50", True), ("no GPU", False)])
def test_the_folder_of_check_reports_is_mounted_for_a_gpu(
    tmp_path: Path, name: str, mounted: bool
) -> None:
    host = detected(CASES[name], tmp_path)
    inputs = inputs_of(host, parse(PRETRAIN), reports="/r")
    plan = assemble_plan(inputs, choose(inputs))
    writable = {mount.source for mount in plan.mounts if mount.writable}
    assert (CHECK_REPORTS in plan.variables) is mounted
    assert ("/r" in writable, "/r" in plan.outputs) == (mounted, mounted)


@pytest.mark.parametrize("name", ["Jetson", "WSL2"])
def test_pytorch_of_the_host_itself_is_no_image(tmp_path: Path, name: str) -> None:
    """A native PyTorch for CUDA may use a GPU that no image can."""
    host = replace(detected(CASES[name], tmp_path), root="/")
    stack = NativeStack("/usr/bin/python3", (), False, "2.7.0", "nvidia")
    inputs = inputs_of(host, parse(PRETRAIN), built=(), native=stack)
    assert choose(inputs).engine == "native"


def test_ranks_that_share_memory_count_the_gpus_of_the_whole_host(tmp_path: Path) -> None:
    """Apptainer gives them the host's /dev, in which nothing hides the GPUs of other jobs."""
    variables = {ROCR: "2,3", "SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "2,3"}
    for ranks, nodes, shares in ((1, 1, False), (2, 2, False), (2, 1, True)):
        step = {"SLURM_STEP_NUM_TASKS": str(ranks), "SLURM_STEP_NUM_NODES": str(nodes)}
        host = detected(Case(amd(*4 * [MI210]), variables={**variables, **step}), tmp_path)
        plan = plan_of(host)
        assert (plan.host_devices, plan.variables[ROCR]) == (shares, "2,3" if shares else "0,1")
