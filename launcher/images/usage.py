"""Use of images: the time of the last launch, and a lock that lasts as long as a container runs.

A launch sets the modification time of a file beside the image and takes a shared lock on it. The
process that it becomes inherits the lock, on every host that shares the folder.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from aam.contract.files import try_lock


def hold(record: str) -> None:
    """Record a launch and hold the shared lock until this process, or what it becomes, ends.

    A user who may not write the image folder leaves no time, and one who may not read the record
    no lock; the launch goes on.

    Args:
        record: path, `Plan.use_record`.
    """
    with suppress(OSError):
        handle = os.open(record, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        os.set_inheritable(handle, True)
        with suppress(OSError):  # for other members of a group, whatever the umask is
            os.fchmod(handle, os.stat(os.path.dirname(record)).st_mode & 0o666)
        with suppress(OSError):
            os.utime(handle)
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)


def last(record: Path) -> float | None:
    """Return the time of the last launch in seconds since 1970, or None if none is recorded."""
    with suppress(OSError):
        return record.stat().st_mtime
    return None


@contextmanager
def unused(record: Path) -> Iterator[bool]:
    """Keep an image from being launched; yield False if a container that runs uses it."""
    try:
        stream = record.open("rb")
    except OSError:
        yield True
        return
    with stream:
        yield try_lock(stream) != "taken"
