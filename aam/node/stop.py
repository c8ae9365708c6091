"""Stop requests: a file that the job script writes and `aam` sees, and what follows from it.

A file and not a signal, because Slurm signals every process of a step, also the one that serves the
image's file system (squashfuse), without which `aam` ends with a bus error.

The file holds one word: `requeue` (a person wants the job to continue later), `end` (save, then
end) or `limit` (the time limit is near). `aam` counts its steps in the file `steps` beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aam.contract.errors import Interrupted
from aam.contract.files import atomic_write

VARIABLE = "AAM_STOP_FILE"
"""Names the file of the stop request to `aam`."""

REQUEUE, END, LIMIT = "requeue", "end", "limit"
QUEUE_AGAIN = 99
"""Status of the step `finish` that makes the job script queue the job again."""

FEWEST_STEPS = 3
"""Optimiser steps that a start has to make before its time limit, or it does not start again."""


@dataclass(frozen=True)
class Outcome:
    """Exit status of a job, and the line about it in the log."""

    status: int
    message: str


def request(file: Path, reason: str) -> None:
    """Request a stop, unless one has been requested."""
    try:
        with file.open("x") as stream:
            stream.write(f"{reason}\n")
    except FileExistsError:
        pass


def requested(file: Path) -> str:
    """Return the reason of the stop request, or nothing."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def count_steps(file: Path, steps: int) -> None:
    """Add to the optimiser steps that this start of the job has made."""
    place = _steps_file(file)
    with atomic_write(place) as temporary:
        temporary.write_text(str(steps_made(file) + steps))


def steps_made(file: Path) -> int:
    """Return the optimiser steps that this start of the job has made and counted."""
    try:
        return int(_steps_file(file).read_text())
    except (OSError, ValueError):
        return 0


def _steps_file(file: Path) -> Path:
    return file.with_name("steps")


def stop_time(now: float, end: float, usual: float) -> float:
    """Return when to stop a job that ends at `end`.

    It is `usual` seconds before the end, but never in the first three quarters of the time left.

    >>> stop_time(0, 86400, 600), stop_time(0, 600, 600)
    (85800.0, 450.0)
    """
    return float(end - min(usual, max(0, end - now) / 4))


def decide(status: int, reason: str, steps: int, requeue: bool) -> Outcome:
    """Return how a job ends.

    Args:
        status: exit status of the rank that failed first, or of `aam`.
        reason: of the stop request, or nothing.
        steps: optimiser steps of this start.
        requeue: the job may be queued again at its time limit.
    """
    if status != Interrupted.status or not reason:
        return Outcome(status, f"ended with status {status}")
    ended = f"ended with status {status}, stopped"
    if reason == LIMIT and requeue and steps < FEWEST_STEPS:
        return Outcome(status, f"{ended} by the time limit after {steps} optimiser "
                       f"step{'s' * (steps != 1)}; not queued again, because it would not get "
                       "further: give the job more time (--time)")  # fmt: skip
    if reason == REQUEUE or (reason == LIMIT and requeue):
        why = "by the time limit" if reason == LIMIT else "on request"
        return Outcome(QUEUE_AGAIN, f"stopped {why}; queued again")
    why = "by the time limit" if reason == LIMIT else "on request"
    return Outcome(status, f"{ended} {why}; continue with --resume-from auto")
