"""Compute node: the steps of a batch job that run in the image beside `aam`.

A job script starts `python -m aam.node STEP` in the image with `srun`: `prepare` on each node,
`run` for each rank, `finish` on each node. All of it needs the standard library alone.
"""

from __future__ import annotations

import sys


def log(message: str) -> None:
    """Print one line on standard error, which Slurm writes to the log of the job."""
    print(f"aam-job: {message}", file=sys.stderr, flush=True)
