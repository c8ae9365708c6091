"""`aam-launch jobs`: the jobs that were submitted, their state, progress and last metrics."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.commands import parse_own, print_json
from launcher.documents import user_folder
from launcher.options.inspection import Jobs
from launcher.slurm import history, queue
from launcher.slurm.history import Submitted
from launcher.slurm.queue import Queued
from launcher.slurm.script import log_file

SHOWN = 30

ENDED = re.compile(r"^aam-job: ended with status (\d+)(, stopped)?", re.MULTILINE)

QUEUED_AGAIN = re.compile(r"^aam-job: stopped .*; queued again$", re.MULTILINE)

TAIL = 1 << 16

METRICS = ("val_loss", "train_loss")


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


@dataclass(frozen=True)
class JobStatus:
    """One row of the list: a job, or a task of an array."""

    job: str
    name: str
    state: str
    left: str
    progress: str
    last: str
    folder: str
    log: str


def job_status(entry: Submitted, known: Mapping[str, Queued]) -> list[JobStatus]:
    """Return the status of a job, or of each task of an array."""
    rows = []
    for number, folder in entry.folders.items():
        log = log_file(entry.log, number)
        job = known.get(number)
        active = job is not None and job.active
        left, place = job.left if job and active else "", Path(folder)
        state, shown = _state(job, log), progress(place, active)
        last = last_metrics(place)
        rows.append(JobStatus(number, entry.name, state, left, shown, last, folder, log))
    return rows


def _state(job: Queued | None, path: str) -> str:
    """Return the state of a job whose log is `path`."""
    log = _tail(path)
    ends = list(ENDED.finditer(log))
    code, stopped = ends[-1].groups() if ends else ("", None)
    status = f" (status {code})" if code not in ("", "0") else ""
    if job is not None and job.active:
        reason = f" ({job.reason})" if job.state == "PENDING" and job.reason != "None" else ""
        again = " again" if job.state == "PENDING" and QUEUED_AGAIN.search(log) else ""
        return f"{job.state.lower()}{again}{reason}"
    if job is not None and job.state not in ("COMPLETED", "FAILED"):
        return f"{job.state.lower().replace('_', ' ')}{status}"
    if stopped:
        return "stopped, can be resumed"
    if ends:
        return "finished" if code == "0" else f"failed{status}"
    failed = job is not None and job.state == "FAILED"
    if not os.path.exists(path):
        # Slurm ends a job whose node cannot make the log, which is beside the output.
        cause = "not started, or its node does not see the folder"
        return f"{'failed' if failed else 'unknown'}, no log: {cause}"
    return "failed" if failed else "unknown, see its log"


def progress(folder: Path, running: bool) -> str:
    """Return step or trial, rate and, of a run that goes on, time left, from progress.json."""
    try:
        found = json.loads((folder / "progress.json").read_text())
        unit = "trial" if "trial" in found else "step"
        text = f"{unit} {int(found[unit])}/{int(found[unit + 's'])}"
        if int(found["folds"]) > 1:
            text = f"fold {int(found['fold'])}/{int(found['folds'])} {text}"
        if running and found.get("samples_per_second") is not None:
            text += f", {float(found['samples_per_second']):.3g} samples/s"
            text += f", {_duration(float(found['seconds_left']))} left"
        return text
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _duration(seconds: float) -> str:
    """Return a time as hours and minutes.

    >>> _duration(59), _duration(3700)
    ('0:00:59', '1:01:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def last_metrics(folder: Path) -> str:
    """Return the last row of metrics.csv, in short."""
    try:
        with (folder / "metrics.csv").open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        last = rows[-1]
        shown = [f"{name} {float(last[name]):.4g}" for name in METRICS if last.get(name)]
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
