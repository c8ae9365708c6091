"""Jobs on a real Slurm of two nodes, in a real image: trained, stopped, requeued, killed.

Nothing here is timed; a test waits for what a job does. The tests run side by side (`begun` in
conftest.py), and a job shows several things where it can.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.engines import ROOT, USER
from tests.support.slurm_cluster import (
    LONG,
    SITE,
    Cluster,
    Job,
    losses,
    ranks,
    rows,
    same,
    until,
    weights,
)

pytestmark = [pytest.mark.slurm, pytest.mark.container, pytest.mark.usefixtures("begun")]

AGAIN = "; queued again"


# --- jobs that are stopped, requeued, killed or run out of disk space


def stop(cluster: Cluster, job: Job, run: Path, times: int) -> None:
    """Stop a run as by the time limit, and let Slurm start it again."""
    # Further than before: a start of one step would not be queued again.
    job.until_epoch(run, rows(run) + 4)
    job.signal("USR1")
    until(lambda: job.output.count(AGAIN) == times, job)
    until(lambda: job.state == "PENDING", job)
    (row,) = (row for row in cluster.rows() if row["job"] == job.number)
    assert row["state"] == "pending again"
    assert row["message"] == "starts again in a moment"
    job.hurry()


def test_a_stop_changes_no_result(cluster: Cluster, whole: Path) -> None:
    """Of two ranks on two nodes."""
    job = cluster.submit("--nodes", "2", "--gpus", "1", *cluster.pretraining("cut", LONG))
    two = cluster.submit("--nodes", "2", "--gpus", "1", *cluster.pretraining("uncut", LONG))
    run = cluster.folder / "cut"
    stop(cluster, job, run, 1)
    assert re.search(r"aam-job: stopped after \d+ optimizer steps; queued again", job.output)
    assert job.ended() == "COMPLETED", job.output
    assert two.ended() == "COMPLETED", two.output
    assert "start 2" in job.output
    same(cluster.folder / "uncut", run)
    # One process sums in another order; Adam makes more of that in the weights than in the loss.
    assert losses(run) == pytest.approx(losses(whole), rel=1e-3)


@pytest.mark.nightly
def test_two_stops_change_no_result(cluster: Cluster, whole: Path) -> None:
    run = cluster.folder / "cut-twice"
    job = cluster.submit("--gpus", "1", *cluster.pretraining("cut-twice", LONG))
    for times in (1, 2):
        stop(cluster, job, run, times)
    assert job.ended() == "COMPLETED", job.output
    assert "start 3" in job.output
    same(whole, run)


@pytest.mark.nightly
def test_a_node_that_dies_costs_some_steps_and_no_run(cluster: Cluster, whole: Path) -> None:
    run = cluster.folder / "dead"
    job = cluster.submit("--gpus", "1", *cluster.pretraining("dead", LONG))
    job.until_epoch(run, 3)
    node = job.node
    left = job.processes()
    with cluster.without(node):
        # What slurmctld does by itself after SlurmdTimeout, five minutes.
        cluster.slurm("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        for number in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        assert job.ended() == "COMPLETED", job.output
        assert job.node != node
    same(whole, run)


@pytest.mark.nightly
def test_a_daemon_that_dies_costs_nothing(cluster: Cluster, whole: Path) -> None:
    run = cluster.folder / "orphan"
    job = cluster.submit("--gpus", "1", *cluster.pretraining("orphan", LONG))
    job.until_epoch(run, 3)
    with cluster.without(job.node):
        job.until_epoch(run, 12)
    assert job.ended() == "COMPLETED", job.output
    assert "start 2" not in job.output
    same(whole, run)


def test_a_job_that_is_cancelled_leaves_a_whole_run(cluster: Cluster, whole: Path) -> None:
    """The next one continues it to what a run without Slurm ends with."""
    run = cluster.folder / "cancelled"
    job = cluster.submit("--gpus", "1", *cluster.pretraining("cancelled", LONG))
    site = ["submit", "--site", cluster.folder / "site.yaml", "--image", "cpu", "--gpus", "1"]
    for more in ([], ["--overwrite"]):  # two jobs cannot write one output
        done = cluster.launch(*site, *cluster.pretraining("cancelled", 1), *more)
        assert done.returncode == 73
    assert f"belongs to job {job.number}" in done.stderr
    job.until_epoch(run, 3)
    done = cluster.launch("jobs", "cancel", job.number)
    assert (done.returncode, done.stdout) == (0, f"Cancelled: {job.number}\n"), done.stderr
    assert job.ended() == "CANCELLED"
    assert "aam-job: ended with status 143, cancelled; the last checkpoint is" in job.output
    assert cluster.jobs()[job.number].startswith("cancelled")
    assert weights(run)
    again = cluster.submit(
        "--gpus", "1", *cluster.pretraining("cancelled", LONG), "--resume-from", "auto"
    )
    assert again.ended() == "COMPLETED", again.output
    same(whole, run)
    assert rows(whole) == rows(run) == LONG
    assert "WARNING" not in again.output
    assert cluster.jobs()[again.number] == "finished"
    assert "aam-job: ended with status 0" in again.output
    assert sorted(p.name for p in run.iterdir() if p.name.startswith(".")) == [".aam-job", ".lock"]
    assert not again.folder.exists()


def test_a_rank_that_is_killed_ends_the_job_with_its_status(cluster: Cluster, whole: Path) -> None:
    """Two ranks on each of two nodes, which compute what one process does."""
    run, table = cluster.folder / "killed", cluster.folder / "study/table.biom"
    job = cluster.submit("--nodes", "2", "--gpus", "2", *cluster.pretraining("killed", 10_000))
    job.until_epoch(run, 2)
    # Inputs are copied to the node once, and mounted in the place of the originals.
    (staged,) = (job.folder / "staged").glob("0-*")
    assert staged.read_bytes() == table.read_bytes()
    mounts = Path(f"/proc/{ranks(job)[-1]}/mountinfo").read_text()
    mounted = [line.split()[4] for line in mounts.splitlines() if f"/staged/{staged.name} " in line]
    assert mounted == [str(table)]
    # NCCL and RCCL exchange data through /dev/shm; see launcher.engines.sif.
    devices = {os.stat(f"/proc/{rank}/root/dev/shm").st_dev for rank in ranks(job)}
    assert devices == {os.stat("/dev/shm").st_dev}
    os.kill(ranks(job)[-1], signal.SIGKILL)
    assert job.ended() == "FAILED", job.output
    assert "4 processes (DDP)" in job.output
    assert "aam-job: ended with status 137" in job.output
    assert cluster.jobs()[job.number] == "failed (status 137)"
    assert weights(run)
    # The schedule of the learning rate is that of 10,000 epochs, so only the first ones compare.
    assert losses(run)[:2] == pytest.approx(losses(whole)[:2], rel=1e-2)


@pytest.mark.nightly
def test_a_full_disk_is_reported_and_costs_nothing(cluster: Cluster) -> None:
    disk = cluster.folder / "disk"
    image = cluster.folder / "disk.img"
    disk.mkdir()
    with image.open("wb") as stream:
        stream.truncate(1300 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(disk)], check=True)
    try:
        shutil.chown(disk, USER)
        job = cluster.submit("--gpus", "1", *cluster.pretraining("disk/run", 10_000))
        job.until_epoch(disk / "run", 2)
        free = shutil.disk_usage(disk).free
        subprocess.run(["fallocate", "-l", str(free - 8192), str(disk / "filler")], check=False)
        subprocess.run(["dd", "if=/dev/zero", f"of={disk}/rest", "bs=1024"], check=False)
        assert job.ended() == "FAILED", job.output
        assert "aam-job: ended with status 73" in job.output
        assert "The disk is full" in job.output
        (row,) = (row for row in cluster.rows() if row["job"] == job.number)
        assert row["state"] == "failed (status 73)"
        assert "The disk is full" in row["message"]
        assert weights(disk / "run")  # the last whole checkpoint
    finally:
        subprocess.run(["umount", str(disk)], check=True)
        image.unlink()


@pytest.mark.nightly
def test_a_job_ends_on_request_and_another_replaces_its_run(cluster: Cluster) -> None:
    run = cluster.folder / "twice"
    job = cluster.submit("--gpus", "1", *cluster.pretraining("twice", 10_000))
    job.until_epoch(run, 2)
    job.signal("USR2")
    assert job.ended() == "FAILED"
    assert "aam-job: ended with status 75" in job.output
    assert cluster.jobs()[job.number] == "stopped, can be resumed"
    assert weights(run)
    again = cluster.submit("--gpus", "1", *cluster.pretraining("twice", 1), "--overwrite")
    assert again.ended() == "COMPLETED", again.output
    assert rows(run) == 1


@pytest.mark.nightly
def test_a_start_that_gets_nowhere_is_not_queued_again(cluster: Cluster) -> None:
    job = cluster.submit("--gpus", "1", *cluster.pretraining("nowhere", 100_000))
    until(lambda: job.started, job)
    job.signal("USR1")  # as if the limit came while the program loads its libraries
    assert job.ended() == "FAILED", job.output
    assert (
        "not queued again, because it would not get further: give the job more time" in job.output
    )
    assert cluster.jobs()[job.number] == "stopped, can be resumed"


# --- what jobs compute


@pytest.mark.nightly
def test_ranks_of_one_node_train_as_one_process(cluster: Cluster, whole: Path) -> None:
    job = cluster.submit("--gpus", "2", *cluster.pretraining("node", LONG))
    assert job.ended() == "COMPLETED", job.output
    assert "2 processes (DDP)" in job.output
    assert losses(cluster.folder / "node") == pytest.approx(losses(whole), rel=1e-3)


def test_training_and_prediction(cluster: Cluster, whole: Path) -> None:
    study, folder = cluster.folder / "study", cluster.folder
    job = cluster.submit(
        "--gpus", "1", "train", "--table", study / "table.biom", "--metadata",
        study / "metadata.tsv", "--metadata-column", "ph", "--pretrained-encoder", whole,
        "--output-dir", folder / "a 'model'", "--epochs", "2", "--batch-size", "8",
        "--members", "transformer", "--folds", "2", "--repeats", "1",
        "--device", "cpu", "--job-name", 'my "model"',
    )  # fmt: skip
    assert job.ended() == "COMPLETED", job.output
    assert cluster.jobs()[job.number] == "finished"
    words = ("predict", "--model", folder / "a 'model'", "--table", study / "table.biom",
             "--device", "cpu", "--output")  # fmt: skip
    job = cluster.submit(*words, folder / "predictions.tsv")
    own = cluster.launch("--runtime", "apptainer", "--image", "cpu", *words, folder / "own.tsv")
    assert own.returncode == 0, own.stderr
    assert job.ended() == "COMPLETED", job.output
    assert (folder / "predictions.tsv").read_text() == (folder / "own.tsv").read_text()


@pytest.mark.nightly
def test_jobs_share_the_trials_of_a_search(cluster: Cluster) -> None:
    study, folder = cluster.folder / "study", cluster.folder / "search"
    done = cluster.launch(
        "submit", "--site", cluster.folder / "site.yaml", "--image", "cpu", "--time", "20",
        "search", "--jobs", 2, "--table", study / "table.biom", "--metadata",
        study / "metadata.tsv", "--metadata-column", "ph", "--group-column", "subject",
        "--members", "kernel", "--vary", "rarefy-depth=200,300,400", "--trials", 2, "--folds", 2,
        "--inner-folds", 2, "--output-dir", folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *trials, number = re.findall(r"^Job (\d+): aam", done.stdout, re.MULTILINE)
    last = Job(cluster, number, Path(f"{folder}-{number}.log"))
    (row,) = (row for row in cluster.rows() if row["job"] == number)
    # The trials may have ended before the queue is read.
    assert row["message"] in ("waits for another job", "waits for free nodes", "")
    until(lambda: {k for k, v in cluster.jobs().items() if v == "finished"} >= set(trials), last)
    assert last.ended() == "COMPLETED", last.output
    result = json.loads((folder / "search.json").read_text())
    assert len(result["folds"]) == 2
    # Two tasks may start their last trial of a study at the same moment.
    assert {study["trials"] for study in (*result["folds"], result["best"])} <= {2, 3}


# --- the scripts of `slurm/`


def sbatch(cluster: Cluster, *words: object, site: str = "site.yaml") -> Job:
    """Submit slurm/pretrain_single.sh as on a cluster without modules."""
    text = (ROOT / "slurm/pretrain_single.sh").read_text()
    export = f"AAM_LAUNCH_SITE={cluster.folder / site},AAM_LAUNCH_IMAGE=cpu,OMP_NUM_THREADS=1"
    export += f",AAM_IMAGE_DIR={cluster.engines.images},PYTHONPATH={cluster.engines.folder}/code"
    # A file names the installed program, which the PATH of its user has.
    program = cluster.folder / "bin/aam-launch"
    program.parent.mkdir(exist_ok=True)
    program.write_text(
        f'#!/bin/sh\nexec /usr/bin/python3 {cluster.engines.folder}/code/launcher "$@"\n'
    )
    program.chmod(0o755)
    export += f",HOME={cluster.folder}/home,PATH={program.parent}:/usr/bin:/bin"
    log = cluster.folder / "%j.log"
    script = cluster.folder / "pretrain_single.sh"
    script.write_text(re.sub(r"^.*module.*\n", "", text, flags=re.MULTILINE))
    done = subprocess.run(
        ["runuser", "-u", USER, "--", "env", f"SLURM_CONF={cluster.state}/slurm.conf", "sbatch",
         "--parsable", "--partition=gpu", "--time=20", f"--output={log}", f"--export={export}",
         str(script), *map(str, words)],
        capture_output=True, text=True, check=False, cwd=cluster.folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    number = done.stdout.strip()
    return Job(cluster, number, cluster.folder / f"{number}.log")


MISTAKES = [
    (["--table", "/none.biom", "--device", "cpu", "--output-dir", "typo"],
     "No file for --table: '/none.biom'"),
    (["--table", "study/table.biom"], "--output-dir"),
    (["--tabel", "study/table.biom", "--output-dir", "typo"], "did you mean '--table'?"),
]  # fmt: skip


def test_a_file_trains_as_a_submitted_job(cluster: Cluster, whole: Path) -> None:
    """So do mistakes in its options end at once."""
    job = sbatch(cluster, *cluster.pretraining("file", LONG)[1:])
    wrong = [(sbatch(cluster, *words), sentence) for words, sentence in MISTAKES]
    for_amd = "vendor: amd\narch: gfx942\nimages: {cpu: {vendor: amd, archs: [gfx942]}}\n"
    (cluster.folder / "gpus.yaml").write_text(SITE + for_amd)
    idle = sbatch(cluster, *cluster.pretraining("typo", 1)[1:-2], site="gpus.yaml")
    assert job.ended() == "COMPLETED", job.output
    same(whole, cluster.folder / "file")
    for job, sentence in wrong:
        assert job.ended() == "FAILED", job.output
        assert sentence in job.output
        assert job.exit_status in (64, 66)
    assert idle.ended() == "FAILED", idle.output
    assert idle.output.endswith("aam-job: ended with status 69\n")
    assert "GPU" in idle.output
    assert not (cluster.folder / "typo/run.json").exists()


# --- Slurm's own clock


@pytest.mark.nightly
def test_a_time_limit_cuts_a_job_and_it_goes_on(cluster: Cluster) -> None:
    """Two ranks on two nodes, two minutes, and far too many epochs."""
    words = cluster.pretraining("limit", 100_000)
    job = cluster.submit("--nodes", "2", "--gpus", "1", "--warn-seconds", "20", *words, time="2")
    until(lambda: AGAIN in job.output, job)
    until(lambda: job.state == "PENDING", job)
    run = cluster.folder / "limit"
    before = rows(run)
    step = int(re.findall(r"Stopped at step (\d+)", job.output)[-1])
    assert before > 0
    job.hurry()
    job.until_epoch(run, before + 2)
    table = (run / "metrics.csv").read_text().splitlines()[1:]
    assert [int(line.split(",")[0]) for line in table[: before + 2]] == list(range(before + 2))
    assert int(table[before + 1].split(",")[1]) > step
    cluster.slurm("scancel", job.number)
    assert job.ended() == "CANCELLED"


@pytest.mark.nightly
def test_a_short_limit_from_sbatch_leaves_time_to_train(cluster: Cluster) -> None:
    """Two minutes, and a warning time that is longer: it trains for at least a minute of them."""
    words = cluster.pretraining("short", 100_000)
    job = cluster.submit("--gpus", "1", "--warn-seconds", "600", *words, time="2")
    until(lambda: AGAIN in job.output, job)
    assert int(re.findall(r"Stopped at step (\d+)", job.output)[-1]) > 20
    until(lambda: job.state == "PENDING", job)  # before that, a requeue follows the cancellation
    cluster.slurm("scancel", job.number)
    assert job.ended() == "CANCELLED"
