"""Jobs on a real Slurm that are stopped, requeued, killed or run out of disk space.

Nothing here is timed; a test waits for what a job does.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.engines import USER
from tests.support.slurm_cluster import (
    LONG,
    Cluster,
    ranks,
    rows,
    same,
    until,
    weights,
)

pytestmark = [pytest.mark.slurm, pytest.mark.container]

AGAIN = "; queued again"


def test_a_stop_request_changes_no_result(cluster: Cluster, whole: Path) -> None:
    job = cluster.submit("--gpus", "1", *cluster.pretraining("cut", LONG))
    run = cluster.folder / "cut"
    # The second time at once, before the program has loaded its libraries.
    for times, ready in ((1, lambda: rows(run) >= 3), (2, lambda: job.started)):
        until(ready, job)
        cluster.slurm("scancel", "--signal=USR1", "--batch", job.number)
        until(lambda times=times: job.output.count(AGAIN) == times, job)  # type: ignore[misc]
        until(lambda: job.state == "PENDING", job)
        assert "pending again" in cluster.jobs()[job.number]
        job.hurry()
    assert job.ended() == "COMPLETED", job.output
    same(whole, run)


def test_a_time_limit_cuts_a_job_and_it_goes_on(cluster: Cluster) -> None:
    """Slurm's own clock: two ranks on two nodes, two minutes, and far too many epochs."""
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


def test_a_job_that_is_cancelled_leaves_a_whole_run(cluster: Cluster, whole: Path) -> None:
    run = cluster.folder / "cancelled"
    job = cluster.submit("--gpus", "1", *cluster.pretraining("cancelled", LONG))
    job.until_epoch(run, 3)
    cluster.slurm("scancel", job.number)
    assert job.ended() == "CANCELLED"
    assert cluster.jobs()[job.number].startswith("cancelled")
    assert weights(run)
    again = cluster.submit(
        "--gpus", "1", *cluster.pretraining("cancelled", LONG), "--resume-from", "auto"
    )
    assert again.ended() == "COMPLETED", again.output
    same(whole, run)


def test_save_and_end(cluster: Cluster) -> None:
    run = cluster.folder / "saved"
    job = cluster.submit("--gpus", "1", *cluster.pretraining("saved", 10_000))
    job.until_epoch(run, 2)
    cluster.slurm("scancel", "--signal=USR2", "--batch", job.number)
    assert job.ended() == "FAILED"
    assert "aam-job: ended with status 75" in job.output
    assert cluster.jobs()[job.number] == "stopped, can be resumed"
    assert weights(run)


def test_a_rank_that_is_killed_ends_the_job_with_its_status(cluster: Cluster) -> None:
    run = cluster.folder / "killed"
    job = cluster.submit("--nodes", "2", "--gpus", "1", *cluster.pretraining("killed", 10_000))
    job.until_epoch(run, 2)
    os.kill(ranks(job)[-1], signal.SIGKILL)
    assert job.ended() == "FAILED", job.output
    assert "aam-job: ended with status 137" in job.output
    assert cluster.jobs()[job.number] == "failed (status 137)"
    assert weights(run)


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


def test_a_daemon_that_dies_costs_nothing(cluster: Cluster, whole: Path) -> None:
    run = cluster.folder / "orphan"
    job = cluster.submit("--gpus", "1", *cluster.pretraining("orphan", LONG))
    job.until_epoch(run, 3)
    with cluster.without(job.node):
        job.until_epoch(run, 12)
    assert job.ended() == "COMPLETED", job.output
    assert "start 2" not in job.output
    same(whole, run)


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
        until(lambda: "could not be copied" in job.output, job)
        kept = weights(disk / "run")
        cluster.slurm("scancel", "--signal=USR2", "--batch", job.number)
        assert job.ended() == "FAILED", job.output
        assert "No space left on device" in job.output
        assert "aam-job: ended with status 73" in job.output
        assert kept.keys() == weights(disk / "run").keys()
        (disk / "filler").unlink()
        place = re.findall(r"the rest is at '(.*)' on", job.output)[-1]
        assert weights(Path(place))
        shutil.rmtree(Path(place).parent)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
        image.unlink()


def test_a_short_limit_from_sbatch_leaves_time_to_train(cluster: Cluster) -> None:
    """Two minutes, and a warning time that is longer: it stops after three quarters of them."""
    words = cluster.pretraining("short", 100_000)
    job = cluster.submit("--gpus", "1", "--warn-seconds", "600", *words, time="2")
    until(lambda: AGAIN in job.output, job)
    assert "stopped by the time limit" in job.output
    assert int(re.findall(r"Stopped at step (\d+)", job.output)[-1]) > 20
    cluster.slurm("scancel", job.number)


def test_a_start_that_gets_nowhere_is_not_queued_again(cluster: Cluster) -> None:
    job = cluster.submit("--gpus", "1", *cluster.pretraining("nowhere", 100_000))
    until(lambda: job.started, job)
    # As if the limit came while the program loads its libraries.
    Path(f"/tmp/aam-{job.number}/stop").write_text("limit\n")
    assert job.ended() == "FAILED", job.output
    assert (
        "not queued again, because it would not get further: give the job more time" in job.output
    )
    assert cluster.jobs()[job.number] == "stopped, can be resumed"
