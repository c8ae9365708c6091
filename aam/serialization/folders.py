"""Atomic write of a folder: it is written beside its path, flushed to the disk and renamed.

rename(2) replaces a file in one step, but not a folder with content: for a moment neither the old
nor the new folder has the name. If a writer is killed in this moment, the next writer completes the
replacement.
"""

from __future__ import annotations

import errno
import glob
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

from aam.contract.errors import CannotCreate
from aam.contract.files import make_parent, report_full_disk, try_lock

_PARTIAL = ".partial"  # ends the name of an incomplete folder
_REPLACED = f".replaced{_PARTIAL}"  # follows, in the name of the old folder that it replaces
_ABANDONED = 24 * 3600.0  # seconds without a change after which an unlocked folder has no writer


@contextmanager
def atomic_folder(path: Path, overwrite: bool) -> Iterator[Path]:
    """Write a folder atomically: yield a new one, renamed to `path` when the block succeeds.

    Its files are flushed to the disk before it is renamed. The folder is locked while it is
    written; the next writer of `path` removes an unlocked folder, left by a killed process.
    """
    make_parent(path)
    host = f".{path.name}.{os.uname().nodename}-"
    # If a writer was killed after it had moved the old folder away, both folders are complete and
    # neither is at `path`. Removing them as leftovers would lose both.
    for replaced in path.parent.glob(f".{glob.escape(path.name)}.*{_REPLACED}"):
        new = replaced.with_name(replaced.name.removesuffix(_REPLACED))
        if not os.path.lexists(path) and new.is_dir() and (lock := _locked(new)) >= 0:
            os.rename(new, path)
            os.close(lock)
    # Incomplete folders of killed processes on this host.
    for leftover in sorted(path.parent.glob(f".{glob.escape(path.name)}.*{_PARTIAL}")):
        local = leftover.name.startswith(host) and leftover.is_dir()
        if local and (lock := _locked(leftover)) >= 0:
            _remove(leftover, lock)
        else:
            print(
                f"warning: '{leftover}' is incomplete: another host wrote it, or a process still "
                "writes it.",
                file=sys.stderr,
            )
    temporary, lock = path.with_name(f"{host}{os.getpid()}{_PARTIAL}"), -1
    replaced = temporary.with_name(temporary.name + _REPLACED)
    try:
        with report_full_disk(path):
            shutil.rmtree(temporary, ignore_errors=True)
            try:
                temporary.mkdir()
            except FileNotFoundError as error:
                evidence, remedy = f"'{path.parent}' takes no folders", "choose another folder"
                raise CannotCreate("The output cannot be written", evidence, remedy) from error
            lock = _locked(temporary)
            yield temporary
            for file in temporary.iterdir():
                _flush(file)
            _flush(temporary)
            try:
                if overwrite and os.path.lexists(path):
                    os.rename(path, replaced)
                os.rename(temporary, path)
            except OSError as error:
                if os.path.lexists(replaced) and not os.path.lexists(path):
                    os.rename(replaced, path)
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
                raise CannotCreate("The output exists", f"'{path}'", "add --overwrite") from error
            if replaced.is_dir() and not replaced.is_symlink():
                shutil.rmtree(replaced, ignore_errors=True)
            else:
                replaced.unlink(missing_ok=True)
            _flush(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if lock >= 0:
            os.close(lock)


@contextmanager
def temporary_folder(parent: Path, name: str) -> Iterator[Path]:
    """Make a locked temporary folder in `parent`, and remove abandoned folders."""
    remove_abandoned(parent)
    folder = Path(mkdtemp(prefix=f".{name}-", suffix=_PARTIAL, dir=parent))
    lock = _locked(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_abandoned(folder: Path) -> None:
    """Remove incomplete folders in `folder` that killed writers left at least a day ago.

    Writers of different paths work in `folder` at the same time, on several hosts. A missing lock
    does not prove that a writer is gone: the lock is taken after the folder is made, some file
    systems have no locks, and others keep them within a host. So a leftover must also be unchanged
    for a day. Folders that this user may not remove stay.
    """
    for leftover in sorted(folder.glob(f".*{_PARTIAL}")):
        with suppress(OSError):  # another process removes it
            changed = max(path.stat().st_mtime for path in (leftover, *leftover.iterdir()))
            lock = _locked(leftover) if time.time() - changed > _ABANDONED else -1
            if lock >= 0:
                _remove(leftover, lock)


def _remove(leftover: Path, lock: int) -> None:
    shutil.rmtree(leftover, ignore_errors=True)
    os.close(lock)
    if not leftover.exists():
        print(f"Removed '{leftover}', the incomplete output of a stopped run.", file=sys.stderr)


def _locked(folder: Path) -> int:
    """Lock a folder until the returned descriptor is closed; -1 if it is locked already.

    On a file system without locks a folder counts as not locked.
    """
    lock = os.open(folder, os.O_RDONLY)
    if try_lock(lock) == "taken":
        os.close(lock)
        return -1
    return lock


def _flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems do not flush folders
            raise
    finally:
        os.close(descriptor)
