"""Jobs on a real Slurm of two nodes, in a real image: training, arrays, staging, shared memory.

Nothing here is timed; a test waits for what a job does.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from pathlib import Path

import pytest

from tests.support.slurm_cluster import (
    EPOCHS,
    Cluster,
    Job,
    losses,
    near,
    ranks,
    rows,
    same,
    until,
)

pytestmark = [pytest.mark.slurm, pytest.mark.container]


def test_one_rank_trains_as_without_slurm(cluster: Cluster, alone: Path) -> None:
    job = cluster.submit("--gpus", "1", *cluster.pretraining("single", EPOCHS))
    assert job.ended() == "COMPLETED", job.output
    same(alone, cluster.folder / "single")
    assert "WARNING" not in job.output
    assert rows(alone) == rows(cluster.folder / "single") == EPOCHS
    assert cluster.jobs()[job.number] == "finished"
    assert "aam-job: ended with status 0" in job.output
    left = [p.name for p in (cluster.folder / "single").iterdir() if p.name.startswith(".")]
    assert left == [".aam-job"]
    assert not Path(f"/tmp/aam-{job.number}").exists()


def test_a_node_and_two_nodes_train_alike(cluster: Cluster, alone: Path) -> None:
    node = cluster.submit("--gpus", "4", *cluster.pretraining("node", EPOCHS))
    assert node.ended() == "COMPLETED", node.output
    two = cluster.submit("--nodes", "2", "--gpus", "2", *cluster.pretraining("two", EPOCHS))
    assert two.ended() == "COMPLETED", two.output
    assert "4 processes (DDP)" in node.output
    assert "4 processes (DDP)" in two.output
    near(cluster.folder / "node", cluster.folder / "two")
    # One process sums in another order; Adam makes more of that in the weights than in the loss.
    assert losses(cluster.folder / "two") == pytest.approx(losses(alone), rel=1e-4)


def test_training_and_prediction(cluster: Cluster, alone: Path) -> None:
    study, folder = cluster.folder / "study", cluster.folder
    job = cluster.submit(
        "--gpus", "1", "train", "--table", study / "table.biom", "--metadata",
        study / "metadata.tsv", "--metadata-column", "ph", "--pretrained-encoder", alone,
        "--output-dir", folder / "a 'model'", "--epochs", "2", "--batch-size", "8",
        "--device", "cpu", "--job-name", 'my "model"',
    )  # fmt: skip
    assert job.ended() == "COMPLETED", job.output
    assert cluster.jobs()[job.number] == "finished"
    words = ("predict", "--model", folder / "a 'model'", "--table", study / "table.biom",
             "--device", "cpu", "--output")  # fmt: skip
    job = cluster.submit(*words, folder / "predictions.tsv")
    assert job.ended() == "COMPLETED", job.output
    own = cluster.launch("--runtime", "apptainer", "--image", "cpu", *words, folder / "own.tsv")
    assert own.returncode == 0, own.stderr
    assert (folder / "predictions.tsv").read_text() == (folder / "own.tsv").read_text()


def test_an_array_trains_each_combination(cluster: Cluster) -> None:
    (cluster.folder / "sweep.yaml").write_text("lr: [0.001, 0.002]\n")
    job = cluster.submit(
        "--gpus", "1", "--array", cluster.folder / "sweep.yaml", *cluster.pretraining("array", 1)
    )
    tasks = {f"{job.number}_0", f"{job.number}_1"}
    until(lambda: {k for k, v in cluster.jobs().items() if v == "finished"} >= tasks, job)
    for value in ("0.001", "0.002"):
        assert rows(cluster.folder / f"array/lr-{value}") == 1


def test_shards_are_merged_to_the_bytes_of_one_process(cluster: Cluster, alone: Path) -> None:
    words = ("embed", "--table", cluster.folder / "study/table.biom", "--model", alone,
             "--batch-size", "8", "--device", "cpu", "--output-dir")  # fmt: skip
    whole, parts = cluster.folder / "embedded", cluster.folder / "embedded-parts"
    done = cluster.launch("--runtime", "apptainer", "--image", "cpu", *words, whole)
    assert done.returncode == 0, done.stderr
    site = ("--site", cluster.folder / "site.yaml", "--image", "cpu", "--time", "20")
    done = cluster.launch("submit", *site, *words, parts, "--gpus", 1, "--shards", 3)
    assert done.returncode == 0, done.stderr
    array, number = re.findall(r"^Job (\d+): aam", done.stdout, re.MULTILINE)
    merge = Job(cluster, number, Path(f"{parts}/embeddings.tsv-{number}.log"))
    assert merge.ended() == "COMPLETED", merge.output
    assert (parts / "embeddings.tsv").read_bytes() == (whole / "embeddings.tsv").read_bytes()
    assert len(list((parts / "embeddings.tsv.shards").glob("*-of-3.tsv"))) == 3
    assert {f"{array}_{k}" for k in range(3)} | {number} <= cluster.jobs().keys()


def test_the_tasks_of_a_search_share_its_trials(cluster: Cluster) -> None:
    study, folder = cluster.folder / "study", cluster.folder / "search"
    done = cluster.launch(
        "submit", "--site", cluster.folder / "site.yaml", "--image", "cpu", "--time", "20",
        "search", "--array-tasks", 2, "--table", study / "table.biom", "--metadata",
        study / "metadata.tsv", "--metadata-column", "ph", "--group-column", "subject",
        "--members", "kernel", "--vary", "rarefy-depth=200,300,400", "--trials", 2, "--folds", 2,
        "--inner-folds", 2, "--output-dir", folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    array, number = re.findall(r"^Job (\d+): aam", done.stdout, re.MULTILINE)
    last = Job(cluster, number, Path(re.findall(r"tail -F (.*)$", done.stdout, re.MULTILINE)[-1]))
    tasks = {f"{array}_{k}" for k in range(2)}
    until(lambda: {k for k, v in cluster.jobs().items() if v == "finished"} >= tasks, last)
    assert last.ended() == "COMPLETED", last.output
    assert len(json.loads((folder / "search.json").read_text())["folds"]) == 2
    with sqlite3.connect(folder / "search.db") as database:
        counted = "SELECT COUNT(*) FROM trials WHERE state IN ('COMPLETE', 'PRUNED')"
        (finished,) = database.execute(counted).fetchone()
    # Two trials in each fold, and two on all samples; of each the two tasks may run one more.
    assert 6 <= finished <= 9


def test_inputs_are_copied_to_the_node_once_and_checked(cluster: Cluster) -> None:
    job = cluster.submit("--gpus", "2", *cluster.pretraining("staged", 10_000))
    job.until_epoch(cluster.folder / "staged", 1)
    here = Path(f"/tmp/aam-{job.number}")
    table = cluster.folder / "study/table.biom"
    assert (here / "staged/0").read_bytes() == table.read_bytes()
    mounts = Path(f"/proc/{ranks(job)[-1]}/mountinfo").read_text()
    mounted = [line.split()[4] for line in mounts.splitlines() if "/staged/0 " in line]
    assert mounted == [str(table)]
    cluster.slurm("scancel", job.number)
    assert job.ended() == "CANCELLED"


def test_the_ranks_of_a_node_share_memory(cluster: Cluster) -> None:
    """NCCL and RCCL exchange data through /dev/shm; see launcher.engines.sif."""
    job = cluster.submit("--gpus", "2", *cluster.pretraining("shared", 10_000))
    job.until_epoch(cluster.folder / "shared", 1)
    devices = {os.stat(f"/proc/{rank}/root/dev/shm").st_dev for rank in ranks(job)}
    assert devices == {os.stat("/dev/shm").st_dev}
    cluster.slurm("scancel", job.number)
    assert job.ended() == "CANCELLED"
    assert "aam-job: cancelled; the last copied checkpoint is complete" in job.output
    assert cluster.jobs()[job.number] == "cancelled"
