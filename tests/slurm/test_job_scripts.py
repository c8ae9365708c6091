"""Submissions that a real Slurm refuses, and the scripts of `slurm/` on it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from launcher.slurm.files import files
from tests.support.engines import USER
from tests.support.images import workshop
from tests.support.slurm_cluster import (
    EPOCHS,
    Cluster,
    Job,
    same,
)

pytestmark = [pytest.mark.slurm, pytest.mark.container]

ROOT = Path(__file__).parents[2]


def test_what_slurm_refuses_is_reported_before_anything_is_queued(cluster: Cluster) -> None:
    own = ["submit", "--site", cluster.folder / "site.yaml", "--image", "cpu", "--gpus", "1"]
    words = cluster.pretraining("refused", 1)
    for more, status, sentence in (
        (["--partition", "nowhere"], 64, "No such partition: "),
        (["--reservation", "none"], 64, "Slurm refuses the job: "),
        (["--time", "25", "--nodes", "3"], 64, "More nodes than the site allows"),
        (["--time", "2:00:00"], 64, "More time than the site allows"),
    ):
        done = cluster.launch(*own, *more, *words)
        assert (done.returncode, done.stdout) == (status, ""), done.stderr
        assert sentence in done.stderr
        assert done.stderr.count("\n") == 1
    assert "there are gpu." in cluster.launch(*own, "--partition", "nowhere", *words).stderr


def test_two_jobs_cannot_write_one_output(cluster: Cluster) -> None:
    job = cluster.submit("--gpus", "1", *cluster.pretraining("twice", 10_000))
    own = ["submit", "--site", cluster.folder / "site.yaml", "--image", "cpu", "--gpus", "1"]
    for more in ([], ["--overwrite"]):
        done = cluster.launch(*own, *cluster.pretraining("twice", 1), *more)
        assert done.returncode == 73
    assert f"belongs to job {job.number}" in done.stderr
    cluster.slurm("scancel", job.number)
    assert job.ended() == "CANCELLED"
    again = cluster.submit("--gpus", "1", *cluster.pretraining("twice", 1), "--overwrite")
    assert again.ended() == "COMPLETED", again.output


def test_an_image_that_was_not_locked(cluster: Cluster, tmp_path: Path) -> None:
    images = cluster.folder / "images"
    images.mkdir()
    os.link(workshop().images / "cpu.sif", images / "cpu.sif")
    own = ["submit", "--site", cluster.folder / "site.yaml", "--image-dir", images, "--image",
           "cpu", "--gpus", "1"]  # fmt: skip
    words = cluster.pretraining("unlocked", 1)
    done = cluster.launch(*own, *words)
    assert done.returncode == 69
    assert "Image cpu is not locked" in done.stderr
    now = (images / "cpu.sif").stat()
    held = {"sha256": "0" * 64, "bytes": now.st_size, "mtime_ns": now.st_mtime_ns}
    (images / "images.json").write_text(json.dumps({"cpu": {"sif": held}}))
    done = cluster.launch(*own, *words)
    assert done.returncode == 69
    assert "is not the one that was locked" in done.stderr


@pytest.mark.parametrize("name", files())
def test_slurm_accepts_every_file(cluster: Cluster, name: str) -> None:
    variables = {**os.environ, "SLURM_CONF": f"{cluster.state}/slurm.conf"}
    options = ["--partition=gpu", "--nodes=1-2", "--time=10"]
    done = subprocess.run(
        ["sbatch", "--test-only", *options, str(ROOT / "slurm" / name)],
        capture_output=True, text=True, env=variables, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_file_trains_as_a_submitted_job(cluster: Cluster, alone: Path) -> None:
    job = sbatch(cluster, *cluster.pretraining("file", EPOCHS)[1:])
    assert job.ended() == "COMPLETED", job.output
    same(alone, cluster.folder / "file")


MISTAKES = [
    (["--table", "/none.biom", "--device", "cpu", "--output-dir", "typo"],
     "No file for --table: '/none.biom'"),
    (["--table", "study/table.biom"], "--output-dir"),
    (["--tabel", "study/table.biom", "--output-dir", "typo"], "did you mean '--table'?"),
    (["--table", "study/table.biom", "--tree", "study/tree.nwk", "--output-dir", "typo"],
     "The job needs GPUs: "),
]  # fmt: skip


@pytest.mark.parametrize(("words", "sentence"), MISTAKES)
def test_a_mistake_in_the_options_of_a_file_ends_the_job_at_once(
    cluster: Cluster, words: list[str], sentence: str
) -> None:
    job = sbatch(cluster, *words)
    assert job.ended() == "FAILED", job.output
    assert sentence in job.output
    assert re.search(r"ended with status (64|66|69)$", job.output, re.MULTILINE)
    assert not (cluster.folder / "typo").exists()


def sbatch(cluster: Cluster, *words: object) -> Job:
    """Submit slurm/pretrain_single.sh as on a cluster without modules."""
    script = cluster.folder / "pretrain_single.sh"
    text = (ROOT / "slurm/pretrain_single.sh").read_text()
    script.write_text(re.sub(r"^.*module.*\n", "", text, flags=re.MULTILINE))
    image = cluster.engines.images / "cpu.sif"
    export = f"AAM_ENGINE=apptainer,AAM_IMAGE={image},AAM_BIND={cluster.folder}"
    export += ",OMP_NUM_THREADS=1,PATH=/usr/bin:/bin"
    log = cluster.folder / "%j.log"
    done = subprocess.run(
        ["runuser", "-u", USER, "--", "env", f"SLURM_CONF={cluster.state}/slurm.conf", "sbatch",
         "--parsable", "--partition=gpu", "--time=20", f"--output={log}", f"--export={export}",
         str(script), *map(str, words)],
        capture_output=True, text=True, check=False, cwd=cluster.folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    number = done.stdout.strip()
    return Job(cluster, number, cluster.folder / f"{number}.log")
