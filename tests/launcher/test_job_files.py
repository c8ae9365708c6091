"""The scripts of `slurm/`: short, clean, and usable without a Slurm."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher import config
from launcher.plan.inputs import Request
from launcher.slurm.script import SubmitOptions, allocation_of

ROOT = Path(__file__).parents[2]
FILES = {path.name: path.read_text() for path in sorted((ROOT / "slurm").glob("*.sh"))}


# --- the files


def test_a_file_can_be_run() -> None:
    assert all(os.access(ROOT / "slurm" / name, os.X_OK) for name in FILES)


@pytest.mark.parametrize(
    ("name", "command", "nodes", "ranks"),
    [("pretrain_single", "pretrain", 1, 1), ("pretrain_node", "pretrain", 1, 4),
     ("pretrain_multi", "pretrain", 4, 4), ("train", "train", 1, 1), ("predict", "predict", 1, 1)],
)  # fmt: skip
def test_a_file_requests_what_submit_requests(
    name: str, command: str, nodes: int, ranks: int
) -> None:
    site = config.site("cosmos")
    gpus = ranks if command != "predict" else None
    requested = SubmitOptions(nodes=nodes, gpus=gpus, time="" if gpus else "1:00:00", job_name=name)
    options = {"--members": ("transformer",)} if command == "train" else {}
    expected = list(allocation_of(Request(command, options), requested, site, "%x-%j.out").options)
    found = re.findall(r"^#SBATCH (.*)$", FILES[f"{name}.sh"], re.MULTILINE)
    assert found == expected
    assert FILES[f"{name}.sh"].endswith(f'\nexec aam-launch job {command} "$@"\n')


@pytest.mark.parametrize("name", FILES)
def test_a_file_names_no_person(name: str) -> None:
    text = FILES[name]
    assert not re.search(r"/home/\w|/Users/|--account|--mail|@[a-z]+\.(edu|com|org)", text)


# --- parts of a job, without an image


def run(name: str, *args: object) -> subprocess.CompletedProcess[str]:
    """Run a script as a user without an image does."""
    python = os.path.dirname(sys.executable)
    environment = {"PATH": f"{python}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
                   "USER": "ada", "HOME": "/nonexistent"}  # fmt: skip
    return subprocess.run(
        [ROOT / "slurm" / name, *args], capture_output=True, text=True, env=environment
    )


def test_a_node_is_shown() -> None:
    done = run("job_setup.sh")
    assert re.search(r"^scratch +\d+ GB free at '", done.stdout, re.MULTILINE), done.stderr
    assert re.search(r"^network +.*\blo\b", done.stdout, re.MULTILINE)
