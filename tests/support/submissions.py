"""`aam-launch submit` as a function, and a site, for tests of jobs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from launcher.engines.sif import record_of
from launcher.images import index
from tests.support.launches import forked, program, sif

ROOT = Path(__file__).parents[2]
SHELLCHECK = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
SITE = """title: a test site
partition: gpu
nodes: 8
max_nodes: 2
max_time: "12:00:00"
gpus_per_node: 4
vendor: amd
arch: gfx942
runtime: apptainer
stage_most_gb: 10
"""


def submit(folder: Path, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `aam-launch submit` in `folder` as a process of its own, with no Slurm on PATH."""
    environment = {
        "PATH": f"{folder}/bin", "HOME": str(folder), "USER": "ada",
        "AAM_IMAGE_DIR": f"{folder}/images", **variables,
    }  # fmt: skip
    return forked(["submit", *args], folder, environment)


def script_of(folder: Path, *args: str) -> str:
    """Return the script that a dry run prints."""
    done = submit(folder, *args, "--dry-run")
    assert done.returncode == 0, done.stderr
    return done.stdout


WORDS = ("--site", "./site.yaml", "pretrain", "--table", "table.biom", "--tree", "tree.nwk",
         "--output-dir", "out")  # fmt: skip


def queued(place: Path, *args: str) -> str:
    """Queue a command; return the script of the job, which is kept."""
    slurm_and_image(place, "echo 41")
    done = submit(place, *args, "--gpus", "1")
    assert done.returncode == 0, done.stderr
    return (place / ".local/state/aam/jobs/41.sh").read_text()


def slurm_and_image(place: Path, sbatch: str) -> Path:
    """Write two programs in place of Slurm's, and an image; return the image."""
    (place / "images").mkdir(exist_ok=True)
    image = sif(place / "images/rocm64.sif")
    index.write(image.parent, "rocm64", "sif", record_of(image))
    programs = {"sbatch": sbatch, "squeue": "true", "sinfo": "true", "scancel": "true"}
    for name, line in programs.items():
        program(place / "bin" / name, line)
    return image
