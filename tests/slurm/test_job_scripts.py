"""Submissions that a real Slurm refuses, and scripts of `slurm/` that it accepts."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.images import workshop
from tests.support.slurm_cluster import Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.container]

ROOT = Path(__file__).parents[2]


def test_what_slurm_refuses_is_reported_before_anything_is_queued(cluster: Cluster) -> None:
    own = ["submit", "--site", cluster.folder / "site.yaml", "--image", "cpu", "--gpus", "1"]
    words = cluster.pretraining("refused", 1)
    for more, status, sentence in (
        (["--partition", "nowhere"], 64, "No such partition: "),
        (["--sbatch", "reservation=none"], 64, "Slurm refuses the job: "),
        (["--time", "25", "--nodes", "3"], 64, "More nodes than the site allows"),
        (["--time", "2:00:00"], 64, "More time than the partition allows"),
        (["--time", "2:00:00", "--force"], 64, "More time than the partition allows"),
    ):
        done = cluster.launch(*own, *more, *words)
        assert (done.returncode, done.stdout) == (status, ""), done.stderr
        assert sentence in done.stderr
        assert len([x for x in done.stderr.splitlines() if "warning: " not in x]) == 1
    assert "there are gpu." in cluster.launch(*own, "--partition", "nowhere", *words).stderr


def test_an_image_that_was_not_recorded(cluster: Cluster) -> None:
    images = cluster.folder / "images"
    images.mkdir()
    os.link(workshop().images / "cpu.sif", images / "cpu.sif")
    own = ["submit", "--site", cluster.folder / "site.yaml", "--image-dir", images, "--image",
           "cpu", "--gpus", "1"]  # fmt: skip
    words = cluster.pretraining("unlocked", 1)
    done = cluster.launch(*own, *words)
    assert done.returncode == 69
    assert "Image cpu is not recorded" in done.stderr
    now = (images / "cpu.sif").stat()
    held = {"sha256": "0" * 64, "bytes": now.st_size, "mtime_ns": now.st_mtime_ns}
    (images / "images.json").write_text(json.dumps({"cpu": {"sif": held}}))
    done = cluster.launch(*own, *words)
    assert done.returncode == 69
    assert "is not the recorded one" in done.stderr


def test_slurm_accepts_every_file(cluster: Cluster) -> None:
    variables = {**os.environ, "SLURM_CONF": f"{cluster.state}/slurm.conf"}
    for script in sorted((ROOT / "slurm").glob("*.sh")):
        options = ["--partition=gpu", "--nodes=1-2", "--time=10"]
        done = subprocess.run(
            ["sbatch", "--test-only", *options, str(script)],
            capture_output=True, text=True, env=variables, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (script.name, done.stderr)
