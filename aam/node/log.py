"""Log of a job: one line for each event, on standard error, which Slurm writes to the job's log."""

from __future__ import annotations

import sys

PREFIX = "aam-job: "


def log(message: str) -> None:
    """Print one line."""
    print(f"{PREFIX}{message}", file=sys.stderr, flush=True)
