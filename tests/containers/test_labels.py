"""Image labels: versions measured in an image take precedence over the catalog."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from launcher.config import read
from launcher.images.index import measured
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


def test_labels_replace_the_catalogs_words() -> None:
    there = (BuiltImage("rocm63", ("apptainer",), "/i/rocm63.sif", "sha256:1", LABELS),)
    image = measured(catalog(), there).image("rocm63")
    assert image is not None
    assert image.pins["torch"] == "2.6.0+rocm6.2.4"
    assert image.pins["aotriton"] == "0.9.2b"  # what was not measured stays
    assert image.archs == ("gfx90a", "gfx1100")
    assert image.source == "label"
    assert served(image, "gfx90a")
    assert not served(image, "gfx942")
    assert fast(image, "gfx1101")
    assert not fast(image, "gfx1200")
    # So a fault of the stack is found by what is in the image, whatever its name says.
    faults = catalog().faults_of("amd", image.pins["torch"])
    assert "aotriton-mask" in [fault.name for fault in faults]


def test_the_form_that_will_run_counts() -> None:
    there = (
        BuiltImage("cpu", ("apptainer",), "/i/cpu.sif", None, {"org.aam.torch": "1"}),
        BuiltImage("cpu", ("podman",), "sha256:2", None, {"org.aam.torch": "2"}),
    )
    for runtime, torch in (("auto", "1"), ("podman", "2"), ("docker", "2.13.0")):
        image = measured(catalog(), there, runtime).image("cpu")
        assert image is not None
        assert image.pins["torch"] == torch
    assert read({}, {}).runtime.value == "auto"


@pytest.fixture(scope="module")
def measure() -> ModuleType:
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
    measure: ModuleType, tmp_path: Path, files: list[str], version: str | None, archs: list[str]
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


def test_rocm_is_asked_of_the_wheels_own_library(measure: ModuleType, tmp_path: Path) -> None:
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
