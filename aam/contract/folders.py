"""Atomic write of a folder: aside, flushed to the disk, renamed; leftovers of a kill are removed.

A folder cannot take another's place in one step, as a file can, so replacing one leaves a moment in
which neither is there.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aam.console import say, warn
from aam.contract.errors import CannotCreate
from aam.contract.files import full_disk_named, make_parent

_PARTIAL = ".partial"
"""How the name of a folder ends that is not whole yet."""


@contextmanager
def folder_written_aside(path: Path, overwrite: bool) -> Iterator[Path]:
    """Give a new folder beside `path`, which takes its place on success only.

    What is in the folder when the block ends is flushed to the disk before it is renamed. The
    folder is locked while it is written, so that what a killed process left is told from what
    another one is writing; the former is removed by the next that writes `path`.

    Raises:
        CannotCreate: as `written_aside`; something has come to be at `path` meanwhile.
    """
    make_parent(path)
    _remove_leftovers(path)
    aside = path.with_name(f".{path.name}.{platform.node()}-{os.getpid()}{_PARTIAL}")
    lock = -1
    try:
        with full_disk_named(path):
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir()
            lock = _locked(aside)
            yield aside
            for file in aside.iterdir():
                _flush(file)
            _flush(aside)
            _take_place(aside, path, overwrite)
            _flush(path.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if lock >= 0:
            os.close(lock)


def _take_place(aside: Path, path: Path, overwrite: bool) -> None:
    """Rename a folder; what it replaces is moved away first, for a folder replaces no other."""
    replaced = aside.with_name(f"{aside.name}.replaced{_PARTIAL}")
    try:
        if overwrite and os.path.lexists(path):
            os.rename(path, replaced)
        os.rename(aside, path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise CannotCreate("The output exists", f"'{path}'", "add --overwrite") from error
    if replaced.is_dir() and not replaced.is_symlink():
        shutil.rmtree(replaced, ignore_errors=True)
    else:
        replaced.unlink(missing_ok=True)


def _remove_leftovers(path: Path) -> None:
    """Remove what killed processes of this host left of earlier attempts to write `path`."""
    for left in sorted(path.parent.glob(f".{glob.escape(path.name)}.*{_PARTIAL}")):
        here = left.name.startswith(f".{path.name}.{platform.node()}-")
        lock = _locked(left) if here and left.is_dir() else -1
        if lock < 0:
            warn(f"'{left}' is unfinished: of a run on another host, or of one that still writes.")
            continue
        shutil.rmtree(left, ignore_errors=True)
        os.close(lock)
        say(f"Removed '{left}', which a stopped run left unfinished.")


def _locked(folder: Path) -> int:
    """Return a descriptor that holds the lock of a folder until it is closed; -1 if another has it.

    Where the file system knows no locks, nobody is taken to hold one.
    """
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return -1
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL):
            os.close(lock)
            raise
    return lock


def _flush(path: Path) -> None:
    """Wait until a file or the entries of a folder are on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno != errno.EINVAL:  # Some file systems do not flush folders.
            raise
    finally:
        os.close(opened)
