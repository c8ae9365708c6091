"""Image labels: measured versions replace those of the catalog, measured archs narrow them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.config import read
from launcher.images.index import measured
from launcher.plan.catalog import Image
from launcher.plan.hardware import fused as fast
from launcher.plan.hardware import serves as served
from launcher.plan.inputs import BuiltImage
from tests.containers.test_definitions import catalog
from tests.support.engines import ROOT
from tests.support.scripts import load_script

LABELS = {
    "org.aam.torch": "2.6.0+rocm6.2.4",
    "org.aam.rocm": "6.2",
    "org.aam.archs": "gfx90a:xnack- gfx90a:xnack+ gfx1100 compute_90",
    "org.aam.attention-archs": "gfx11xx gfx90a",
}


def labelled(name: str, labels: dict[str, str]) -> Image:
    """Return an image of the catalog as the labels of a built one change it."""
    built = (BuiltImage(name, ("apptainer",), f"/i/{name}.sif", "sha256:1", labels),)
    return measured(catalog(), built).require(name)


def test_labels_replace_the_catalogs_words() -> None:
    image = labelled("rocm63", LABELS)
    assert image.pins["torch"] == "2.6.0+rocm6.2.4"
    assert image.pins["aotriton"] == "0.9.2b"  # what was not measured stays
    assert image.archs == ("gfx90a", "gfx1100")
    assert image.source == "label"
    assert served(image, "gfx90a")
    assert not served(image, "gfx942")
    assert fast(image, "gfx1101")
    assert not fast(image, "gfx1200")
    # So a fault of the stack is found by what is in the image, whatever its name says.
    faults = catalog().faults_of("amd", image.pins)
    assert "aotriton-mask" in [fault.name for fault in faults]


def test_a_label_adds_no_architecture() -> None:
    """PyTorch of ROCm 7.2 is compiled for GPUs for which its BLAS has no kernels."""
    flags = "gfx900 gfx906 gfx1103 gfx90a:sramecc+:xnack- gfx1100"
    attention = {"org.aam.attention-archs": "gfx11xx gfx906"}
    image = labelled("rocm72", {"org.aam.archs": flags, **attention})
    assert [arch for arch in ("gfx900", "gfx906", "gfx1103") if served(image, arch)] == []
    assert (served(image, "gfx90a"), served(image, "gfx942")) == (True, False)
    assert (fast(image, "gfx1100"), fast(image, "gfx906")) == (True, False)
    # None of the catalog's is not the same as nothing known.
    assert labelled("rocm72", {"org.aam.archs": "gfx906"}).archs == ()


def test_the_form_that_will_run_counts() -> None:
    there = (
        BuiltImage("cpu", ("apptainer",), "/i/cpu.sif", None, {"org.aam.torch": "1"}),
        BuiltImage("cpu", ("podman",), "sha256:2", None, {"org.aam.torch": "2"}),
    )
    for runtime, torch in (("auto", "1"), ("podman", "2"), ("docker", "2.13.0")):
        assert measured(catalog(), there, runtime).require("cpu").pins["torch"] == torch
    assert read({}, {}).runtime.value == "auto"


@pytest.fixture(scope="module")
def measure() -> Any:
    return load_script(ROOT / "containers/measure.py")


@pytest.mark.parametrize(
    ("files", "version", "archs"),
    [
        # As from 0.8b: kernels in folders, the version in the library's name or in its comment.
        (["libaotriton_v2.so.0.11.2", "aotriton.images/amd-gfx11xx/"], "0.11.2", ["gfx11xx"]),
        (["libaotriton_v2.so:GCC AOTriton 0.9.2\0", "aotriton.images/amd-gfx942/"],
         "0.9.2", ["gfx942"]),
        # Before: kernels inside of the library.
        (["libaotriton_v2.so:..amd-gfx942\0amd-gfx90a\0"], None, ["gfx90a", "gfx942"]),
        ([], None, []),
    ],
)  # fmt: skip
def test_aotriton_is_measured(
    measure: Any,
    tmp_path: Path,
    files: list[str],
    version: str | None,
    archs: list[str],
) -> None:
    for file in files:
        name, _, content = file.partition(":")
        if name.endswith("/"):
            (tmp_path / name).mkdir(parents=True)
        else:
            (tmp_path / name).write_text(content)
    find: Callable[[Path], str | None] = measure.aotriton
    assert find(tmp_path) == version
    assert measure.attention_archs(tmp_path) == archs


@pytest.mark.parametrize(
    ("files", "archs"),
    [
        # As in the wheel of 2.12 for ROCm 7.2 (pytorch issue 179865), and below a folder by arch.
        (["TensileLibrary_lazy_gfx90a.dat", "TensileLibrary_lazy_gfx1100.dat",
          "TensileLibrary.dat"], ["gfx90a:xnack-", "gfx1100"]),
        (["gfx906/TensileLibrary_lazy_gfx906.dat", "Kernels.so-000-gfx900.hsaco"], ["gfx906"]),
        (["TensileLibrary_gfx906.dat"], ["gfx906"]),
        ([], []),
    ],
)  # fmt: skip
def test_an_architecture_without_kernels_of_rocblas_is_not_measured(
    measure: Any, tmp_path: Path, files: list[str], archs: list[str]
) -> None:
    for file in files:
        path = tmp_path / "rocblas/library" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    flags = ["gfx900", "gfx906", "gfx90a:xnack-", "gfx1100", "gfx1103"]
    assert measure.computing_archs(flags, tmp_path) == archs


def test_rocm_is_asked_of_the_wheels_own_library(measure: Any, tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no compiler")
    source = tmp_path / "core.c"
    source.write_text("int getROCmVersion(unsigned *a, unsigned *b, unsigned *c)"
                      "{*a = 6; *b = 3; *c = 4; return 0;}\n")  # fmt: skip
    library = tmp_path / "librocm-core.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    assert measure.rocm(tmp_path) == "6.3.4"
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "librocm-core.so").write_bytes(b"no library")
    assert measure.rocm(damaged) is None
