"""JSON that this program wrote: read within bounds, and validated against its schema.

Users edit, shorten and replace these files. A reader states what it expects as a schema
(`aam.contract.schema`) and gets values of these types, or one sentence names the first wrong one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aam.contract import schema
from aam.contract.errors import DataError, MissingInput, reason_of
from aam.contract.files import require

LARGEST = 64 << 20
"""Bytes of a document; the largest, of scores and records, have some hundred kilobytes."""

DEEPEST = 32
"""Levels of lists and mappings."""

EDITED = "restore the file if it was edited, or make it again"


def read_json(path: Path, expected: Any, what: str, remedy: str = EDITED) -> Any:
    """Read a file and convert its content to `expected`.

    Args:
        path: the file.
        expected: schema of the content (`aam.contract.schema`).
        what: name of the file in messages, such as `run record`.
        remedy: action by which the user can replace a damaged file.

    Raises:
        MissingInput: there is no such file, or it cannot be read.
        DataError: see `parse_json`.
    """
    try:
        with require(path, what).open("rb") as stream:
            content = stream.read(LARGEST + 1)
    except OSError as error:
        reason = f"'{path}', {error.strerror}"
        raise MissingInput(
            f"The {what} may not be read", reason, "check its permissions"
        ) from error
    return parse_json(content, expected, what, f"'{path}'", remedy)


def parse_json(
    content: bytes | str, expected: Any, what: str, source: str, remedy: str = EDITED
) -> Any:
    """Convert a JSON document to `expected`.

    Args:
        source: the file, or the line of it, for messages.

    Raises:
        DataError: it is no JSON in UTF-8, too large, nested too deeply, has a character that no
            text or path can hold, or does not match the schema.
    """
    try:
        if len(content) > LARGEST:
            raise ValueError(f"it has more than {LARGEST >> 20} MiB")
        text = content.decode("utf-8") if isinstance(content, bytes) else content
        value = json.loads(text)
        _check(value, 1)
        return schema.parse(expected, value, "the content")
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else reason_of(error)
        raise DataError(f"The {what} is damaged", f"{source}, {reason}", remedy) from error


def _check(value: Any, depth: int) -> None:
    """Refuse values that other code cannot print, write or compute with."""
    if isinstance(value, str):
        if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
            raise ValueError("a text holds a NUL character or half of a character")
    elif isinstance(value, int):
        if value.bit_length() > 63:
            raise ValueError("a number has more than 63 bits")
    elif isinstance(value, dict | list):
        if depth > DEEPEST:
            raise ValueError(f"lists or mappings are nested in more than {DEEPEST} levels")
        for item in value.values() if isinstance(value, dict) else value:
            _check(item, depth + 1)
        if isinstance(value, dict):
            _check(list(value), depth)
