"""Stop file: a job writes it; `aam` then saves a checkpoint and ends.

The file holds `requeue` (the job continues later) or `end` (save, then end). `aam` counts
its steps in the file `steps` beside it.
"""

from __future__ import annotations

from pathlib import Path

from aam.contract.files import write_text

VARIABLE = "AAM_STOP_FILE"  # environment variable that names the file to `aam`

REQUEUE, END = "requeue", "end"

MIN_STEPS = 3
"""Optimizer steps that a start has to make before its time limit, or it does not start again."""


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
    """Add to the optimizer steps that this start of the job has made."""
    write_text(file.with_name("steps"), str(steps_made(file) + steps))


def steps_made(file: Path) -> int:
    """Return the optimizer steps that this start of the job has made and counted."""
    try:
        return int(file.with_name("steps").read_text())
    except (OSError, ValueError):
        return 0
