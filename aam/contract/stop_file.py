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
"""Least optimizer steps of a start within its time limit; with fewer it is not requeued."""


def request(file: Path, reason: str) -> None:
    """Request a stop, unless the file has a request."""
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
    """Add optimizer steps to the count of this start of the job."""
    write_text(file.with_name("steps"), str(steps_made(file) + steps))


def steps_made(file: Path) -> int:
    """Return the counted optimizer steps of this start of the job."""
    try:
        return int(file.with_name("steps").read_text())
    except (OSError, ValueError):
        return 0
