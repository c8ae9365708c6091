"""Files within bounds, the folders of a user, and programs that run to their end."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from subprocess import CompletedProcess

XDG = {
    "XDG_CACHE_HOME": ".cache",
    "XDG_CONFIG_HOME": ".config",
    "XDG_DATA_HOME": ".local/share",
    "XDG_STATE_HOME": ".local/state",
}
"""Variable of the XDG Base Directory Specification -> its default below the home folder."""

LARGEST = 1 << 20
"""Bytes of a document; those of the launcher have a few kilobytes."""


def regular(path: str | os.PathLike[str], largest: int = LARGEST) -> bytes:
    """Return the content of a regular file.

    A device or a FIFO could be read for ever, so its type is checked before anything is read.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError("it is not a regular file")
        content = stream.read(largest + 1)
    if len(content) > largest:
        raise ValueError(f"it has more than {largest >> 20} MiB")
    return content


def user_folder(name: str, variables: Mapping[str, str]) -> Path:
    """Return this program's folder below a base folder of XDG, by the name of its variable."""
    home = Path(variables.get("HOME", "/"))
    return Path(variables.get(name) or home / XDG[name]) / "aam"


def which(name: str, search: str) -> str | None:
    """Return the path of a program on the search path, relative folders of which do not count."""
    folders = (folder for folder in search.split(os.pathsep) if folder.startswith("/"))
    paths = (os.path.join(folder, name) for folder in folders)
    return next((p for p in paths if os.path.isfile(p) and os.access(p, os.X_OK)), None)


def run(
    argv: Sequence[str],
    timeout: float | None = None,
    environment: Mapping[str, str] | None = None,
    text: str = "",
) -> CompletedProcess[str]:
    """Run a program with `text` as its input; kill it after `timeout` seconds."""
    # A start that runs no program saves the 2 ms of this import.
    import subprocess

    try:
        return subprocess.run(
            argv, input=text, capture_output=True, text=True, errors="replace",
            timeout=timeout, env=environment, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"no result in {timeout:g} s") from error
