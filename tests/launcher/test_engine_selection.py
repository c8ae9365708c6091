"""Selection of engine and built image: native, Apptainer, podman, files."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from aam.contract.errors import Unavailable
from launcher.detect import detect
from launcher.engines import BUILDERS
from launcher.host.facts import EngineFact, Host
from launcher.plan.inputs import BuiltImage
from tests.support.decisions import APPTAINER, NATIVE, PLAIN, decide, engine, name_of, why
from tests.support.hosts import MI300A, Tree

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
