"""`aam-launch jobs`: the jobs that were submitted, their state, progress and last metrics."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.commands import parse_own, print_json
from launcher.documents import user_folder
from launcher.options.clusters import Jobs
from launcher.slurm import history, queue
from launcher.slurm.status import JobStatus, job_status

SHOWN = 30


def run(launcher_options: Mapping[str, Any], argv: Sequence[str]) -> int:
    """List the jobs that were submitted from here, the most recent first."""
    parse_own(Jobs, argv, "jobs")
    known = queue.queued() if queue.available() else {}
    submitted = list(history.entries(user_folder("XDG_STATE_HOME", os.environ)))
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
