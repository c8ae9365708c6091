"""Stop file: a job writes it; `aam` then saves a checkpoint and ends.

The file holds the reason. `aam` counts its steps in the file `steps` beside it.
"""

from __future__ import annotations

from pathlib import Path

from aam.contract.files import write_text

VARIABLE = "AAM_STOP_FILE"  # environment variable that names the file to `aam`

MIN_STEPS = 3
"""Least optimizer steps of a start within its time limit; with fewer it is not requeued."""


def count_steps(file: Path, steps: int) -> None:
    """Add optimizer steps to the count of this start of the job."""
    write_text(file.with_name("steps"), str(steps_made(file) + steps))


def steps_made(file: Path) -> int:
    """Return the counted optimizer steps of this start of the job."""
    try:
        return int(file.with_name("steps").read_text())
    except (OSError, ValueError):
        return 0
