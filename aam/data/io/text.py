"""Reading of text files: UTF-8 with or without a byte order mark."""

from __future__ import annotations

from pathlib import Path

from aam.contract.errors import DataError
from aam.contract.files import require
from aam.memory import check_memory, memory_budget

_OBJECT_BYTES = 8
"""Bytes of memory per byte of text once it is split into cells."""


_BINARY = {
    b"\x89HDF": "HDF5, the format of BIOM tables",
    b"PK\x03\x04": "a zip archive or a spreadsheet",
}
"""First bytes of a binary file -> its format, as of files that are given for text by mistake."""


def binary_format(data: bytes) -> str | None:
    """Return the format of a binary file by its first bytes, None for text and unknown formats."""
    return _BINARY.get(data[:4])


def decoded(data: bytes, path: Path, what: str) -> str:
    """Decode the content of a text file.

    Args:
        data: content of the file.
        path: of the file, for messages.
        what: name of the file in messages, such as `splits file`.

    Raises:
        DataError: the content is not UTF-8.
    """
    if (form := binary_format(data)) is not None:
        raise DataError(f"The {what} is not text", f"'{path}' is {form}", "give a text file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        is_utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
        raise DataError(
            f"The {what} is not UTF-8 text",
            f"'{path}'{' is UTF-16' if is_utf16 else f', {error.reason} at byte {error.start}'}",
            "save it as UTF-8" if is_utf16 else "check that it is the right file",
        ) from error


def read_text(path: Path, what: str) -> str:
    """Read a small text file.

    Raises:
        MissingInput: there is no such file.
        DataError: the file is not UTF-8, or its cells do not fit in memory.
    """
    size = require(path, what).stat().st_size
    remedy = "check that it is the right file"
    check_memory(what, f"'{path}'", size * _OBJECT_BYTES, memory_budget(), remedy)
    return decoded(path.read_bytes(), path, what)
