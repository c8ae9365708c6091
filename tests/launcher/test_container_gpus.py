"""GPUs in containers: visible devices, the folder of check reports, permissions."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.engines import LAUNCH, Engines
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
    line = ["env", *(f"{n}={v}" for n, v in masks.items()), *LAUNCH,
            "pretrain", "--table", str(study(place)), "--runtime", engine, "--image", "rocm63",
            "--output-dir", str(place / "out")]  # fmt: skip
    done = engines.run(line, user=user, before=before, cwd=engines.folder)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    seen = {path for path in printed["devices"] if path.startswith(("/dev/dri", "/dev/kfd"))}
    assert seen == {"/dev/kfd", *(f"/dev/dri/renderD{node}" for node in nodes)}
    assert all(printed["devices"][path] for path in seen)
    given = {n: v for n, v in printed["environment"].items() if n.endswith(("DEVICES", "ORDINAL"))}
    assert given == {"ROCR_VISIBLE_DEVICES": mask}
    assert not printed["libs"]


def test_the_folder_of_check_reports_goes_in(engines: Engines, place: Path, gpus: Tree) -> None:
    """A report as `aam` keeps it, for the digest of the image and the architecture of the GPUs."""
    before = GPUS.format(tree=gpus.root, owner="root:root", mode="666")
    table, reports = study(place), place / "cache/aam/check-reports"

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        line = ["env", f"XDG_CACHE_HOME={place}/cache", *LAUNCH]
        line += ["--runtime", "apptainer", "--image", "rocm63", *args]
        line += ["--table", str(table), "--output-dir", str(place / "out")]
        return engines.run(line, before=before, cwd=engines.folder)

    explained = run("explain", "pretrain")
    assert "not yet measured" in explained.stdout, explained.stderr
    assert not reports.exists()

    done = run("pretrain")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["environment"]["AAM_CHECK_REPORTS"] == str(reports)
    digest = json.loads(printed["environment"]["AAM_PLAN"])["digest"]

    key = {"image": digest, "arch": "gfx942", "driver": "6.10.5", "aam": "1", "attention": "4 x 32"}
    shown = {"stack": "gfx942, driver 6.10.5", "made": "2026-01-02", "verdict": "auto wrong"}
    (reports / "one.json").write_text(json.dumps({"key": key, **shown}))
    for number, change in enumerate(({"image": "sha256:2"}, {"arch": "gfx90a"})):
        other = {"key": {**key, **change}, **shown, "made": "2027", "verdict": "of another"}
        (reports / f"{number}.json").write_text(json.dumps(other))
    (reports / "damaged.json").write_text("{")
    explained = run("explain", "pretrain")
    assert "auto wrong" in explained.stdout, explained.stderr
    assert f"measured 2026-01-02 for gfx942, driver 6.10.5 [{reports}/one.json]" in explained.stdout


def test_no_permission_names_the_group(engines: Engines, place: Path, gpus: Tree) -> None:
    before = GPUS.format(tree=gpus.root, owner="root:video", mode="660")
    args = ["pretrain", "--table", str(study(place)), "--image", "rocm63"]
    args += ["--output-dir", str(place / "out")]
    done = engines.launch("apptainer", *args, before=before)
    assert done.returncode == 77
    assert "usermod -aG video" in done.stderr
    assert not (place / "out").exists()
