"""Cache of check reports: one file for each stack, which later runs read instead of measuring.

The folder is that of the variable `CHECK_REPORTS`, which `aam-launch` sets and mounts; without it
nothing is kept. A report decides what a run computes with, so a file that another user could have
written is not used: neither one of another owner, nor one that others may write, nor a link.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from aam import __version__
from aam.contract.errors import CannotCreate, DataError
from aam.contract.files import atomic_write
from aam.contract.gpus import CHECK_REPORTS
from aam.contract.run_record import launched_by
from aam.numerics.check_report import CheckReport, StackKey, from_json, to_json
from aam.numerics.stack_identity import Identity

LARGEST = 1 << 20
"""Bytes of a report; those of `aam check` have 20 kilobytes."""


def folder_of(environment: Mapping[str, str]) -> Path | None:
    """Return the folder of the reports, or None if none is kept."""
    named = environment.get(CHECK_REPORTS)
    return Path(named) if named else None


def key_of(
    here: Identity, heads: int, width: int, environment: Mapping[str, str]
) -> StackKey | None:
    """Return the key of the reports of this stack; None if nothing identifies the image.

    Args:
        here: identity of the stack.
        heads: number of attention heads of the network.
        width: width of one head.
        environment: holds the launcher's record, which names the image.
    """
    launch = launched_by(environment) or {}
    image = launch.get("digest") if launch.get("image") else f"native:{here.torch}"
    if not image:
        return None
    driver = here.driver or "none"
    return StackKey(str(image), here.arch, driver, __version__, f"{heads} x {width}")


def place(key: StackKey, folder: Path) -> Path:
    """Return the file of a key."""
    content = json.dumps(dataclasses.asdict(key), sort_keys=True)
    return folder / f"{hashlib.sha256(content.encode()).hexdigest()[:32]}.json"


def load(key: StackKey, folder: Path) -> tuple[CheckReport | None, str]:
    """Return the report that is kept for a key, or None; and why a file there is not used."""
    file = place(key, folder)
    try:
        report = _read(file)
        if report.key != key:
            raise ValueError("it is for another key")
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError, DataError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return None, f"'{file}', {str(reason).rstrip('.')}"
    return report, ""


def latest(folder: Path) -> list[CheckReport]:
    """Return the reports that may be used, the latest first."""
    found = []
    for file in sorted(folder.glob("*.json")):
        try:
            found.append(_read(file))
        except (OSError, ValueError, DataError):
            continue
    return sorted(found, key=lambda report: report.made, reverse=True)


def store(report: CheckReport, folder: Path) -> str:
    """Write a report for later runs; return why it cannot be written, or "".

    Args:
        report: report with a key.
        folder: folder of the reports, which is made if it is absent.
    """
    assert report.key is not None
    file = place(report.key, folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with atomic_write(file) as temporary:
            # Private and new: another user may neither read it nor have put a link there.
            temporary.touch(mode=0o600, exist_ok=False)
            temporary.write_text(to_json(report))
    except (OSError, CannotCreate) as error:
        return f"'{file}', {error.strerror if isinstance(error, OSError) else error.cause}"
    return ""


def _read(file: Path) -> CheckReport:
    """Return the report in a file.

    Raises:
        OSError, ValueError, DataError: why it is not used.
    """
    # No link is followed, and a named pipe does not block the run. Facts are those of the open
    # file, so that it cannot be replaced between the check and the reading.
    handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(handle, "rb") as stream:
        own = os.fstat(handle)
        for facts in (own, os.stat(file.parent)):
            if facts.st_uid != os.geteuid():
                raise ValueError("it belongs to another user")
            if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise ValueError("others may write it")
        if not stat.S_ISREG(own.st_mode):
            raise ValueError("it is not a regular file")
        return from_json(stream.read(LARGEST).decode(errors="replace"))
