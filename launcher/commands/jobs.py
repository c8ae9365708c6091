"""`aam-launch jobs`: what was submitted, where it stands, what it last measured."""

from __future__ import annotations

import os
from collections.abc import Sequence

from launcher.commands import no_more, print_json
from launcher.jobs import ledger, queue
from launcher.jobs.standing import Standing, standing
from launcher.plan.own import split_own

SHOWN = 30


def run(words: Sequence[str]) -> int:
    """List the jobs that were submitted from here, the last ones first."""
    own, rest = split_own(words)
    no_more(rest, "jobs")
    known = queue.queued() if queue.there() else {}
    submitted = list(ledger.entries(ledger.state_folder(os.environ)))
    rows = [row for entry in reversed(submitted) for row in standing(entry, known)]
    if "--json" in own:
        print_json([vars(row) for row in rows])
        return 0
    if not rows:
        print("Nothing was submitted from here.")
    for line in _table(rows[:SHOWN]):
        print(line)
    return 0


def _table(rows: Sequence[Standing]) -> list[str]:
    if not rows:
        return []
    cells = [("JOB", "NAME", "STATE", "LEFT", "LAST", "FOLDER")]
    cells += [(r.job, r.name, r.state, r.left, r.last, r.folder) for r in rows]
    widths = [max(len(row[k]) for row in cells) for k in range(5)]
    return ["  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[5]])
            for row in cells]  # fmt: skip
