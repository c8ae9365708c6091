"""Checks of input and output paths, atomic writes and locks of files."""

from __future__ import annotations

import errno
import fcntl
import glob
import itertools
import json
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal

from aam.contract.errors import AamError, CannotCreate, MissingInput, Unavailable, nearest

_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ESTALE, errno.ELOOP,
            errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR)  # fmt: skip
_MANY_FILES = (errno.EMFILE, errno.ENFILE)
_FREE_WHEN_FULL = 64 * 1024  # free bytes below which a failed write is attributed to a full disk

_LOCKED = (errno.EACCES, errno.EAGAIN)
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of a lock held by another process, and of a file system without locks."""

_LONGEST_NAME = 150
"""Most bytes of an output's name: file systems take 255, temporary names add host and process."""


def require(path: Path, kind: str) -> Path:
    """Return `path` if it is a readable regular file."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        remedy = nearest(path.name, names_beside(path), "check the path")
        raise MissingInput(f"No {kind}", f"'{path}' does not exist", remedy) from None
    except (OSError, ValueError) as error:
        reason = f"'{path}', {getattr(error, 'strerror', None) or error}"
        raise MissingInput(
            f"The {kind} cannot be read", reason, "check path and permissions"
        ) from error
    # Files of /proc and /sys have no size.
    pseudo = {os.stat(mount).st_dev for mount in ("/proc", "/sys") if os.path.ismount(mount)}
    if stat.S_ISDIR(status.st_mode):
        raise MissingInput(f"No {kind}", f"'{path}' is a folder", "name the file in it")
    if not stat.S_ISREG(status.st_mode) or status.st_dev in pseudo:
        raise MissingInput(
            f"The {kind} is not a regular file",
            f"'{path}' is a device, a pipe or a file of the kernel",
            "save its content as a file and name the file",
        )
    if not os.access(path, os.R_OK):
        raise MissingInput(f"The {kind} cannot be read", f"'{path}'", "check its permissions")
    return path


def names_beside(path: Path) -> list[str]:
    """List at most 1,000 names in the folder of `path`; none if it cannot be read."""
    try:
        with os.scandir(path.parent) as entries:
            return [entry.name for entry in itertools.islice(entries, 1000)]
    except OSError:
        return []


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    import hashlib  # with OpenSSL; the launcher rarely needs it and starts 3 ms sooner

    with path.open("rb") as stream:
        digest = hashlib.sha256()
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Refuse an output path that cannot be written, or exists without `overwrite`."""
    _require_output(path)
    try:
        exists, is_folder = path.exists(), path.is_dir()
    except (OSError, ValueError) as error:
        reason = f"'{path}', {getattr(error, 'strerror', None) or error}"
        raise CannotCreate("The output cannot be written", reason, "choose another") from error
    if is_folder:
        raise CannotCreate("The output is a folder", f"'{path}'", "name a file, in it or elsewhere")
    if exists and not overwrite:
        raise CannotCreate("The output exists", f"'{path}'", "add --overwrite to replace it")


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Write a file atomically: yield a temporary path, renamed to `path` if the block succeeds."""
    make_parent(path)
    # Remove temporary files of `path` left by ended processes of this host.
    start, end = f".{path.stem}.{os.uname().nodename}-", path.suffix
    for leftover in path.parent.glob(f"{glob.escape(start)}*{glob.escape(end)}"):
        number = leftover.name[len(start) : len(leftover.name) - len(end)]
        if number.isdecimal() and not process_exists(int(number)):
            leftover.unlink(missing_ok=True)
    # The suffix stays last, since some writers choose the format by suffix.
    temporary = path.with_name(f"{start}{os.getpid()}{end}")
    try:
        with report_full_disk(path):
            yield temporary
            if path.is_dir() and not path.is_symlink():
                raise CannotCreate("The output is a folder", f"'{path}'", "choose another name")
            os.replace(temporary, path)
    except FileNotFoundError as error:
        if error.filename != str(temporary):
            raise
        evidence, remedy = f"'{path.parent}' takes no files", "choose another folder"
        raise CannotCreate("The output cannot be written", evidence, remedy) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8 atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Write a file with an indented JSON value atomically; NaN and infinity become null."""
    write_text(path, dump_json(content, indent=2) + "\n")


def dump_json(content: Any, indent: int | None = None, sort_keys: bool = False) -> str:
    """Return a value as JSON; NaN and infinity, which JSON lacks, become null."""
    return json.dumps(_finite(content), indent=indent, sort_keys=sort_keys, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):  # also a NumPy float64
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def process_exists(pid: int) -> bool:
    """Return whether a process with this id runs on this host."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def try_lock(
    file: int | IO[Any], lock: Callable[[int | IO[Any], int], object] = fcntl.flock
) -> Literal["held", "taken", "unsupported"]:
    """Lock a file exclusively without waiting.

    Returns:
        "held"; "taken" by another process; "unsupported" by the file system (Lustre without the
        mount option `flock`), and callers continue without a lock.
    """
    try:
        lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _LOCKED:
            return "taken"
        if error.errno in _NO_LOCKS:
            return "unsupported"
        raise
    return "held"


def make_parent(path: Path, remedy: str = "choose another") -> None:
    """Create the folder of an output if it does not exist."""
    _require_output(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = f"'{path.parent}', {getattr(error, 'strerror', None) or error}"
        raise CannotCreate("The folder cannot be created", reason, remedy) from error
    if not os.access(path.parent, os.W_OK):
        raise CannotCreate("The folder cannot be written to", f"'{path.parent}'", remedy)


def _require_output(path: Path) -> None:
    """Refuse a name that is too long, and a path to a device or a pipe."""
    if (size := len(os.fsencode(path.name))) > _LONGEST_NAME:
        raise CannotCreate(
            "The name of the output is too long",
            f"'{path.name[:40]}...' has {size} bytes",
            f"give a name of at most {_LONGEST_NAME}",
        )
    with suppress(OSError, ValueError):
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            # A rename onto /dev/null would break every program.
            raise CannotCreate("The output is a device or a pipe", f"'{path}'", "name a file")


@contextmanager
def report_full_disk(path: Path) -> Iterator[None]:
    """Raise `CannotCreate` if the disk is full or the file too large while `path` is written."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            raise _too_large(f"'{path}'") from error
        if isinstance(error, OSError) and error.errno is not None:
            full = error.errno in _FULL
        else:  # torch, numpy and HDF5 often hide the reason
            room = os.statvfs(path.parent)
            full = room.f_bavail * room.f_frsize < _FREE_WHEN_FULL
        if not full:
            raise
        folder = path.parent.resolve()
        mount = next((above for above in (folder, *folder.parents) if above.is_mount()), folder)
        raise CannotCreate(
            "The disk is full",
            f"'{mount}', while writing '{path}'",
            "free some space or choose another folder",
        ) from error


def system_error(error: OSError, location: str = "a file") -> AamError | None:
    """Return the `AamError` of an error of the system, such as a full disk; None for a bug."""
    location = f"'{error.filename}'" if error.filename else location
    reason = f"{location}, {error.strerror}"
    if error.errno in _FULL:
        return CannotCreate("The disk is full", reason, "free some space or choose another folder")
    if error.errno == errno.EFBIG:
        return _too_large(location)
    if error.errno in _MANY_FILES:
        reason = f"'{error.filename}'" if error.filename else str(error.strerror)
        return Unavailable("Too many open files", reason, "raise their limit with `ulimit -n`")
    if error.errno == errno.ETIMEDOUT and error.filename:
        return Unavailable("A program does not end", reason, "try it by itself, or again later")
    if error.errno in _REFUSED and error.filename:
        return CannotCreate("The system refused a file", reason, "check path and permissions")
    return None


def _too_large(location: str) -> CannotCreate:
    cause = "A file exceeds the size that this process may write"
    return CannotCreate(cause, location, "raise the limit with `ulimit -f`")
