"""Selection of GPUs, of the image that fits them, and of the engine that starts it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from aam.contract.errors import NotPermitted, Unavailable
from launcher.config import catalog as configured
from launcher.config import read
from launcher.detect import detect
from launcher.engines import BUILDERS
from launcher.host.facts import DeviceNode, EngineFact, Host
from launcher.plan.catalog import SHIPPED
from launcher.plan.decision import decide as choose
from launcher.plan.inputs import BuiltImage
from tests.support.decisions import (
    APPTAINER,
    BUILT,
    NATIVE,
    PLAIN,
    decide,
    engine,
    inputs_of,
    name_of,
    why,
)
from tests.support.hosts import (
    MI25,
    MI50,
    MI100,
    MI210,
    MI300A,
    PHOENIX,
    RX7900,
    Tree,
    captured,
)

# --- captured hosts


def test_what_is_said_about_captured_hosts() -> None:
    phoenix = decide(detect(captured("phoenix-igpu")))
    assert "integrated" in why(phoenix, "image")
    mi100 = decide(detect(captured("mi100")))
    assert "Attention uses the slower math kernels" in str(mi100.findings[-1])


@pytest.mark.parametrize(
    ("name", "gpus", "module"),
    [
        ("pci-from-hwloc/corona", "8 x MI50", "amdgpu"),
        ("pci-from-hwloc/sierra", "4 x NVIDIA GV100", "nvidia"),
        ("pci-from-hwloc/tuo.SPX", "4 x MI300A", "amdgpu"),
    ],
)
def test_captured_hosts_without_a_driver_are_refused(name: str, gpus: str, module: str) -> None:
    host = detect(captured(name))
    with pytest.raises(Unavailable, match="The GPU driver is not loaded") as caught:
        decide(host)
    assert gpus in str(caught.value)
    assert f"modprobe {module}" in str(caught.value)
    assert "--device cpu" in str(caught.value)
    assert name_of(decide(host, use="never")) == name_of(decide(host, image="cpu")) == "cpu"


# --- built hosts


def test_of_several_kinds_the_best_supported_is_used(tmp_path: Path) -> None:
    tree = Tree(tmp_path).cpu().amd(MI100, 1).amd(MI100, 2).amd(MI210, 3).amd(PHOENIX, 4)
    choice = decide(detect(tree.root))
    assert [gpu.product for gpu in choice.gpus] == ["MI210"]  # MI100 has no fused attention
    left = [(d.value, d.why) for d in choice.decisions if d.subject == "left out"]
    assert left == [
        (
            "2 x MI100 (gfx908)",
            "a run uses GPUs of one model, and rocm72 runs on 1 x MI210 (gfx90a)",
        )
    ]


@pytest.mark.parametrize(
    ("version", "known"),
    [("6.19.0", "amdgpu 6.19.0 is not in the catalog"), (None, "amdgpu states no version")],
)
def test_an_unknown_driver_is_reported_as_unknown(
    tmp_path: Path, version: str | None, known: str
) -> None:
    choice = decide(detect(Tree(tmp_path).cpu().amd(MI300A, 3).amd_driver(version).root))
    found = next(str(f) for f in choice.findings if "driver supports are unknown" in f.cause)
    assert known in found
    assert "no image is refused because of it" in found
    assert "whose ROCm releases are unknown" in why(choice, "image")


def test_an_image_whose_blas_library_has_no_kernels_says_that(tmp_path: Path) -> None:
    host = detect(Tree(tmp_path).cpu().amd(MI25, 3, old_kernel=True).root)
    for image in ("rocm72", "rocm64"):
        with pytest.raises(Unavailable, match="PyTorch has kernels for gfx900, its BLAS .* none"):
            decide(host, image=image)


# --- processors


def test_an_image_for_another_processor_is_refused(tmp_path: Path) -> None:
    refused = "built for x86_64 and the processor is aarch64"
    tree = Tree(tmp_path / "nvidia").nvidia(0x2342, 1, 0, "GH200").nvidia_driver("580.65.06")
    nearest = f"{refused}; the nearest fit is --image cuda132-aarch64"
    on_arm = detect(tree.recorded(machine="aarch64").root)
    with pytest.raises(Unavailable, match=nearest):
        decide(on_arm, image="cuda130")
    assert decide(on_arm, use="never").gpus == ()
    tree = Tree(tmp_path / "x86_64").nvidia(0x2342, 1, 0, "H100").nvidia_driver("580.65.06")
    with pytest.raises(Unavailable, match="built for aarch64 and the processor is x86_64"):
        decide(detect(tree.root), image="cuda132-aarch64")
    tree = Tree(tmp_path / "amd").cpu().amd(MI210, 3).amd_driver("6.12.12")
    nodes: dict[str, dict[str, object]] = {"/dev/kfd": {}, "/dev/dri/renderD129": {}}
    host = detect(tree.recorded(machine="ppc64le", nodes=nodes).root)
    refused = "built for x86_64 and the processor is ppc64le"
    with pytest.raises(Unavailable, match=f"1 x MI210 .*{refused}"):
        decide(host)
    with pytest.raises(Unavailable, match=refused):
        decide(host, image="rocm64")
    with pytest.raises(
        Unavailable, match="No image is built for this processor: ppc64le"
    ) as caught:
        decide(host, native=PLAIN, use="never")
    assert "pip install" in str(caught.value)
    assert "without a GPU are built for x86_64" in str(caught.value)
    assert refused in decide(host, image="rocm64", force=True).misfits["processor"]
    able = replace(NATIVE, vendor="amd", torch="2.8.0+rocm6.4")
    choice = decide(replace(host, root="/", engines=(APPTAINER,)), native=able)
    assert (choice.engine, len(choice.gpus)) == ("native", 1)
    assert decide(replace(host, root="/"), native=able, use="never").engine == "native"


# --- GPUs that no image serves, and requests for GPUs


def test_gpus_that_no_image_serves_are_not_passed_over(tmp_path: Path) -> None:
    tree = Tree(tmp_path).nvidia(0x102D, 1, 0, "Tesla K80").nvidia(0x102D, 2, 1, "Tesla K80")
    host = detect(tree.nvidia_driver("580.65.06").root)
    with pytest.raises(Unavailable) as caught:
        decide(host)
    output = str(caught.value)
    assert "2 x Tesla K80 (sm_37); no image has code for sm_37; add" in output
    assert "add --device cpu (or --image cpu)" in output
    assert name_of(decide(host, image="cpu")) == "cpu"
    processor = decide(host, use="never")
    assert (name_of(processor), processor.gpus) == ("cpu", ())
    assert why(processor, "image") == "--device cpu is requested"
    assert why(processor, "GPUs not used") == "--device cpu is requested"
    forced = decide(host, image="cuda", force=True)
    assert len(forced.gpus) == 2
    assert not [str(f) for f in forced.findings if "idle" in str(f) or "No image" in str(f)]
    assert "not compiled for" in forced.misfits["architecture"]


@pytest.mark.parametrize(
    ("driver", "won"),
    [("6.10.5", "rocm72 (ROCm 7.2, PyTorch 2.14.0) for 1 x MI300A (gfx942): driver 6.10.5 (6.3) "
      "supports ROCm 6.1, 6.2, 6.3, 6.4, 7.0, not 7.2"), ("6.16.13", None), (None, None)],
)  # fmt: skip
def test_what_a_driver_update_would_win(tmp_path: Path, driver: str | None, won: str) -> None:
    choice = decide(detect(Tree(tmp_path).amd(MI300A, 1).amd_driver(driver).root))
    notes = [f.evidence for f in choice.findings if "newer kernel driver" in f.cause]
    assert notes == ([won] if won else [])


def test_a_site_prefers_an_image(tmp_path: Path) -> None:
    """Cosmos has ROCm 6.3, and its quickstart builds that image."""
    site = str(SHIPPED.with_name("sites") / "cosmos.yaml")
    settings = read({"--site": site}, {"HOME": str(tmp_path)})
    host = detect(Tree(tmp_path).amd(MI300A, 1).root)
    built = tuple(
        BuiltImage(name, ("singularity",), f"/i/{name}.sif") for name in ("rocm72", "rocm63")
    )
    choice = choose(inputs_of(host, settings=settings, built=built, catalog=configured(settings)))
    assert name_of(choice) == "rocm63"
    assert "SDSC installs" in why(choice, "image")


def test_a_reported_fault_ranks_an_image_below_those_without(tmp_path: Path) -> None:
    host = detect(Tree(tmp_path).amd(MI300A, 1).amd_driver("6.16.13").root)
    before = decide(host)
    assert name_of(before) == "rocm64"
    (note,) = (f for f in before.findings if "reported fault" in f.cause)
    assert note.evidence.startswith("rocm72 for 1 x MI300A (gfx942): inaccurate attention")
    assert "`aam-launch --image rocm72 check` measures" in note.remedy
    # it is built, and the others are not
    alone = tuple(built for built in BUILT if built.image == "rocm72")
    choice = decide(host, alone)
    assert name_of(choice) == "rocm72"
    assert "rocm64 would come before it: Image rocm64 is not built" in why(choice, "image")


def test_a_gpu_of_unknown_arch_is_named_and_not_guessed(tmp_path: Path) -> None:
    tree = Tree(tmp_path).nvidia(0xFFF0, 1, 0, "NVIDIA X1000").nvidia_driver("600.1")
    with pytest.raises(Unavailable, match="has code for a GPU of unknown architecture;"):
        decide(detect(tree.root))
    forced = decide(detect(tree.root), image="cuda", force=True)
    assert len(forced.gpus) == 1
    assert forced.findings[0].cause == "A GPU of unknown architecture"


def test_a_request_for_a_gpu_is_refused_without_one(tmp_path: Path) -> None:
    tree = Tree(tmp_path).cpu().amd(MI300A, 1, readable=False)
    none = detect(Tree(tmp_path / "none").root)
    for host, reason in (
        (none, "there is no GPU"),
        (detect(tree.root), "the GPUs of this host belong to other jobs"),
        (detect(Tree(tmp_path / "igpu").amd(PHOENIX, 4).root), "is an integrated one"),
    ):
        assert name_of(decide(host)) == "cpu"
        with pytest.raises(Unavailable, match="requested, but none can be used") as caught:
            decide(host, use="required")
        assert reason in str(caught.value)
        with pytest.raises(Unavailable, match=r"used: image cpu; name an image for the GPUs"):
            decide(host, use="required", image="cpu")
        with pytest.raises(Unavailable, match=f"{reason}.*; add --device cpu"):
            decide(host, use="required", image="rocm64", force=True)
        with pytest.raises(Unavailable, match="requested, but none can be used"):
            decide(host, use="required", runtime="native")


def test_an_allocation_with_gpus_is_a_request_unless_an_image_for_the_processor_is_named(
    tmp_path: Path,
) -> None:
    host = detect(Tree(tmp_path).cpu().root)
    with pytest.raises(Unavailable, match="requested, but none can be used: there is no GPU"):
        decide(host, use="allocated")
    assert name_of(decide(host, use="allocated", image="cpu")) == "cpu"
    with pytest.raises(Unavailable, match="it needs a GPU of AMD and none can be used"):
        decide(host, use="allocated", image="rocm63")


def test_gpus_that_may_not_be_used_are_passed_over(tmp_path: Path) -> None:
    tree = Tree(tmp_path).amd(MI50, 1).nvidia(0x1DB1, 2, 0, "V100").nvidia_driver("535.1")
    host = detect(tree.root)
    denied = replace(host, nodes=(DeviceNode("/dev/nvidia0", 109, "video", 0o660, False),))
    assert [gpu.vendor for gpu in decide(denied).gpus] == ["amd"]
    with pytest.raises(NotPermitted, match="/dev/nvidia0 belongs to group video"):
        decide(denied, image="cuda128")


def test_a_mask_that_leaves_nothing_is_the_reason(tmp_path: Path) -> None:
    tree = Tree(tmp_path).nvidia(0x20B2, 1, 0, "A100").nvidia_driver("535.1")
    tree.recorded(environment={"CUDA_VISIBLE_DEVICES": ""})
    host = detect(tree.root)
    reason = "CUDA_VISIBLE_DEVICES leaves none of the 1 GPUs"
    assert why(decide(host), "image") == reason
    with pytest.raises(Unavailable, match=reason):
        decide(host, use="required")


def test_of_mig_instances_one_is_used(tmp_path: Path) -> None:
    tree = Tree(tmp_path).nvidia_driver("535.1")
    for minor in (0, 1):
        tree.nvidia(0x20B2, minor + 1, minor, "A100", mig=["gi1/ci0", "gi2/ci0"])
    choice = decide(detect(tree.root))
    assert [gpu.index for gpu in choice.gpus] == [0]
    assert why(choice, "left out") == "CUDA computes on one MIG instance at a time"
    tree.nvidia(0x20B2, 9, 2, "A100")  # a whole one is better than a part
    assert [gpu.index for gpu in decide(detect(tree.root)).gpus] == [2]


def test_two_vendors_equally_supported_are_not_guessed(tmp_path: Path) -> None:
    tree = Tree(tmp_path).amd(MI210, 1).nvidia(0x20B2, 2, 0, "A100").nvidia_driver("535.1")
    host = detect(tree.root)
    assert [g.vendor for g in decide(host, image="cuda").gpus] == ["nvidia"]
    assert [g.vendor for g in decide(host, image="rocm62").gpus] == ["amd"]
    assert decide(host, image="cpu").gpus == ()


def test_two_vendors_of_which_one_is_better_supported(tmp_path: Path) -> None:
    tree = Tree(tmp_path).amd(MI50, 1).nvidia(0x1DB1, 2, 0, "V100").nvidia_driver("535.1")
    choice = decide(detect(tree.root))
    assert name_of(choice) == "cuda128"
    assert [d.value for d in choice.decisions if d.subject == "left out"] == ["1 x MI50 (gfx906)"]


# --- the catalog


def test_a_mask_that_leaves_the_integrated_gpu_is_the_reason(tmp_path: Path) -> None:
    tree = Tree(tmp_path).cpu().amd(RX7900, 3, minor=128).amd(PHOENIX, 0x0F, minor=129)
    host = detect(tree.recorded(environment={"HIP_VISIBLE_DEVICES": "1"}).root)
    choice = decide(host)
    assert name_of(choice) == "cpu"
    reason = "HIP_VISIBLE_DEVICES leaves only an integrated one of the 2 GPUs"
    assert why(choice, "image") == reason
    said = [f for f in choice.findings if f.cause == "The command runs on the CPU"]
    assert [(f.severity, f.evidence) for f in said] == [("warning", reason)]


SIF_ENGINES = ("apptainer", "singularity")


def live(tree: Tree, *engines: EngineFact) -> Host:
    return replace(detect(tree.root), root="/", engines=engines)


def test_a_misfit_is_refused_with_the_nearest_fit(tmp_path: Path) -> None:
    host = detect(Tree(tmp_path).amd(MI300A, 1).amd_driver("6.16.13").root)
    with pytest.raises(Unavailable) as caught:
        decide(host, image="rocm62")
    assert "driver 6.16.13 (30.30) supports ROCm 6.3, 6.4, 7.0, 7.1, 7.2, not 6.2" in str(
        caught.value
    )
    assert "nearest fit is --image rocm64" in str(caught.value)
    forced = decide(host, image="rocm62", force=True)
    assert name_of(forced) == "rocm62"
    assert "6.16.13" in forced.misfits["driver"]
    with pytest.raises(Unavailable, match="for GPUs of NVIDIA, not of AMD|needs a GPU of NVIDIA"):
        decide(host, image="cuda")
    none = detect(Tree(tmp_path / "none").root)
    with pytest.raises(Unavailable, match="needs a GPU of AMD"):
        decide(none, image="rocm63")
    without = decide(none, image="rocm63", use="never")  # it runs on the CPU too
    assert (name_of(without), without.gpus, without.misfits) == ("rocm63", (), {})


def _empty(*engines: EngineFact) -> Host:
    return Host("/", "h", "6", "x86_64", (), (), (), engines, None, None)


# --- engines and what is built


def test_native_where_nothing_is_built() -> None:
    choice = decide(_empty(APPTAINER), built=())
    assert (choice.engine, choice.image) == ("native", None)
    assert (
        why(choice, "engine") == "Image cpu is not built, and PyTorch 2.13.0+cpu is installed here"
    )
    assert "No engine can start a container" in why(decide(_empty()), "engine")


def test_native_does_not_leave_gpus_idle(tmp_path: Path) -> None:
    host = live(Tree(tmp_path).amd(MI300A, 1), APPTAINER)
    with pytest.raises(Unavailable, match="cannot use 1 x MI300A") as caught:
        decide(host, built=())
    assert "`aam-launch images build rocm64`" in str(caught.value)
    assert "add --device cpu" in str(caught.value)
    none = replace(host, engines=(), absent_engines=tuple(map(engine, BUILDERS)))
    with pytest.raises(Unavailable, match="No engine can start a container.*1 x MI300A"):
        decide(none, built=())
    with pytest.raises(Unavailable, match="install a PyTorch that can, or add --device cpu"):
        decide(host, runtime="native")
    choice = decide(host, built=(), use="never")
    assert (choice.engine, choice.gpus) == ("native", ())
    able = decide(host, built=(), native=replace(NATIVE, vendor="amd", torch="2.7.1"))
    assert len(able.gpus) == 1


def test_a_built_image_comes_before_a_better_one(tmp_path: Path) -> None:
    host = live(Tree(tmp_path).amd(MI300A, 1), APPTAINER)
    choice = decide(host, built=(BuiltImage("rocm62", SIF_ENGINES, "/i/rocm62.sif"),))
    assert (name_of(choice), choice.engine) == ("rocm62", "apptainer")


def test_the_engine_that_has_the_image() -> None:
    podman = engine("podman")
    built = (BuiltImage("cpu", ("podman",), "localhost/aam:cpu"),)
    assert decide(_empty(APPTAINER, podman), built).engine == "podman"
    broken = engine("podman", "no user namespaces")
    assert decide(_empty(APPTAINER, broken), built).engine == "native"
    with pytest.raises(Unavailable, match="no user namespaces"):
        decide(_empty(broken), built, runtime="podman")
    with pytest.raises(Unavailable, match="no docker on PATH"):
        decide(_empty(APPTAINER), built, runtime="docker")


def test_podman_needs_cdi_for_nvidia(tmp_path: Path) -> None:
    tree = Tree(tmp_path).nvidia(0x20B2, 2, 0, "A100").nvidia_driver("535.1")
    host = live(tree, engine("podman"))
    built = (BuiltImage("cuda", ("podman",), "localhost/aam:cuda"),)
    with pytest.raises(Unavailable, match="nvidia-ctk cdi generate"):
        decide(host, built, image="cuda")
    assert decide(replace(host, cdi=("nvidia",)), built, image="cuda").engine == "podman"


def test_not_built_names_the_command_that_builds() -> None:
    with pytest.raises(Unavailable) as caught:
        decide(_empty(APPTAINER), built=(), native=PLAIN, image="cpu")
    assert "`aam-launch images build cpu` builds it" in str(caught.value)
    none = replace(_empty(), absent_engines=tuple(map(engine, BUILDERS)))
    with pytest.raises(Unavailable, match="none of apptainer, singularity, podman, docker is on"):
        decide(none, built=(), native=PLAIN)
    with pytest.raises(Unavailable, match="The libraries of the model are not installed"):
        decide(_empty(), native=PLAIN, runtime="native")


def test_a_file_of_which_nothing_is_known(tmp_path: Path) -> None:
    host = live(Tree(tmp_path).amd(MI300A, 1), APPTAINER)
    built = (BuiltImage("/my/own.sif", SIF_ENGINES, "/my/own.sif"),)
    choice = decide(host, built, image="/my/own.sif")
    assert (name_of(choice), len(choice.gpus)) == ("/my/own.sif", 1)
