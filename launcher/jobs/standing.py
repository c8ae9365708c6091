"""Where a job stands: Slurm's word while it has one, then the job's own last line."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Mapping
from pathlib import Path

from aam.options.frozen import dataclass
from launcher.jobs.ledger import Submitted
from launcher.jobs.queue import Queued

ENDED = re.compile(r"^aam-job: ended with status (\d+)", re.MULTILINE)
AGAIN = "aam-job: stopped before the time limit; queued again"
TAIL = 1 << 16
FIGURES = ("val_loss", "train_loss")


@dataclass(frozen=True)
class Standing:
    """One row of the list."""

    job: str
    name: str
    state: str
    left: str
    last: str
    folder: str
    log: str


def standing(entry: Submitted, known: Mapping[str, Queued]) -> list[Standing]:
    """Return where a job stands, or each task of an array.

    Args:
        entry: as it was submitted.
        known: what Slurm still knows.
    """
    rows = []
    for number, folder in entry.folders.items():
        log = entry.log.replace("%a", number.partition("_")[2])
        job = known.get(number)
        rows.append(
            Standing(
                job=number,
                name=entry.name,
                state=_state(job, _tail(log)),
                left=job.left if job and job.active else "",
                last=last_figures(Path(folder)),
                folder=folder,
                log=log,
            )
        )
    return rows


def _state(job: Queued | None, log: str) -> str:
    ended = ENDED.findall(log)
    status = f" (status {ended[-1]})" if ended and ended[-1] != "0" else ""
    if job is not None and job.active:
        reason = f" ({job.reason})" if job.state == "PENDING" and job.reason != "None" else ""
        again = " again" if job.state == "PENDING" and AGAIN in log else ""
        return f"{job.state.lower()}{again}{reason}"
    if job is not None and job.state not in ("COMPLETED", "FAILED"):
        return f"{job.state.lower().replace('_', ' ')}{status}"
    if ended:
        return "finished" if ended[-1] == "0" else f"failed{status}"
    return "failed" if job is not None and job.state == "FAILED" else "unknown, see its log"


def last_figures(folder: Path) -> str:
    """Return the last row of metrics.csv, in short."""
    try:
        with (folder / "metrics.csv").open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        last = rows[-1]
        shown = [f"{name} {float(last[name]):.4g}" for name in FIGURES if last.get(name)]
        return "  ".join([f"epoch {int(float(last['epoch'])) + 1}", *shown[:1]])
    except (OSError, ValueError, KeyError, IndexError):
        return ""


def _tail(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - TAIL))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""
