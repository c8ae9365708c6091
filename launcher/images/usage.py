"""Use of images: the time of the last launch is that of a file beside the image."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def note(record: str) -> None:
    """Record a launch; a user who may not write the image folder leaves no time.

    Args:
        record: path, `Plan.use_record`.
    """
    with suppress(OSError):
        handle = os.open(record, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        with suppress(OSError):  # for other members of a group, whatever the umask is
            os.fchmod(handle, os.stat(os.path.dirname(record)).st_mode & 0o666)
        with suppress(OSError):
            os.utime(handle)
        os.close(handle)


def last(record: Path) -> float | None:
    """Return the time of the last launch in seconds since 1970, or None if none is recorded."""
    with suppress(OSError):
        return record.stat().st_mtime
    return None
