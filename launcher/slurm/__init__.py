"""Batch jobs: sites, preflight checks, the job script, and the client of Slurm."""

from __future__ import annotations

import sys


def log(message: str) -> None:
    """Print one line on standard error; Slurm writes it to the log of the job."""
    print(f"aam-job: {message}", file=sys.stderr, flush=True)
