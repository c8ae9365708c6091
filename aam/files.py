"""Reading and writing files without surprises: checks before, whole files or none after."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aam.errors import CannotCreate, MissingInput

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOTHING_LEFT = 64 * 1024
"""Free bytes below which a failed write is put down to a full disk."""


def require(path: Path, what: str) -> Path:
    """Return `path` if it is a readable file.

    Raises:
        MissingInput: there is no such file, it is a folder, or it may not be read.
    """
    try:
        is_there = path.exists()
    except OSError as error:
        reason = f"'{path}', {error.strerror}"
        raise MissingInput(
            f"The {what} may not be read", reason, "check the path and its permissions"
        ) from error
    if not is_there:
        raise MissingInput(f"No {what}", f"'{path}' does not exist", "check the path")
    if path.is_dir():
        raise MissingInput(f"No {what}", f"'{path}' is a folder", "name the file in it")
    if not os.access(path, os.R_OK):
        raise MissingInput(f"The {what} may not be read", f"'{path}'", "check its permissions")
    return path


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with path.open("rb") as stream:
        digest = hashlib.sha256()
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Refuse to replace `path` unless the user asked for it.

    Raises:
        CannotCreate: the file exists and `overwrite` is false, or its folder may not be looked at.
    """
    try:
        is_there = path.exists()
    except OSError as error:
        reason = f"'{path}', {error.strerror}"
        raise CannotCreate("The output cannot be written", reason, "choose another") from error
    if is_there and not overwrite:
        raise CannotCreate("The output exists", f"'{path}'", "add --overwrite to replace it")


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; what is written there takes its place on success only.

    Raises:
        CannotCreate: the folder cannot be made or written to, or its disk is full.
    """
    make_parent(path)
    # The suffix stays last: some writers choose the format by it.
    aside = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        with full_disk_named(path):
            yield aside
            os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def make_parent(path: Path) -> None:
    """Make the folder of an output that is not there yet.

    Raises:
        CannotCreate: it cannot be made or written to.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotCreate(
            "The folder cannot be made", f"'{path.parent}', {error.strerror}", "choose another"
        ) from error
    if not os.access(path.parent, os.W_OK):
        raise CannotCreate("The folder cannot be written to", f"'{path.parent}'", "choose another")


@contextmanager
def full_disk_named(path: Path) -> Iterator[None]:
    """Turn the failures of a full disk, while `path` is written, into one sentence.

    Raises:
        CannotCreate: the disk is full.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        if not _is_full(error, path.parent):
            raise
        raise CannotCreate(
            "The disk is full",
            f"'{_mount(path.parent)}', while writing '{path}'",
            "free some space or choose another folder",
        ) from error


def _is_full(error: Exception, folder: Path) -> bool:
    """Whether writing failed for want of space; torch, numpy and HDF5 often hide the reason."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _FULL
    return shutil.disk_usage(folder).free < _NOTHING_LEFT


def _mount(folder: Path) -> Path:
    """Return the place where the disk of `folder` is mounted."""
    place = folder.resolve()
    return next((above for above in (place, *place.parents) if above.is_mount()), place)
