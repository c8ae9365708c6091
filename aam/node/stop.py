"""Stop of a job: the stop request before its time limit, and the decision to requeue.

The request is a file and not a signal, because Slurm signals every process of a step, also the one
that serves the image's file system (squashfuse), without which `aam` ends with a bus error.
"""

from __future__ import annotations

from aam.contract.errors import Interrupted
from aam.contract.stop_file import FEWEST_STEPS, LIMIT, REQUEUE

QUEUE_AGAIN = 99
"""Status of the step `finish` that makes the job script queue the job again."""


def stop_time(now: float, end: float, usual: float) -> float:
    """Return when to stop a job that ends at `end`.

    It is `usual` seconds before the end, but never in the first three quarters of the time left.

    >>> stop_time(0, 86400, 600), stop_time(0, 600, 600)
    (85800.0, 450.0)
    """
    return float(end - min(usual, max(0, end - now) / 4))


def decide(status: int, reason: str, steps: int, requeue: bool) -> tuple[int, str]:
    """Return the exit status of a job, and the line about it in the log.

    Args:
        status: exit status of the rank that failed first, or of `aam`.
        reason: of the stop request, or nothing.
        requeue: the job may be queued again at its time limit.
    """
    if status != Interrupted.status or not reason:
        return status, f"ended with status {status}"
    why = "by the time limit" if reason == LIMIT else "on request"
    ended = f"ended with status {status}, stopped {why}"
    if reason == LIMIT and requeue and steps < FEWEST_STEPS:
        return status, (
            f"{ended} after {steps} optimizer step{'s' * (steps != 1)}; not queued again, because "
            "it would not get further: give the job more time (--time)"
        )
    if reason == REQUEUE or (reason == LIMIT and requeue):
        return QUEUE_AGAIN, f"stopped {why}; queued again"
    how = "continue with --resume-from auto, a search with its command"
    return status, f"{ended}; {how}"
