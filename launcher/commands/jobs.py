"""`aam-launch jobs`: the jobs that were submitted, their state, progress, and why one failed.

A job is listed by its kept script (`submit.kept_scripts`). Its state comes from `squeue` or from
the last line of its log, its progress from `progress.json`. Users, other programs and full disks
damage these files: what cannot be read is left out, and never hides another job.
"""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from aam.contract.dataclass import dataclass
from aam.contract.errors import UsageError, printable
from aam.contract.options import required_option
from launcher.commands import parse_own, print_json
from launcher.commands.submit import kept_scripts
from launcher.slurm import queue
from launcher.slurm.queue import Queued
from launcher.slurm.script import directives, log_file
from launcher.system import regular

SHOWN = 30
COLUMNS = ("job", "name", "state", "left", "progress", "folder", "log", "message")
LONGEST = 1e10  # seconds left that are shown
TAIL = 1 << 16
ENDED = re.compile(r"^aam-job: ended with status (\d+)(?:, (\w+))?", re.MULTILINE)
QUEUED_AGAIN = re.compile(r"^aam-job: stopped .*; queued again$", re.MULTILINE)
MESSAGE = re.compile(r"^(?:aam|aam-job|aam-launch|\w*Error): .*$", re.MULTILINE)
"""A line of a log that may name the cause of a failure."""
REASONS = {
    "Resources": "waits for free nodes",
    "Priority": "other jobs are before it",
    "BeginTime": "starts again in a moment",
    "Dependency": "waits for another job",
    "DependencyNeverSatisfied": "the job it waits for has failed; cancel it",
    "PartitionTimeLimit": "wants more time than the partition gives and never starts; cancel it, "
    "and submit it with less --time",
    "PartitionNodeLimit": "wants more nodes than the partition gives and never starts",
    "PartitionDown": "the partition is closed",
    "ReqNodeNotAvail": "the nodes are down or reserved",
    "JobHeldUser": "held by you: `scontrol release`",
    "PartitionConfig": "wants more than a node of the partition has and never starts; cancel it",
    "BadConstraints": "no node has what --sbatch constraint wants",
    "JobHeldAdmin": "held by an administrator",
    "Nodes required for job are DOWN": "the nodes are down or reserved",
    "Assoc": "waits for a limit of the account: {}",
    "QOS": "waits for a limit of the quality of service: {}",
}
"""Reason of squeue(1), "JOB REASON CODES", or its beginning, in words."""


@dataclass(frozen=True)
class Jobs:
    """List the jobs that were submitted: state, time left, progress, and why one failed.

    Examples:
        aam-launch jobs
        aam-launch jobs --json
    """


@dataclass(frozen=True)
class JobsCancel:
    """Cancel jobs; the last checkpoint of a training stays, for --resume-from auto.

    Examples:
        aam-launch jobs cancel 4711
        aam-launch jobs cancel 4711 4712
    """

    numbers: tuple[str, ...] = required_option("Numbers of the jobs.", first=True, metavar="JOB")


def run(launcher_options: Mapping[str, Any], argv: Sequence[str]) -> int:
    """List the jobs that were submitted from here, the most recent first, or cancel some."""
    if argv[:1] == ["cancel"]:
        _cancel(parse_own(JobsCancel, argv[1:], "jobs cancel").numbers)
        return 0
    parse_own(Jobs, argv, "jobs")
    queued = queue.queued() if queue.available() else {}
    files = [file for file in kept_scripts().glob("*.sh") if re.fullmatch("[0-9]+", file.stem)]
    rows = [row_of(file, queued) for file in sorted(files, key=lambda file: -int(file.stem))]
    if "--json" in launcher_options:
        print_json(rows)
        return 0
    header = (*map(str.upper, COLUMNS[:6]), "", "")
    table = [header, *(tuple(row.values()) for row in rows[:SHOWN])] if rows else []
    widths = [max(len(cells[column]) for cells in table) for column in range(5)] if rows else []
    for *cells, folder, log, message in table:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        print("  ".join([*padded, folder]))
        if message:
            print(f"    {message}")
        if cells[2].startswith(("failed", "unknown", "stopped", "timeout")):
            print(f"    log {log}")
    if not rows:
        print("No job was submitted from here.")
    return 0


def _cancel(numbers: Sequence[str]) -> None:
    if wrong := [number for number in numbers if not re.fullmatch("[0-9]{1,19}", number)]:
        raise UsageError("Not the number of a job", repr(wrong[0]), "`aam-launch jobs` lists")
    queued = queue.queued()
    active = [number for number in numbers if number in queued and queued[number].active]
    if active:
        queue.cancel(active)
        print(f"Cancelled: {', '.join(active)}")
    if absent := [number for number in numbers if number not in active]:
        evidence = f"{', '.join(absent)}, ended or never there"
        raise UsageError("No such job is queued", evidence, "`aam-launch jobs` lists yours")


def row_of(file: Path, queued: Mapping[str, Queued]) -> dict[str, str]:
    """Return the row of a job whose script is `file`; `queued` are the jobs that Slurm lists.

    Its message is the cause of a failure, or why the job waits.
    """
    number, options, end, job = file.stem, dict[str, str](), "", queued.get(file.stem)
    with suppress(OSError, ValueError):
        options = directives(regular(file).decode(errors="replace"))
    log = log_file(options.get("output", ""), number)
    folder = log.removesuffix(f"-{number}.log")
    # A FIFO is not waited for.
    with suppress(OSError), os.fdopen(os.open(log, os.O_RDONLY | os.O_NONBLOCK), "rb") as stream:
        if os.path.isfile(log):
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - TAIL))
            end = stream.read(TAIL).decode(errors="replace")
    ends = list(ENDED.finditer(end))
    code, reason = ends[-1].groups() if ends else ("", None)  # "stopped", "cancelled"
    state, message, time_left, failed = "", "", "", False
    if job is not None and job.active:
        again = job.state == "PENDING" and QUEUED_AGAIN.search(end)
        state, time_left = job.state.lower() + " again" * bool(again), job.left
        if job.state == "PENDING" and job.reason != "None":
            # The longest beginning: "Dependency" is one of "DependencyNeverSatisfied".
            begins = [start for start in REASONS if job.reason.startswith(start)]
            text = REASONS[max(begins, key=len)] if begins else "{}"
            message = text.format(job.reason.partition(",")[0] if begins else job.reason)
    elif reason == "cancelled":
        state = reason
    elif reason == "stopped":
        state, message = "stopped, can be resumed", "continue it with --resume-from auto"
    elif job is not None and job.state not in ("COMPLETED", "FAILED"):
        state, failed = job.state.lower().replace("_", " "), True
    elif ends:
        failed = code != "0"
        state = f"failed (status {code})" if failed else "finished"
    else:
        state, failed = "failed" if job is not None and job.state == "FAILED" else "unknown", True
        if not os.path.exists(log):
            # Slurm ends a job whose node cannot make the log; the log is beside the output.
            message = "no log: cancelled before it started, or its node does not see the folder"
    if failed and not message:
        lines = [line for line in MESSAGE.findall(end) if not ENDED.match(line)]
        message = (lines or end.strip().splitlines() or [""])[-1]
    steps = progress(Path(folder), bool(time_left)) if folder else ""
    texts = (number, options.get("job-name", ""), state, time_left, steps, folder, log, message)
    return {key: printable(text, 300) for key, text in zip(COLUMNS, texts, strict=True)}


def progress(folder: Path, running: bool) -> str:
    """Return step or trial, rate, and time left of a running job, from progress.json."""
    try:
        content = msgspec.json.decode(regular(folder / "progress.json"), type=dict[str, Any])
    except (OSError, ValueError, RecursionError):
        return ""
    run = {key: value for key, value in content.items() if type(value) in (int, float)}
    unit = "trial" if "trial" in run else "step"
    if unit not in run or f"{unit}s" not in run:
        return ""
    fold, seconds_left = run.get("fold", 1), run.get("seconds_left", -1)
    text = f"{unit} {run[unit]}/{run[f'{unit}s']}"
    text = f"fold {fold}/{run['folds']} {text}" if run.get("folds", 1) > 1 else text
    if running and "samples_per_second" in run and 0 <= seconds_left <= LONGEST:
        minutes, seconds = divmod(round(seconds_left), 60)
        rate, time = run["samples_per_second"], f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
        text += f", {rate:.3g} samples/s, {time} left"
    return text
