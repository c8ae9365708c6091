"""The whole image `cpu`, built once: what it says of itself and what it does by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.images.sif import labels_of
from tests.containers.shared import cpu_sif, workshop
from tests.launcher.containers import Engines

pytestmark = [pytest.mark.container, pytest.mark.slow]
SHOW = 'echo $LD_LIBRARY_PATH; python -c "import sys; print(sys.path)"'


@pytest.fixture(scope="module")
def engines() -> Engines:
    return workshop()


@pytest.fixture(scope="module")
def sif() -> Path:
    return cpu_sif()


def test_labels_are_read_without_starting_the_image(engines: Engines, sif: Path) -> None:
    labels = labels_of(sif)
    assert labels["org.aam.torch"] == "2.13.0+cpu"
    assert labels["org.aam.name"] == "cpu"
    inside = engines.run(["apptainer", "exec", str(sif), "cat", "/opt/aam/labels.json"])
    assert json.loads(inside.stdout).items() <= labels.items()
    recorded = json.loads((engines.images / "images.json").read_text())["cpu"]["sif"]
    assert recorded["labels"].items() <= labels.items()


def test_runs_by_hand_with_the_hosts_python_path_and_rocm(engines: Engines, sif: Path) -> None:
    leak = ["env", "PYTHONPATH=/leak", "PYTHONHOME=", "HOME=/nonexistent"]
    done = engines.run([*leak, "apptainer", "run", "--rocm", str(sif), "--version"])
    assert done.stdout.startswith("aam "), done.stderr
    path = engines.run([*leak, "apptainer", "exec", "--rocm", str(sif), "sh", "-c",
                        SHOW])  # fmt: skip
    libraries, packages = path.stdout.splitlines()
    assert libraries.split(":")[0] == "/opt/aam/torch-lib"
    assert "leak" not in packages
