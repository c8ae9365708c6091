"""Lock of a run folder: one run at a time writes to it.

An advisory lock of fcntl(2) on the file `.lock`, held by the first rank. The kernel releases it
when the process ends, however it ends, and child processes do not inherit it. On NFS the server
releases it when the lease of a failed node expires (about 90 s) or when the node is back; Lustre
needs the mount option `flock`. On a file system without locks the run continues with a warning. A
job that Slurm requeues does not wait for the lease of its failed node: the file names the job that
holds the lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from aam.console import warn
from aam.contract.errors import CannotCreate
from aam.contract.files import try_lock


def check(folder: Path) -> None:
    """Refuse a folder that another run writes to; creates no file.

    Raises:
        CannotCreate: the folder is locked.
    """
    # A check of a folder must not create it: the command may still be refused.
    if (folder / ".lock").exists():
        with _open(folder) as stream:
            _acquire(stream, folder)


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold the lock of a folder while the block runs; yield whether the lock is held.

    Raises:
        CannotCreate: another run holds it.
    """
    with _open(folder) as stream:
        held = _acquire(stream, folder)
        stream.truncate(0)
        json.dump(_this_process(), stream)
        stream.flush()
        yield held


def _open(folder: Path) -> IO[str]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Appending: until the lock is held, the content names the process that holds it.
        return (folder / ".lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise CannotCreate(
            "The run folder cannot be made or written to",
            f"'{error.filename}', {error.strerror}",
            "choose another --output-dir",
        ) from error


def _acquire(stream: IO[str], folder: Path) -> bool:
    """Acquire the lock without waiting; return whether it is held."""
    state = try_lock(stream, fcntl.lockf)
    if state == "unsupported":
        warn(f"The file system of '{folder}' has no locks; start no second run there.")
    elif state == "taken":
        holder = _read(stream)
        if not before_requeue(holder, os.environ):
            raise CannotCreate(
                "Another process writes to the run folder",
                f"'{folder}', process {holder.get('process')} on {holder.get('host')}",
                "wait until it ends, or choose another --output-dir",
            )
        warn(f"The lock of '{folder}' is of this job before its requeue, and is ignored.")
    return state == "held"


def before_requeue(holder: Mapping[str, Any], variables: Mapping[str, str]) -> bool:
    """Return whether an earlier start of this process's Slurm job holds the lock.

    Slurm ends a job before it requeues it, or its node has failed.
    """
    job, restarts = variables.get("SLURM_JOB_ID"), variables.get("SLURM_RESTART_COUNT", "0")
    earlier = str(holder.get("restarts"))
    if not job or holder.get("job") != job or not (earlier + restarts).isdecimal():
        return False
    return int(earlier) < int(restarts)


def _this_process() -> dict[str, Any]:
    return {
        "host": platform.node(),
        "process": os.getpid(),
        "job": os.environ.get("SLURM_JOB_ID"),
        "restarts": os.environ.get("SLURM_RESTART_COUNT", "0"),
    }


def _read(stream: IO[str]) -> dict[str, Any]:
    stream.seek(0)
    try:
        holder = json.loads(stream.read(4096) or "{}")
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}
