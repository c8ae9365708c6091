"""Documents: files read within bounds, JSON, and the folders of a user."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    """Return this program's folder below one of a user's base folders.

    Args:
        name: variable of the XDG Base Directory Specification.
    """
    home = Path(variables.get("HOME", "/"))
    return Path(variables.get(name) or home / XDG[name]) / "aam"


def parsed(text: str | bytes) -> Any:
    """Return the content of a JSON document."""
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise ValueError("lists or mappings are nested too deeply") from error
    if "\\u0000" in (text if isinstance(text, str) else text.decode(errors="replace")):
        raise ValueError("a value holds a NUL character")
    return content
