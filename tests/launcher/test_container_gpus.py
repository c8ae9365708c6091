"""GPUs in containers: visible devices, stored check reports, permissions."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.engines.sif import record_of
from launcher.images import index
from tests.support.engines import PYTHON, USER, Engines
from tests.support.hosts import MI300A, Tree
from tests.support.launched_containers import docker_where_there_is_one, each, engines, place, study

__all__ = ["docker_where_there_is_one", "engines", "place"]
pytestmark = pytest.mark.container
GPUS = """
mount --bind {tree}/sys/class /sys/class
chown {owner} /dev/kfd
chmod {mode} /dev/kfd
"""


@pytest.fixture
def gpus(engines: Engines, tmp_path: Path) -> Iterator[Tree]:
    """Four MI300A in sysfs; /dev/kfd and /dev/dri exist while the test runs."""
    tree = Tree(tmp_path / "fake").cpu()
    for number, minor in enumerate((128, 136, 144, 152)):
        tree.amd(MI300A, 0x02, domain=number, minor=minor)
    tmp_path.chmod(0o755)
    nodes = ["/dev/kfd", *(f"/dev/dri/renderD{minor}" for minor in (128, 136, 144, 152))]
    # Device nodes are those of the whole machine, so tests in other processes have to wait. They
    # cannot be in a mount namespace of the test: rootless podman keeps one of its own.
    with open("/var/tmp/aam-test-devices.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for node in nodes:
            # What a test that was killed left behind stands for /dev/null, a GPU does not.
            if os.path.exists(node) and os.stat(node).st_rdev == os.makedev(1, 3):
                os.unlink(node)
        if os.path.exists("/dev/kfd"):
            pytest.skip("there is a real AMD GPU here")
        Path("/dev/dri").mkdir(exist_ok=True)
        try:
            for node in nodes:
                subprocess.run(["mknod", "-m", "666", node, "c", "1", "3"], check=True)
            yield tree
        finally:
            for node in nodes:
                Path(node).unlink(missing_ok=True)
            os.rmdir("/dev/dri")


SET_BY_SLURM = (
    "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL",
)  # fmt: skip


@each
@pytest.mark.parametrize(
    ("masks", "nodes", "mask"),
    [
        ({}, (128, 136, 144, 152), "0,1,2,3"),
        ({"ROCR_VISIBLE_DEVICES": "3,1"}, (136, 152), "1,0"),
        (dict.fromkeys(SET_BY_SLURM, "2,3"), (144, 152), "0,1"),
    ],
)
def test_the_chosen_gpus_and_one_mask(
    engines: Engines,
    place: Path,
    gpus: Tree,
    engine: str,
    user: str,
    masks: dict[str, str],
    nodes: tuple[int, ...],
    mask: str,
) -> None:
    before = GPUS.format(tree=gpus.root, owner="root:root", mode="666")
    line = [
        "env",
        *(f"{n}={v}" for n, v in masks.items()),
        PYTHON,
        "-m",
        "launcher.cli",
        "pretrain",
        "--table",
        str(study(place)),
        "--runtime",
        engine,
        "--image",
        "rocm63",
        "--output-dir",
        str(place / "out"),
    ]
    done = engines.run(line, user=user, before=before, cwd=engines.folder)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    seen = {path for path in printed["devices"] if path.startswith(("/dev/dri", "/dev/kfd"))}
    assert seen == {"/dev/kfd", *(f"/dev/dri/renderD{node}" for node in nodes)}
    assert all(printed["devices"][path] for path in seen)
    given = {n: v for n, v in printed["environment"].items() if n.endswith(("DEVICES", "ORDINAL"))}
    assert given == {"ROCR_VISIBLE_DEVICES": mask}
    assert not printed["libs"]


def case(backend: str, outcome: str, mask: str = "each", fault: str = "") -> dict[str, str]:
    return {"backend": backend, "dtype": "fp32", "mask": mask, "outcome": outcome, "fault": fault}


FOUND = {
    "format": 1,
    "made": "2026-01-02T03:04:05+00:00",
    "quick": False,
    "seconds": 9.0,
    "identity": {},
    "costs": [],
    "cases": [case("auto", "wrong", fault="first mask for all"), case("math", "right")],
}


def test_a_stack_is_measured_once_and_the_verdict_goes_in(
    engines: Engines, place: Path, gpus: Tree
) -> None:
    """The probe stands for `aam check`, whose own tests are elsewhere: there is no GPU here."""
    before = GPUS.format(tree=gpus.root, owner="root:root", mode="666")
    table = study(place)

    def run(*args: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        variables = [f"AAM_TEST_VERDICT={json.dumps(FOUND)}", f"XDG_CACHE_HOME={place}/cache"]
        own = ["--runtime", "apptainer", "--image", "rocm63"]
        line = ["env", *variables, f"AAM_TEST_STATUS={status}", PYTHON, "-m", "launcher.cli"]
        line += [*own, *args, "--table", str(table), "--output-dir", str(place / "out")]
        return engines.run(line, before=before, cwd=engines.folder)

    explained = run("explain", "pretrain")
    assert "not yet measured" in explained.stdout, explained.stderr
    assert not (place / "cache/aam/check-reports").exists()

    first = run("pretrain", status=1)
    assert first.returncode == 0, first.stderr
    assert "measuring attention once for gfx942" in first.stderr
    assert "Catalog and measurement disagree" in first.stderr
    printed = json.loads(first.stdout)
    assert "--attn-implementation" not in printed["args"]  # aam chooses from the report
    handed = json.loads(printed["environment"]["AAM_CHECK_REPORT"])
    assert handed["cases"][0]["fault"] == "first mask for all"
    assert handed["key"]["arch"] == "gfx942"

    again = run("pretrain")
    assert "measuring" not in again.stderr
    assert json.loads(json.loads(again.stdout)["environment"]["AAM_CHECK_REPORT"]) == handed
    explained = run("explain", "pretrain")
    assert "auto wrong (first mask for all), math right" in explained.stdout
    assert "measured 2026-01-02" in explained.stdout
    assert "AAM_CHECK_REPORT=..." in explained.stdout
    assert "measuring" in run("pretrain", "--recheck").stderr
    unchecked = run("pretrain", "--no-check")
    assert "AAM_CHECK_REPORT" not in json.loads(unchecked.stdout)["environment"]

    refused = run("pretrain", "--recheck", status=69)
    assert refused.returncode == 69
    assert "The GPU does not compute" in refused.stderr
    failed = run("pretrain", "--recheck", status=64)
    assert failed.returncode == 0
    assert "The stack could not be measured" in failed.stderr


def test_a_stack_that_failed_its_check_is_not_chosen(
    engines: Engines, place: Path, gpus: Tree
) -> None:
    """The newest image computes nothing right, so the launch takes the next, and later ones too."""
    images = place / "images"
    images.mkdir()
    for name in ("rocm64", "rocm63"):  # two SIFs, so that each has a report of its own
        sif = images / f"{name}.sif"
        sif.write_bytes((engines.images / "cpu.sif").read_bytes() + name.encode())
        index.write(images, name, "sif", record_of(sif))
    shutil.chown(images, USER)
    before = GPUS.format(tree=gpus.root, owner="root:root", mode="666")
    table = study(place)
    broken = {**FOUND, "cases": [case(name, "wrong") for name in ("auto", "math")]}

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        verdicts = {"": FOUND, "_rocm64": broken}
        line = ["env", f"XDG_CACHE_HOME={place}/cache", f"AAM_IMAGE_DIR={images}"]
        line += [f"AAM_TEST_VERDICT{image}={json.dumps(v)}" for image, v in verdicts.items()]
        line += [PYTHON, "-m", "launcher.cli", "--runtime", "apptainer", *args]
        line += ["--table", str(table), "--output-dir", str(place / "out")]
        return engines.run(line, before=before, cwd=engines.folder)

    first = run("pretrain")
    assert first.returncode == 0, first.stderr
    assert first.stderr.count("measuring attention once") == 2
    assert "A stack is not chosen, because aam check failed with it: rocm64" in first.stderr
    assert json.loads(first.stdout)["environment"]["APPTAINER_NAME"] == "rocm63.sif"

    explained = run("explain", "pretrain")
    assert f"{images}/rocm63.sif" in explained.stdout
    assert "rocm64 on gfx942: no correct attention backend, measured 2026-01-02" in explained.stdout
    named = run("pretrain", "--image", "rocm64")
    assert named.returncode == 69
    assert "aam check failed with it on gfx942" in named.stderr
    assert run("pretrain", "--recheck").stderr.count("measuring attention once") == 2


def test_no_permission_names_the_group(engines: Engines, place: Path, gpus: Tree) -> None:
    before = GPUS.format(tree=gpus.root, owner="root:video", mode="660")
    args = ["pretrain", "--table", str(study(place)), "--image", "rocm63"]
    args += ["--output-dir", str(place / "out")]
    done = engines.launch("apptainer", *args, before=before)
    assert done.returncode == 77
    assert "usermod -aG video" in done.stderr
    assert not (place / "out").exists()
