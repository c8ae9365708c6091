"""`aam-launch jobs`: the jobs that were submitted, their state, progress and last metrics."""

from __future__ import annotations

import os
from collections.abc import Sequence

from launcher.commands import no_more, print_json
from launcher.plan.launcher_options import split_launcher_options
from launcher.slurm import history, queue
from launcher.slurm.status import JobStatus, job_status

SHOWN = 30


def run(argv: Sequence[str]) -> int:
    """List the jobs that were submitted from here, the most recent first."""
    launcher_options, rest = split_launcher_options(argv)
    no_more(rest, "jobs")
    known = queue.queued() if queue.available() else {}
    submitted = list(history.entries(history.state_folder(os.environ)))
    rows = [row for entry in reversed(submitted) for row in job_status(entry, known)]
    if "--json" in launcher_options:
        print_json([vars(row) for row in rows])
        return 0
    if not rows:
        print("No job was submitted from here.")
    for line in _table(rows[:SHOWN]):
        print(line)
    return 0


def _table(rows: Sequence[JobStatus]) -> list[str]:
    if not rows:
        return []
    cells = [("JOB", "NAME", "STATE", "LEFT", "PROGRESS", "LAST", "FOLDER")]
    cells += [(r.job, r.name, r.state, r.left, r.progress, r.last, r.folder) for r in rows]
    widths = [max(len(row[k]) for row in cells) for k in range(6)]
    return ["  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[6]])
            for row in cells]  # fmt: skip
