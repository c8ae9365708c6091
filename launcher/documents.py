"""Files and JSON documents read within bounds: regular files alone, limited size and depth."""

from __future__ import annotations

import json
import os
import stat
from typing import Any

LARGEST = 1 << 20
"""Bytes of a document; those of the launcher have a few kilobytes."""


def regular(path: str | os.PathLike[str], largest: int = LARGEST) -> bytes:
    """Return the content of a regular file.

    A device or a FIFO could be read for ever, so its type is checked before anything is read.

    Raises:
        OSError: it cannot be opened or read.
        ValueError: it is no regular file, or larger than `largest` bytes.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError("it is not a regular file")
        content = stream.read(largest + 1)
    if len(content) > largest:
        raise ValueError(f"it has more than {largest >> 20} MiB")
    return content


def parsed(text: str | bytes) -> Any:
    """Return the content of a JSON document.

    Raises:
        ValueError: it is no JSON, is nested too deeply, or holds a NUL character, which no path
            and no variable can hold.
    """
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise ValueError("lists or mappings are nested too deeply") from error
    if "\\u0000" in (text if isinstance(text, str) else text.decode(errors="replace")):
        raise ValueError("a value holds a NUL character")
    return content


def strings(value: object) -> bool:
    """Return whether a value is a list of strings."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
