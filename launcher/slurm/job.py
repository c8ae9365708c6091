"""Job: the process that a batch script starts, and its end.

    python -m launcher.slurm.job JOB.json srun [OPTIONS]

It starts itself with srun as each rank (`launcher.slurm.rank`), turns signals into a stop request,
copies the run for the last time, and decides whether the job is queued again.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from aam.contract import stop_file
from aam.contract.errors import AamError, CannotCreate, Interrupted
from aam.contract.files import system_error
from launcher.engines.folders import make_private
from launcher.slurm import job_file, log, queue, rank
from launcher.slurm.sync import Mirror, update_patiently
from launcher.slurm.task import Task, task_of

RANK, CLEAN = "--rank", "--clean"
"""First argument of a rank, and of the process that removes the folder of a node."""

VISIBLE = (
    """for file in "$0" "$1"; do
    [ -e "$file" ] || { echo "aam-job: $(hostname) does not see '$file'; """
    """install the launcher where all nodes see it" >&2; exit 69; }
done; shift; exec "$0" "$@"
"""
)
"""Starts a process of the launcher on a node, if the node sees the launcher."""

CANCELLED = 128 + signal.SIGTERM


def main(argv: Sequence[str] | None = None) -> int:
    """Run the batch process of a job, or one of its ranks; return the exit status."""
    first, *rest = sys.argv[1:] if argv is None else argv
    part: Callable[[Task, Path], int] = {
        RANK: lambda task, _: rank.run(task), CLEAN: clean
    }.get(first, lambda task, file: batch(task, file, rest))  # fmt: skip
    file = Path(rest[0] if first in (RANK, CLEAN) else first)
    of_node = f"{os.uname().nodename}: " if first in (RANK, CLEAN) else ""
    task = None
    try:
        task = task_of(job_file.read(file), file, os.environ)
        return part(task, file)
    except (AamError, OSError) as error:
        refused = error if isinstance(error, AamError) else system_error(error)
        if refused is None:
            raise
        log(f"{of_node}{refused}")
        if of_node and task is not None:
            rank.leave_status(task, refused.status)
        if not of_node:
            log(f"ended with status {refused.status}")
        return refused.status


def batch(task: Task, file: Path, srun: Sequence[str]) -> int:
    """Run the ranks of a job and return its exit status; queue it again where that is due.

    Raises:
        AamError: a folder of the job cannot be made.
    """
    stopped = {signal.SIGUSR1: stop_file.REQUEUE, signal.SIGUSR2: stop_file.END}
    cancelled = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal cancelled
        if number in stopped:
            request_stop(task, stopped[signal.Signals(number)])
        else:
            cancelled = True

    make_private([str(task.private.parent)])
    for folder in (task.private, task.shared):
        shutil.rmtree(folder, ignore_errors=True)
    make_private([str(task.private.parent), str(task.private)])
    task.shared.mkdir()
    for number in (*stopped, signal.SIGTERM):
        signal.signal(number, handle)
    ranks = int(os.environ.get("SLURM_NTASKS_PER_NODE") or task.job.ranks)
    log(f"start {task.start + 1}, `aam {task.request.command}` on "
        f"{os.environ.get('SLURM_JOB_NODELIST', os.uname().nodename)}")  # fmt: skip
    status = _srun(task, srun, ranks, RANK, file)
    # After scancel Slurm waits KillWait seconds (30 by default), too few for a last copy.
    if cancelled:
        for folder in (task.private, task.shared):
            shutil.rmtree(folder, ignore_errors=True)
        log("cancelled; the last copied checkpoint is complete")
        return CANCELLED
    status, again = end(task, status)
    if task.nodes > 1:
        _srun(task, [srun[0], "--quiet"], 1, CLEAN, file)
    clean(task, file)
    shutil.rmtree(task.shared, ignore_errors=True)
    if again:
        # Slurm ends this process to queue the job again; that is no cancellation.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        queue.requeue(os.environ)
    return status


def request_stop(task: Task, reason: str) -> None:
    """Request a stop of the ranks; without the folder of the node the job goes on."""
    try:
        stop_file.request(task.stop_file, reason)
    except OSError as error:
        log(f"No stop can be requested: '{task.stop_file}', {error.strerror}; the job goes on, and "
            "its last checkpoint is complete")  # fmt: skip


def _srun(task: Task, srun: Sequence[str], ranks: int, part: str, file: Path) -> int:
    """Start a part of the job as `ranks` processes on each node; return the exit status."""
    cpus = max(1, int(os.environ.get("SLURM_CPUS_ON_NODE") or 1) // ranks)
    # Since Slurm 22.05 srun does not take --cpus-per-task from sbatch.
    counts = [f"--nodes={task.nodes}", f"--ntasks-per-node={ranks}",
              f"--ntasks={task.nodes * ranks}", f"--cpus-per-task={cpus}"]  # fmt: skip
    code = str(Path(__file__).parents[1])
    own = [sys.executable, code, "-m", "launcher.slurm.job", part, str(file)]
    # `sbatch --export=NONE` leaves NONE here, and srun would pass no variable to the ranks.
    variables = {**os.environ, "SLURM_EXPORT_ENV": "ALL"}
    argv = [*srun, *counts, "/bin/sh", "-c", VISIBLE, *own]
    return subprocess.run(argv, env=variables, check=False).returncode


def end(task: Task, status: int) -> tuple[int, bool]:
    """Copy the run for the last time; return the status of the job, and whether to queue it again.

    Args:
        status: what `srun` returned for the ranks.
    """
    with suppress(OSError, ValueError):
        status = int(task.status_file.read_text())
    if task.run_folder and task.local_run and task.local_run.is_dir():
        try:
            mirror = Mirror(task.local_run, task.run_folder, task.number)
            update_patiently(mirror, task.job.of_site.number("sync_patience"))
        except CannotCreate as error:
            log(str(error))
            (task.private / "keep").touch()
            status = error.status
    reason, steps = stop_file.requested(task.stop_file), stop_file.steps_made(task.stop_file)
    again, message = decide(status, reason, steps, task.job.requeue)
    log(message)
    return status, again


def decide(status: int, reason: str, steps: int, requeue: bool) -> tuple[bool, str]:
    """Return whether a job is queued again, and the line about its end in the log.

    Args:
        status: exit status of the rank that failed first, or of `aam`.
        reason: of the stop request, or nothing.
        steps: optimizer steps of this start.
        requeue: the job may be queued again at its time limit.
    """
    if status != Interrupted.status or not reason:
        return False, f"ended with status {status}"
    why = "by the time limit" if reason == stop_file.LIMIT else "on request"
    ended = f"ended with status {status}, stopped {why}"
    at_limit = reason == stop_file.LIMIT and requeue
    if at_limit and steps < stop_file.FEWEST_STEPS:
        return False, (
            f"{ended} after {steps} optimizer step{'s' * (steps != 1)}; not queued again, because "
            "it would not get further: give the job more time (--time)"
        )
    if reason == stop_file.REQUEUE or at_limit:
        return True, f"stopped {why}; queued again"
    return False, f"{ended}; continue with --resume-from auto, a search with its command"


def clean(task: Task, file: Path) -> int:
    """Remove the folder of this node, unless a run is kept in it."""
    if not (task.private / "keep").exists():
        shutil.rmtree(task.private, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
