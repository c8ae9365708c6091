"""Checks of input and output paths, and atomic writes of files."""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import platform
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aam.contract.errors import CannotCreate, MissingInput

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOTHING_LEFT = 64 * 1024
"""Free bytes below which a failed write is put down to a full disk."""

_LONGEST_NAME = 150
"""Bytes of an output's name: file systems take 255, temporary names add host and process."""


def require(path: Path, what: str) -> Path:
    """Return `path` if it is a readable regular file.

    Raises:
        MissingInput: there is no such file, it is a folder, a device, a pipe or a file of /proc or
            /sys (whose content has no end or no size), or it may not be read.
    """
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise MissingInput(f"No {what}", f"'{path}' does not exist", "check the path") from None
    except (OSError, ValueError) as error:
        reason = f"'{path}', {getattr(error, 'strerror', None) or error}"
        raise MissingInput(
            f"The {what} may not be read", reason, "check the path and its permissions"
        ) from error
    if stat.S_ISDIR(status.st_mode):
        raise MissingInput(f"No {what}", f"'{path}' is a folder", "name the file in it")
    if not stat.S_ISREG(status.st_mode) or status.st_dev in _pseudo_devices():
        raise MissingInput(
            f"The {what} is not a regular file",
            f"'{path}' is a device, a pipe or a file of the kernel",
            "save its content as a file and name that",
        )
    if not os.access(path, os.R_OK):
        raise MissingInput(f"The {what} may not be read", f"'{path}'", "check its permissions")
    return path


def is_regular(path: Path) -> bool:
    """Return whether `require` accepts `path`."""
    try:
        require(path, "file")
    except MissingInput:
        return False
    return True


def _pseudo_devices() -> set[int]:
    """Return the device numbers of /proc and /sys, whose files have no size."""
    return {os.stat(place).st_dev for place in ("/proc", "/sys") if os.path.ismount(place)}


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with path.open("rb") as stream:
        digest = hashlib.sha256()
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Refuse an output path that cannot be written, or that exists without `overwrite`.

    Raises:
        CannotCreate: the name is too long, the path is a folder or may not be looked at, or the
            file exists and `overwrite` is false.
    """
    _check_name(path)
    try:
        is_there, is_folder = path.exists(), path.is_dir()
    except (OSError, ValueError) as error:
        reason = f"'{path}', {getattr(error, 'strerror', None) or error}"
        raise CannotCreate("The output cannot be written", reason, "choose another") from error
    if is_folder:
        raise CannotCreate("The output is a folder", f"'{path}'", "name a file, in it or elsewhere")
    if is_there and not overwrite:
        raise CannotCreate("The output exists", f"'{path}'", "add --overwrite to replace it")


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; what is written there takes its place on success only.

    Temporary files that killed processes of this host left for the same `path` are removed.

    Raises:
        CannotCreate: the folder cannot be made or written to, its disk is full, `path` is a folder
            or its name is too long.
    """
    make_parent(path)
    _remove_leftovers(path)
    # The suffix stays last: some writers choose the format by it.
    aside = path.with_name(f".{path.stem}.{platform.node()}-{os.getpid()}{path.suffix}")
    try:
        with full_disk_named(path):
            yield aside
            if path.is_dir() and not path.is_symlink():
                raise CannotCreate("The output is a folder", f"'{path}'", "choose another name")
            os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def _remove_leftovers(path: Path) -> None:
    """Remove the temporary files of `path` whose process, of this host, has ended."""
    start, end = f".{path.stem}.{platform.node()}-", path.suffix
    for left in path.parent.glob(f"{glob.escape(start)}*{glob.escape(end)}"):
        number = left.name[len(start) : len(left.name) - len(end)]
        if number.isdecimal() and not process_exists(int(number)):
            left.unlink(missing_ok=True)


def process_exists(pid: int) -> bool:
    """Return whether a process of this number runs on this host."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def make_parent(path: Path) -> None:
    """Make the folder of an output that is not there yet.

    Raises:
        CannotCreate: it cannot be made or written to, or the name of the output is too long.
    """
    _check_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = f"'{path.parent}', {getattr(error, 'strerror', None) or error}"
        raise CannotCreate("The folder cannot be made", reason, "choose another") from error
    if not os.access(path.parent, os.W_OK):
        raise CannotCreate("The folder cannot be written to", f"'{path.parent}'", "choose another")


def _check_name(path: Path) -> None:
    if (size := len(os.fsencode(path.name))) > _LONGEST_NAME:
        raise CannotCreate(
            "The name of the output is too long",
            f"'{path.name[:40]}...' has {size} bytes",
            f"give a name of at most {_LONGEST_NAME}",
        )


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
