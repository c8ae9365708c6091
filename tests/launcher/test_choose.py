"""Which GPUs, image and engine are chosen, for captured hosts and built ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from launcher.errors import Unavailable, UsageError
from launcher.host import EngineFact, Host, detect
from launcher.plan.catalog import SHIPPED, catalog_of
from launcher.plan.choose import SIF_ENGINES, Built, Choice, Native, choose
from launcher.plan.document import load
from launcher.plan.fit import served
from launcher.plan.layers import Entry, merge
from tests.launcher.hosts import MI50, MI100, MI210, MI250X, MI300A, PHOENIX, RX7900, Tree, captured

CATALOG = catalog_of(load(SHIPPED.read_text()))
ALL = tuple(
    Built(image.name, ("apptainer", "podman"), f"/i/{image.name}.sif") for image in CATALOG.images
)
NATIVE = Native("/usr/bin/python3", (), False, "2.13.0+cpu", "cpu")
PLAIN = Native("/usr/bin/python3", ("torch",), False, None, "cpu")
APPTAINER = EngineFact("apptainer", "/usr/bin/apptainer")


def decide(
    host: Host,
    built: tuple[Built, ...] = ALL,
    native: Native = NATIVE,
    force: bool = False,
    **asked: str,
) -> Choice:
    layer = {key: Entry(value, f"command line, --{key}") for key, value in asked.items()}
    defaults = {"image_dir": Entry("/i", "default")}
    return choose(host, CATALOG, merge([defaults, layer]), built, native, force)


def name_of(choice: Choice) -> str | None:
    return choice.image.name if choice.image else None


def why(choice: Choice, subject: str) -> str:
    return next(d.why for d in choice.decisions if d.subject == subject)


def live(tree: Tree, *engines: EngineFact) -> Host:
    return replace(detect(tree.root), root="/", engines=engines)


# --- captured hosts


@pytest.mark.parametrize(
    ("name", "image", "count"),
    [
        ("mi300a-4apu-spx", "rocm63", 4),
        ("mi210-8gpu", "rocm63", 8),
        ("mi300x-cpx", "rocm63", 63),
        ("mi100", "rocm63", 1),
        ("phoenix-igpu", "cpu", 0),
        ("pci-from-hwloc/corona", "cpu", 0),
        ("pci-from-hwloc/sierra", "cpu", 0),
        ("pci-from-hwloc/tuo.SPX", "cpu", 0),
    ],
)
def test_captured_hosts(name: str, image: str, count: int) -> None:
    choice = decide(detect(captured(name)))
    assert (name_of(choice), len(choice.gpus), choice.engine) == (image, count, "apptainer")


def test_what_is_said_about_captured_hosts() -> None:
    phoenix = decide(detect(captured("phoenix-igpu")))
    assert "integrated" in why(phoenix, "image")
    corona = decide(detect(captured("pci-from-hwloc/corona")))
    assert "The GPU driver is not loaded: 8 x MI50" in str(corona.findings[0])
    sierra = decide(detect(captured("pci-from-hwloc/sierra")))
    assert "modprobe nvidia" in str(sierra.findings[0])
    mi100 = decide(detect(captured("mi100")))
    assert "Attention takes the math path" in str(mi100.findings[0])


# --- built hosts


@pytest.mark.parametrize(
    ("kind", "driver", "image"),
    [
        (MI50, "6.8.5", "rocm60"),  # the stack that is kept for it
        (MI50, None, "rocm60"),
        (MI50, "6.10.5", "rocm63"),  # a driver that was not tested with ROCm 6.0
        (MI250X, "6.8.5", "rocm63"),
        (MI300A, "6.10.5", "rocm63"),
        (MI300A, "30.30.1", "rocm63"),  # 6.2 is outside of what it was tested with
        (RX7900, None, "rocm63"),
        ((120001, 0x7550), None, "rocm63"),
    ],
)
def test_amd(tmp_path: Path, kind: tuple[int, int], driver: str | None, image: str) -> None:
    host = detect(Tree(tmp_path).cpu().amd(kind, 3).amd_driver(driver).root)
    assert name_of(decide(host)) == image


@pytest.mark.parametrize(
    ("device", "driver", "image"),
    [
        (0x1DB1, "535.54.03", "cuda"),
        (0x20B2, "525.60.13", "cuda"),
        (0x2684, "555.42.02", "cuda"),  # sm_89 runs what was compiled for sm_86
        (0x20B2, "470.82.01", "cpu"),
    ],
)
def test_nvidia(tmp_path: Path, device: int, driver: str, image: str) -> None:
    host = detect(Tree(tmp_path).nvidia(device, 1, 0, "GPU").nvidia_driver(driver).root)
    assert name_of(decide(host)) == image


def test_of_several_kinds_the_best_supported_is_used(tmp_path: Path) -> None:
    tree = Tree(tmp_path).cpu().amd(MI100, 1).amd(MI100, 2).amd(MI210, 3).amd(PHOENIX, 4)
    choice = decide(detect(tree.root))
    assert [gpu.product for gpu in choice.gpus] == ["MI210"]  # MI100 has no fused attention
    left = [(d.value, d.why) for d in choice.decisions if d.subject == "left out"]
    assert left == [("2 x MI100 (gfx908)", "one kind at a time, and rocm63 runs on MI210 (gfx90a)")]


def test_an_arch_that_no_image_serves(tmp_path: Path) -> None:
    choice = decide(detect(Tree(tmp_path).amd((90500, 0x75A0), 1).root))
    assert name_of(choice) == "cpu"
    assert "no image serves" in why(choice, "image")
    assert why(choice, "left out") == "cpu computes on the processor"
    assert "rocm63, its PyTorch was not compiled for gfx950" in str(choice.findings[0])


def test_a_gpu_of_unknown_arch_is_named_and_not_guessed(tmp_path: Path) -> None:
    tree = Tree(tmp_path).nvidia(0xFFF0, 1, 0, "NVIDIA X1000").nvidia_driver("600.1")
    choice = decide(detect(tree.root))
    assert name_of(choice) == "cpu"
    causes = [finding.cause for finding in choice.findings]
    assert causes == ["A GPU of unknown arch", "No image serves these GPUs"]
    with pytest.raises(Unavailable, match="not compiled for a GPU of unknown arch"):
        decide(detect(tree.root), image="cuda")
    assert len(decide(detect(tree.root), image="cuda", force=True).gpus) == 1


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
    with pytest.raises(UsageError, match="--image rocm63 or cuda"):
        decide(host)
    assert [g.vendor for g in decide(host, image="cuda").gpus] == ["nvidia"]
    assert [g.vendor for g in decide(host, image="rocm62").gpus] == ["amd"]
    assert decide(host, image="cpu").gpus == ()


def test_two_vendors_of_which_one_is_better_supported(tmp_path: Path) -> None:
    tree = Tree(tmp_path).amd(MI50, 1).nvidia(0x1DB1, 2, 0, "V100").nvidia_driver("535.1")
    choice = decide(detect(tree.root))
    assert name_of(choice) == "cuda"
    assert [d.value for d in choice.decisions if d.subject == "left out"] == ["1 x MI50 (gfx906)"]


def test_a_misfit_is_refused_with_the_nearest_fit(tmp_path: Path) -> None:
    host = detect(Tree(tmp_path).amd(MI300A, 1).amd_driver("30.30.1").root)
    with pytest.raises(Unavailable) as caught:
        decide(host, image="rocm62")
    assert "driver 30.30.1 was tested with ROCm 6.3, 6.4" in str(caught.value)
    assert "nearest fit is --image rocm63" in str(caught.value)
    forced = decide(host, image="rocm62", force=True)
    assert name_of(forced) == "rocm62"
    assert "30.30.1" in forced.forced[0]
    with pytest.raises(Unavailable, match="for GPUs of NVIDIA, not of amd|needs a GPU of NVIDIA"):
        decide(host, image="cuda")
    with pytest.raises(Unavailable, match="needs a GPU of AMD"):
        decide(detect(Tree(tmp_path / "none").root), image="rocm63")


def test_an_unknown_image() -> None:
    with pytest.raises(UsageError, match="did you mean 'rocm63'"):
        decide(_empty(), image="rocm36")


def _empty(*engines: EngineFact) -> Host:
    return Host("/", "h", "6", "x86_64", (), (), (), engines, None, None)


# --- engines and what is built


def test_native_where_nothing_is_built() -> None:
    choice = decide(_empty(APPTAINER), built=())
    assert (choice.engine, choice.image) == ("native", None)
    assert (
        why(choice, "engine")
        == "no image is built (cpu would suit), and PyTorch 2.13.0+cpu is installed here"
    )
    assert "no engine" in why(decide(_empty()), "engine")


def test_native_says_that_gpus_stay_idle(tmp_path: Path) -> None:
    choice = decide(live(Tree(tmp_path).amd(MI300A, 1)), built=())
    assert choice.engine == "native"
    assert "The GPUs stay idle" in str(choice.findings[-1])
    able = decide(
        live(Tree(tmp_path)), built=(), native=replace(NATIVE, vendor="amd", torch="2.7.1")
    )
    assert len(able.gpus) == 1


def test_a_built_image_comes_before_a_better_one(tmp_path: Path) -> None:
    host = live(Tree(tmp_path).amd(MI300A, 1), APPTAINER)
    choice = decide(host, built=(Built("rocm62", SIF_ENGINES, "/i/rocm62.sif"),))
    assert (name_of(choice), choice.engine) == ("rocm62", "apptainer")


def test_the_engine_that_has_the_image() -> None:
    podman = EngineFact("podman", "/usr/bin/podman")
    built = (Built("cpu", ("podman",), "localhost/aam:cpu"),)
    assert decide(_empty(APPTAINER, podman), built).engine == "podman"
    broken = EngineFact("podman", "/usr/bin/podman", "no user namespaces")
    assert decide(_empty(APPTAINER, broken), built).engine == "native"
    with pytest.raises(Unavailable, match="no user namespaces"):
        decide(_empty(broken), built, runtime="podman")
    with pytest.raises(Unavailable, match="no docker on PATH"):
        decide(_empty(APPTAINER), built, runtime="docker")


def test_podman_needs_cdi_for_nvidia(tmp_path: Path) -> None:
    tree = Tree(tmp_path).nvidia(0x20B2, 2, 0, "A100").nvidia_driver("535.1")
    host = live(tree, EngineFact("podman", "/usr/bin/podman"))
    built = (Built("cuda", ("podman",), "localhost/aam:cuda"),)
    with pytest.raises(Unavailable, match="nvidia-ctk cdi generate"):
        decide(host, built, image="cuda")
    assert decide(replace(host, cdi=True), built, image="cuda").engine == "podman"


def test_not_built_names_the_command_that_builds() -> None:
    with pytest.raises(Unavailable) as caught:
        decide(_empty(APPTAINER), built=(), native=PLAIN, image="cpu")
    assert "`aam-launch images build cpu` builds it" in str(caught.value)
    with pytest.raises(Unavailable, match="neither apptainer"):
        decide(_empty(), built=(), native=PLAIN)
    with pytest.raises(Unavailable, match="The libraries of the model are not installed"):
        decide(_empty(), native=PLAIN, runtime="native")


def test_a_file_of_which_nothing_is_known(tmp_path: Path) -> None:
    host = live(Tree(tmp_path).amd(MI300A, 1), APPTAINER)
    built = (Built("/my/own.sif", SIF_ENGINES, "/my/own.sif"),)
    choice = decide(host, built, image="/my/own.sif")
    assert (name_of(choice), len(choice.gpus)) == ("/my/own.sif", 1)


# --- the catalog


@pytest.mark.parametrize(
    ("arch", "runs"),
    [("sm_70", True), ("sm_72", True), ("sm_89", True), ("sm_90", True), ("sm_100", False),
     ("sm_120", False), ("sm_35", False)],
)  # fmt: skip
def test_cuda_code_runs_on_later_chips_of_the_same_major(arch: str, runs: bool) -> None:
    image = CATALOG.image("cuda")
    assert image is not None
    assert served(image, arch) is runs


def test_faults_belong_to_versions() -> None:
    flags = [f.flags for f in CATALOG.faults_of("amd", "2.5.1+rocm6.2")]
    assert flags == [("--attn-implementation", "math"), ("--no-gradient-checkpointing",)]
    assert CATALOG.faults_of("amd", "2.7.1") == CATALOG.faults_of("nvidia", "2.5.1") == ()
