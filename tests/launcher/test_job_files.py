"""The scripts of `slurm/`: what `submit` writes, short, clean, and usable without a Slurm."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.slurm.files import files
from tests.support.submissions import SHELLCHECK, WORDS, submit

ROOT = Path(__file__).parents[2]
FILES = files()


# --- the files


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_what_submit_writes(name: str) -> None:
    path = ROOT / "slurm" / name
    assert path.read_text() == FILES[name], "run `make slurm`"
    assert os.access(path, os.X_OK)


def test_the_shell_of_a_file_is_that_of_a_submitted_job(place: Path) -> None:
    done = submit(place, *WORDS, "--gpus", "1", "--dry-run")
    shell = done.stdout[done.stdout.index("fail() {") :]
    for name in ("pretrain_single.sh", "pretrain_multi.sh", "train.sh", "predict.sh"):
        assert FILES[name].endswith(shell), name


@pytest.mark.parametrize("name", FILES)
def test_a_file_names_no_person(name: str) -> None:
    text = FILES[name]
    assert not re.search(r"/home/\w|/Users/|--account|--mail|@[a-z]+\.(edu|com|org)", text)
    assert "$USER" in text or "{USER" in text


@pytest.mark.skipif(SHELLCHECK is None and "CI" not in os.environ, reason="no shellcheck")
@pytest.mark.parametrize("name", FILES)
def test_a_file_is_clean(name: str) -> None:
    assert SHELLCHECK is not None
    checked = subprocess.run(
        [SHELLCHECK, str(ROOT / "slurm" / name)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout


def test_every_line_can_be_read_by_bash() -> None:
    for name, text in FILES.items():
        done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
        assert done.returncode == 0, (name, done.stderr)


# --- parts of a job, without an image


def run(name: str, *args: object) -> subprocess.CompletedProcess[str]:
    """Run a script as a user without an image does."""
    python = os.path.dirname(sys.executable)
    environment = {"PATH": f"{python}:{os.environ['PATH']}", "AAM_ENGINE": "native",
                   "PYTHONPATH": str(ROOT)}  # fmt: skip
    return subprocess.run(
        [ROOT / "slurm" / name, *args], capture_output=True, text=True, env=environment
    )


def test_files_are_staged_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "a b").write_text("one")
    done = run("stage_data.sh", tmp_path / "here", tmp_path / "a b")
    assert done.returncode == 0, done.stderr
    copied = (tmp_path / "here/a b").exists()
    assert copied or "in memory" in done.stderr


def test_a_run_folder_is_copied(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from/metrics.csv").write_text("epoch\n")
    done = run("sync_checkpoints.sh", tmp_path / "from", tmp_path / "to")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "to/metrics.csv").read_text() == "epoch\n"
    done = run("sync_checkpoints.sh", tmp_path / "none", tmp_path / "to")
    assert done.returncode == 66
    assert "No run folder" in done.stderr


def test_a_node_is_shown() -> None:
    done = run("job_setup.sh")
    assert done.returncode == 0, done.stderr
    assert re.search(r"aam-job: node .*, \d+ CPUs", done.stderr)
    assert "GB free" in done.stderr
