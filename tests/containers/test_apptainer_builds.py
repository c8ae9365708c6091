"""Builds with Apptainer, on a stand-in for the base image: `cpu` in full, `cuda128` with stand-ins.

What is replaced, by build argument: the base, and Debian's snapshot (the base's own packages).
tests.support.images describes the stand-ins for PyTorch. With podman: test_podman_builds.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.engines import LAUNCH, Engines
from tests.support.images import IMAGES, build_argv, cpu_sif, forget, recorded, workshop

pytestmark = [pytest.mark.container, pytest.mark.slow]
SHOW = 'echo $LD_LIBRARY_PATH; python -c "import sys; print(sys.path)"'


@pytest.fixture(scope="module")
def engines() -> Engines:
    return workshop()


@pytest.fixture(scope="module")
def sif() -> Path:
    return cpu_sif()


def test_a_launch_reads_the_recorded_labels(engines: Engines, sif: Path) -> None:
    labels = recorded(engines, "cpu", "sif")["labels"]
    assert labels["org.aam.torch"] == "2.13.0+cpu"
    assert labels["org.aam.name"] == "cpu"
    assert labels["org.aam.glibc"] == "2.36"
    inside = engines.run(["apptainer", "exec", str(sif), "cat", "/opt/aam/labels.json"])
    assert json.loads(inside.stdout) == labels
    args = ["explain", "--json", "--runtime", "apptainer", "example", "--output-dir"]
    args.append(str(engines.home / "study"))
    explained = engines.run([*LAUNCH, *args], cwd=engines.folder)
    assert explained.returncode == 0, explained.stderr
    printed = json.loads(explained.stdout)["decisions"]
    assert [d["source"] for d in printed if d["subject"] == "image"] == ["label"]


def test_a_sif_runs_by_hand_against_the_hosts_python_and_rocm(engines: Engines, sif: Path) -> None:
    leak = ["env", "PYTHONPATH=/leak", "HOME=/nonexistent"]
    for rocm in ([], ["--rocm"]):
        done = engines.run([*leak, "apptainer", "run", *rocm, str(sif), "--version"])
        assert done.stdout.startswith("aam "), done.stderr
        path = engines.run([*leak, "apptainer", "exec", *rocm, str(sif), "sh", "-c", SHOW])
        libraries, packages = path.stdout.splitlines()
        assert libraries.split(":")[0] == "/opt/aam/torch-lib"
        assert "leak" not in packages


@pytest.mark.nightly
def test_the_sifs_own_test(engines: Engines, sif: Path) -> None:
    """Each build runs the same program; here the definition starts it."""
    done = engines.run(["apptainer", "test", str(sif)], timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok      study" in done.stdout


@pytest.mark.nightly
def test_of_two_builds_at_once_one_waits_and_finds_the_image_built(engines: Engines) -> None:
    argv = build_argv(engines, "cuda128", "apptainer", "--no-test")
    place = engines.images / "cuda128.sif"
    pair = [subprocess.Popen(engines.command(argv), cwd=engines.folder, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for _ in range(2)]  # fmt: skip
    printed = [process.communicate(timeout=1200) for process in pair]
    assert [process.returncode for process in pair] == [0, 0], printed
    assert sum("Another build of cuda128 in" in err for _, err in printed) == 1
    assert sum("built of the same inputs before" in out for out, _ in printed) == 1
    try:
        labels = recorded(engines, "cuda128", "sif")["labels"]
        assert labels["org.aam.name"] == "cuda128"
        assert labels["org.aam.archs"] == "sm_70 sm_90"
        verified = engines.run([*IMAGES, "verify", "cuda128", "--no-test"], cwd=engines.folder)
        assert "ok      cuda: 12.8 measured, 12.8 in the catalog" in verified.stdout
        assert "differs" not in verified.stdout
    finally:
        place.unlink()
        forget(engines, "cuda128")
