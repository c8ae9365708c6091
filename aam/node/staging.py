"""Staging: input files are copied to the node's own disk, each verified by its SHA-256."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from aam.contract.errors import CannotCreate, MissingInput
from aam.contract.files import sha256
from aam.node import log

GB = 10**9
ATTEMPTS = 3
IN_MEMORY = ("tmpfs", "ramfs")


def checksums(paths: Sequence[Path], most_gb: float) -> dict[Path, str]:
    """Return the SHA-256 of every file that is to be staged.

    Folders stay where they are; so does everything when the files together exceed `most_gb`.

    Raises:
        MissingInput: a file cannot be read.
    """
    files = [path for path in dict.fromkeys(paths) if path.is_file()]
    total = sum(path.stat().st_size for path in files)
    if total > most_gb * GB:
        log(f"Inputs of {total} bytes stay where they are; at most {most_gb:g} GB are staged.")
        return {}
    return {path: _digest(path) for path in files}


def stage(digests: Mapping[Path, str], copies: Mapping[Path, Path]) -> bool:
    """Copy files to the node; return whether they were copied.

    Args:
        digests: SHA-256 of each file, from `checksums`.
        copies: where each file is copied to, all in one folder.

    Raises:
        MissingInput: a file changed since its checksum was computed.
        CannotCreate: a copy cannot be written.
    """
    if not digests:
        return False
    folder = next(iter(copies.values())).parent
    if file_system(folder) in IN_MEMORY:
        log(f"'{folder}' on {os.uname().nodename} is in memory; inputs stay where they are.")
        return False
    needed = sum(path.stat().st_size for path in digests if not _same(copies[path], digests[path]))
    free = shutil.disk_usage(folder).free
    if needed > free:
        log(f"'{folder}' on {os.uname().nodename} has {free} bytes free and the inputs take "
            f"{needed}; they stay where they are.")  # fmt: skip
        return False
    for path, digest in digests.items():
        _copy(path, copies[path], digest)
    return True


def file_system(folder: Path) -> str:
    """Return the type of the file system that holds a folder, such as "ext4" or "tmpfs"."""
    done = subprocess.run(
        ["stat", "--file-system", "--format=%T", str(folder)], capture_output=True, text=True
    )
    return done.stdout.strip()


def _copy(source: Path, target: Path, digest: str) -> None:
    part = target.with_name(f"{target.name}.part")
    for attempt in range(ATTEMPTS):
        if _same(target, digest):
            return
        if attempt:
            time.sleep(1)
        try:
            shutil.copyfile(source, part)
            part.replace(target)
        except OSError as error:
            part.unlink(missing_ok=True)
            evidence = f"'{source}' to '{target}' on {os.uname().nodename}, {error.strerror}"
            raise CannotCreate(
                "An input cannot be staged", evidence, "start the job again"
            ) from error
    if _same(target, digest):
        return
    found = _digest(target)
    target.unlink()
    evidence = f"'{source}' had SHA-256 {digest} at the start of the job, and {found} when copied"
    raise MissingInput("An input changed while it was staged", evidence,
                       "submit the job again when the file is complete")  # fmt: skip


def _same(path: Path, digest: str) -> bool:
    return path.is_file() and _digest(path) == digest


def _digest(path: Path) -> str:
    try:
        return sha256(path)
    except OSError as error:
        evidence = f"'{path}', {error.strerror}"
        raise MissingInput("An input cannot be read", evidence, "check the file") from error
