"""Staging: input files are copied to the node's own disk, each verified by its SHA-256."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from aam.contract.errors import AamError, CannotCreate, MissingInput
from aam.contract.files import sha256
from launcher.slurm import log

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
    place = f"'{folder}' on {os.uname().nodename}"
    # A copy in memory would count towards the memory of the job.
    if file_system(folder) in IN_MEMORY:
        log(f"{place} is in memory; inputs stay where they are.")
        return False
    needed = sum(path.stat().st_size for path in digests if not _same(copies[path], digests[path]))
    free = shutil.disk_usage(folder).free
    if needed > free:
        log(
            f"{place} has {free} bytes free and the inputs take {needed}; they stay where they are."
        )
        return False
    for path, digest in digests.items():
        _copy(path, copies[path], digest)
    return True


def file_system(folder: Path) -> str:
    """Return the type of the file system that holds a folder, such as "ext4" or "tmpfs"."""
    argv = ["stat", "--file-system", "--format=%T", str(folder)]
    return subprocess.run(argv, capture_output=True, text=True).stdout.strip()


def _copy(source: Path, target: Path, digest: str) -> None:
    part, node = target.with_name(f"{target.name}.part"), os.uname().nodename
    for attempt in range(ATTEMPTS + 1):
        if _same(target, digest):
            return
        if attempt == ATTEMPTS:
            break
        time.sleep(min(attempt, 1))
        try:
            shutil.copyfile(source, part)
            part.replace(target)
        except OSError as error:
            part.unlink(missing_ok=True)
            cause = "An input cannot be staged"
            evidence = f"'{source}' to '{target}' on {node}, {error.strerror}"
            raise CannotCreate(cause, evidence, "start the job again") from error
    found = _digest(target)
    target.unlink()
    raise MissingInput(
        "An input changed while it was staged",
        f"'{source}' had SHA-256 {digest} at the start of the job, and {found} when copied",
        "submit the job again when the file is complete",
    )


def _same(path: Path, digest: str) -> bool:
    return path.is_file() and _digest(path) == digest


def _digest(path: Path) -> str:
    try:
        return sha256(path)
    except OSError as error:
        evidence = f"'{path}', {error.strerror}"
        raise MissingInput("An input cannot be read", evidence, "check the file") from error


def main(folder: Path, files: Sequence[Path]) -> int:
    """Copy files to a folder of the node's own disk, under their names; return the exit status."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        stage(checksums(files, float("inf")), {path: folder / path.name for path in files})
    except AamError as error:
        log(str(error))
        return error.status
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), [Path(argument) for argument in sys.argv[2:]]))
