"""Requests for an image that are refused before anything is built."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from aam.contract.errors import CannotCreate
from launcher.engines.engine import GIB, ImageBuild, require_room
from launcher.engines.sif import APPTAINER
from tests.support.engines import ROOT, Engines
from tests.support.images import build_argv, left
from tests.support.launches import forked, program


def here(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run `aam-launch images` with nothing but the given programs on PATH."""
    variables = {"PATH": f"{folder}/bin", "HOME": str(folder), "AAM_IMAGE_DIR": str(folder)}
    return forked(["images", *args], ROOT, variables)


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["bild", "cpu"], 64, "did you mean 'build'?"),
        (["build", "cpuu"], 64, "did you mean 'cpu'?"),
        (["build", "cpu", "--engine", "lxc"], 64, "No such engine: --engine lxc"),
        (["build", "cpu"], 69, "none of apptainer, singularity, podman, docker on PATH"),
        (["build", "cpu", "--wheels", "/nonexistent"], 66, "pip download"),
        (["build", "cpu", "--from", "a.tar", "--engine", "podman"], 64, "--from takes one SIF"),
        (["build", "cpu", "--from", "a.tar", "--build-arg", "TORCH=1"], 64, "--from takes one SIF"),
        (["verify", "cpu"], 66, "No such image is recorded"),
        (["rm", "cpu"], 64, "Unknown subcommand of `images`: 'rm'"),
        (["pull", "cpu"], 64, "--registry"),
    ],
)
def test_refused_at_once(tmp_path: Path, args: list[str], status: int, message: str) -> None:
    done = here(tmp_path, *args)
    assert (done.returncode, message in done.stderr) == (status, True), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "says", "needed"),
    [
        ("apptainer", "apptainer version 1.1.9-1.el8", "apptainer 1.2"),
        ("singularity", "apptainer version 1.1.0", "apptainer 1.2"),
        ("podman", "podman version 3.4.2", "podman 4.0"),
    ],
)
def test_an_engine_that_is_too_old(tmp_path: Path, name: str, says: str, needed: str) -> None:
    program(tmp_path / "bin" / name, f"echo '{says}'")
    done = here(tmp_path, "build", "cpu", "--engine", name)
    assert done.returncode == 69
    assert needed in done.stderr
    assert "too old" in done.stderr


def test_a_misspelt_argument_never_reaches_the_engine(tmp_path: Path) -> None:
    program(
        tmp_path / "bin" / "apptainer",
        f"echo x >> {tmp_path}/started",
        "echo apptainer version 1.4.5",
    )
    done = here(tmp_path, "build", "cpu", "--build-arg", "TORCHINDEX=x")
    assert done.returncode == 64
    assert "did you mean 'TORCH_INDEX'?" in done.stderr
    assert (tmp_path / "started").read_text().split() == ["x"]  # its version alone


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("TORCH=2.13.0", "PyTorch 2.13.0 has no hash in '"),  # the lock of cpu has 2.13.0+cpu
        ("BASE=debian:bookworm-slim", "A base without its digest: 'debian:bookworm-slim'"),
    ],
)
def test_a_build_without_a_known_hash_is_refused_before_anything_is_made(
    tmp_path: Path, argument: str, message: str
) -> None:
    program(tmp_path / "bin" / "apptainer", "echo apptainer version 1.4.5")
    done = here(tmp_path, "build", "cpu", "--build-arg", argument)
    assert done.returncode == 64
    assert message in done.stderr
    assert left(tmp_path) == ["bin"]


def test_room_is_added_up_for_each_file_system(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    halves = [(what, tmp_path, free * 2 // 3, f"set {what}") for what in ("ONE", "TWO")]
    require_room(halves[:1])
    with pytest.raises(CannotCreate, match="set TWO"):
        require_room(halves)


def test_the_variables_that_move_a_build(tmp_path: Path) -> None:
    given = {"HOME": "/h", "TMPDIR": "/t", "SINGULARITY_CACHEDIR": "/c"}
    build = ImageBuild("", "cpu", tmp_path / "cpu.sif", test=False, room=(5, 1))
    found = {step: need for step, *need in APPTAINER.needs(build, given)}
    assert found["unpacking"][0] == Path("/t")
    assert "APPTAINER_TMPDIR" in found["unpacking"][2]
    assert found["cache"][0] == Path("/c")
    assert "SINGULARITY_CACHEDIR" in found["cache"][2]
    assert found["image"][1] == GIB
    given = {"HOME": "/h", "APPTAINER_TMPDIR": "/a", "TMPDIR": "/t"}
    assert APPTAINER.needs(build, given)[0][1] == Path("/a")


@pytest.mark.container
def test_no_room(alone: Engines) -> None:
    small = f"mount -t tmpfs -o size=100m tmpfs {alone.images}"
    done = alone.run(build_argv(alone, "cpu", "apptainer"), before=small, cwd=alone.folder)
    assert done.returncode == 73, done.stderr
    assert "0.1 GiB free" in done.stderr
    assert "set AAM_IMAGE_DIR" in done.stderr
    small = "mount -t tmpfs -o size=100m tmpfs /mnt"
    argv = ["env", "APPTAINER_TMPDIR=/mnt", *build_argv(alone, "cpu", "apptainer")]
    done = alone.run(argv, before=small, cwd=alone.folder)
    assert done.returncode == 73, done.stderr
    assert "set APPTAINER_TMPDIR" in done.stderr
