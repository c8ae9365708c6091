"""Documents: files read within bounds, JSON of stated types, and the folders of a user."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import types
import typing
from collections.abc import Mapping
from itertools import repeat
from pathlib import Path
from typing import Any

JSON_TYPES = {
    str: "text", int: "a number", bool: "true or false", list: "a list", dict: "a mapping"
}  # fmt: skip

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


def user_folder(name: str, variables: Mapping[str, str]) -> Path:
    """Return this program's folder below one of a user's base folders.

    Args:
        name: variable of the XDG Base Directory Specification.
    """
    home = Path(variables.get("HOME", "/"))
    return Path(variables.get(name) or home / XDG[name]) / "aam"


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


def typed(expected: Any, value: object, place: str) -> Any:
    """Return a JSON value as `expected`: a frozen dataclass, a mapping, a tuple or a scalar.

    Args:
        expected: the type; fields of dataclasses that are absent get their defaults.
        place: names the value in messages ("nodes./dev/kfd").

    Raises:
        ValueError: a value of another type, or a negative number, with its place.
    """
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if expected is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        return None if value is None else typed(arguments[0], value, place)
    if dataclasses.is_dataclass(expected):
        given, hints = typed(Mapping[str, Any], value, place), typing.get_type_hints(expected)
        names = [
            field.name
            for field in dataclasses.fields(expected)
            if field.name in given or field.default is field.default_factory is dataclasses.MISSING
        ]
        return expected(  # type: ignore[operator]
            **{n: typed(hints[n], given.get(n), f"{place}.{n}".lstrip(".")) for n in names}
        )
    plain: Any = {tuple: list, Mapping: dict}.get(origin, expected)
    if not isinstance(value, plain) or (plain is int and (isinstance(value, bool) or value < 0)):
        raise ValueError(f"{place or 'the whole'} is not {JSON_TYPES[plain]}")
    if isinstance(value, dict):
        return {k: typed(arguments[1], v, f"{place}.{k}".lstrip(".")) for k, v in value.items()}
    if not isinstance(value, list):
        return value
    several = arguments[-1] is Ellipsis
    if not several and len(value) != len(arguments):
        raise ValueError(f"{place} is not a list of {len(arguments)}")
    item_types = repeat(arguments[0]) if several else arguments
    return tuple(
        typed(item_type, item, place) for item_type, item in zip(item_types, value, strict=False)
    )
