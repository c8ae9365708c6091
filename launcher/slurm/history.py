"""History of submitted jobs, and the lock that lets one job at a time write an output.

The list is a line of JSON for each job in ~/.local/state/aam/jobs.jsonl, the scripts lie beside
it. A hidden file of an output holds the number of the job that writes to it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from aam.contract.errors import CannotCreate
from aam.contract.files import try_lock
from launcher.slurm.queue import Queued


@dataclass(frozen=True)
class Submitted:
    """A job as it was submitted; `folders` by the number of the job or of its tasks.

    `log` is as sbatch's --output takes it (`script.log_file`).
    """

    job: str
    name: str
    command: str
    site: str
    when: str
    log: str
    folders: Mapping[str, str]


def add(folder: Path, entry: Submitted, script: str) -> Path:
    """Add a job to the list and return where its script is kept.

    Raises:
        CannotCreate: the list cannot be written; the job runs all the same.
    """
    kept = folder / "jobs" / f"{entry.job}.sh"
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(script)
        with (folder / "jobs.jsonl").open("a") as stream:
            stream.write(json.dumps(asdict(entry)) + "\n")
    except OSError as error:
        evidence = f"'{folder}', {error.strerror}; job {entry.job} is queued"
        raise CannotCreate("The list of jobs cannot be written", evidence, "see squeue") from error
    return kept


def entries(folder: Path) -> Iterator[Submitted]:
    """Yield the submitted jobs, oldest first; damaged lines are left out."""
    lines: list[str] = []
    with suppress(OSError):
        lines = (folder / "jobs.jsonl").read_text().splitlines()
    for line in lines:
        with suppress(ValueError, TypeError):
            yield Submitted(**json.loads(line))


def reservation(place: Path, folder: bool) -> Path:
    """Return the file that reserves an output: in a folder, or beside a file."""
    return place / ".aam-job" if folder else place.with_name(f".{place.name}.aam-job")


@contextmanager
def reserved(
    place: Path, folder: bool, queued: Callable[[], Mapping[str, Queued]]
) -> Iterator[list[str]]:
    """Reserve an output while a job is submitted; the caller appends the job's number.

    Args:
        place: the output.
        folder: it is a folder.
        queued: returns what Slurm has in its queue. It is called under the lock, because a list
            from before lacks the job of a submission that held the lock meanwhile.

    Raises:
        CannotCreate: a job that may still write has it, or another submission is under way.
        Unavailable: `queued` raises it.
    """
    file = reservation(place, folder)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        evidence = f"'{file.parent}', {error.strerror}"
        raise CannotCreate(
            "The output folder cannot be made", evidence, "choose another place"
        ) from error
    with os.fdopen(handle, "r+") as stream:
        if try_lock(stream) == "taken":
            raise _taken(place, "another submission")
        holder = stream.read().strip()
        for number, job in queued().items():
            if holder and number.partition("_")[0] == holder and job.active:
                raise _taken(place, f"job {number} ({job.state})")
        number_of: list[str] = []
        yield number_of
        if number_of:
            stream.seek(0)
            stream.truncate()
            stream.write(number_of[0] + "\n")


def _taken(place: Path, by: str) -> CannotCreate:
    remedy = "wait for it, scancel it, or choose another output"
    return CannotCreate("Two jobs cannot write one output", f"'{place}' belongs to {by}", remedy)
