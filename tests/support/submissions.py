"""`aam-launch submit` as a function, and a site, for tests of jobs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
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
        "PATH": f"{folder}/bin", "HOME": str(folder), "PYTHONPATH": str(ROOT), "USER": "ada",
        "AAM_IMAGE_DIR": f"{folder}/images", **variables,
    }  # fmt: skip
    command = [sys.executable, "-m", "launcher.cli", "submit", *args]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=folder, check=False
    )


WORDS = ("--site", "./site.yaml", "pretrain", "--table", "table.biom", "--tree", "tree.nwk",
         "--output-dir", "out")  # fmt: skip
