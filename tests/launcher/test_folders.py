"""Private folders in a scratch folder where an attacker may write, too."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aam.contract.errors import ConfigurationError, NotPermitted
from launcher import config
from launcher.engines import make_private, shell_line
from launcher.launch import exposure
from launcher.plan.assembly import Plan
from tests.support.launches import ROOT, program, sif

OTHER_USER = 65534


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def folders(scratch: Path) -> list[str]:
    own = scratch / f"aam-{os.geteuid()}"
    return [str(own), str(own / "7-n1"), str(own / "7-n1/home")]


def test_private_folders_are_closed_to_others(scratch: Path) -> None:
    for _ in range(2):  # the second time they are there
        make_private(folders(scratch))
    assert {os.stat(folder).st_mode & 0o777 for folder in folders(scratch)} == {0o700}


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("fault", ["open", "of another user", "link"])
def test_a_folder_that_others_control_is_refused(scratch: Path, number: int, fault: str) -> None:
    """The outermost is the one whose child its owner could swap between check and use."""
    make_private(folders(scratch))
    folder, elsewhere = Path(folders(scratch)[number]), scratch.with_name("elsewhere")
    elsewhere.mkdir()
    if fault == "open":
        folder.chmod(0o777)
    elif fault == "link":
        shutil.rmtree(folder)
        folder.symlink_to(elsewhere)
    elif os.geteuid() == 0:
        os.chown(folder, OTHER_USER, OTHER_USER)
    else:
        pytest.skip("giving a folder to another user takes root")
    sentence = "others may write to '.*mode 777" if fault == "open" else "is not a folder of yours"
    with pytest.raises(NotPermitted, match=sentence):
        make_private(folders(scratch))
    assert list(elsewhere.iterdir()) == []


def evidence_of(scratch: Path) -> str:
    found = exposure(folders(scratch)[0])
    make_private(folders(scratch))  # a warning refuses nothing
    return found.evidence if found else ""


def test_a_scratch_folder_with_a_sticky_bit_is_safe(scratch: Path) -> None:
    assert evidence_of(scratch) == ""
    assert evidence_of(scratch / "made/later") == ""


def test_a_scratch_folder_where_others_may_rename_is_a_warning(scratch: Path) -> None:
    scratch.chmod(0o777)
    assert f"'{scratch}' has mode 777" in evidence_of(scratch)


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder to another group takes root")
@pytest.mark.parametrize("mode", [0o2775, 0o770])
def test_a_folder_of_a_group_is_a_warning(scratch: Path, mode: int) -> None:
    os.chown(scratch, -1, OTHER_USER)
    scratch.chmod(mode)
    assert f"'{scratch}' has mode {mode:o}" in evidence_of(scratch)
    scratch.chmod(mode | 0o1000)
    assert evidence_of(scratch) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder to another user takes root")
def test_a_folder_of_another_user_around_it_is_a_warning(scratch: Path) -> None:
    """A project folder is its leader's."""
    scratch.chmod(0o755)
    os.chown(scratch, OTHER_USER, OTHER_USER)
    assert f"another user owns '{scratch}'" in evidence_of(scratch / "me")


def test_two_launches_at_once_have_folders_of_their_own(tmp_path: Path) -> None:
    """One that starts when the first has ended finds the caches of the first."""
    began, go = tmp_path / "began", tmp_path / "go"
    note = f"""for word in "$@"; do case $word in HOME=*) echo "$word" >> '{began}';; esac; done"""
    program(tmp_path / "apptainer", note, f"until [ -e '{go}' ]; do sleep 0.02; done")
    sif(tmp_path / "own.sif")
    line = [sys.executable, "-m", "launcher", "--runtime", "apptainer", "--image", "./own.sif"]
    line += ["--scratch", str(tmp_path), "example", "--output-dir", "out"]
    path = f"{tmp_path}:{os.defpath}"
    variables = {"HOME": str(tmp_path), "PATH": path, "PYTHONPATH": str(ROOT)}

    def homes(expected: int) -> list[str]:
        while len(found := began.read_text().split() if began.exists() else []) < expected:
            time.sleep(0.02)
        return found

    started = []
    for number in (1, 2):
        started.append(subprocess.Popen(line, cwd=tmp_path, env=variables))
        homes(number)
    go.touch()
    assert [process.wait() for process in started] == [0, 0]
    assert subprocess.run(line, cwd=tmp_path, env=variables, check=False).returncode == 0
    first, second, third = homes(3)
    assert second == first.replace("/home", "-2/home")
    assert third == first


@pytest.mark.parametrize("job", ["../../etc", "1/../../x", "", "1 2", "٣", "-1"])
def test_the_job_of_a_private_folder_is_a_number(job: str) -> None:
    settings = config.read({"--scratch": "/scratch"}, {"HOME": "/nonexistent"})
    assert config.private_folder(settings, 7, "n1", "42") == "/scratch/aam-7/42-n1"
    with pytest.raises(ConfigurationError, match="SLURM_JOB_ID"):
        config.private_folder(settings, 7, "n1", job)


def test_a_pasted_line_refuses_them_too(scratch: Path) -> None:
    own = folders(scratch)[0]
    os.symlink(scratch, own)
    plan = Plan("native", "/bin/echo", ("example",), folders=tuple(folders(scratch)))
    done = subprocess.run(["sh", "-c", shell_line(plan)], capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stdout == ""
