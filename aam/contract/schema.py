"""Validation of plain values (from JSON or a checkpoint) against declared types.

A type is a class, a dataclass, `int`, `float`, `str`, `bool`, `None`, `Any`, an annotation
(`dict[str, T]`, `Mapping[str, T]`, `list[T]`, `tuple[T, ...]`, `tuple[T, T]`, `Literal`, a union,
`Annotated[T, Range]`), a list `[T]`, a tuple of alternatives `(None, T)`, or a dictionary from keys
to types, of which those that end in "?" may be absent; further keys of the value are ignored, or of
the type of the key `str` if there is one.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union

from aam.contract import records
from aam.contract.errors import DataError
from aam.contract.options.field import Range
from aam.contract.records import EDITED, Mismatch


def read_json(path: Path, expected: Any, what: str, remedy: str = EDITED) -> Any:
    """Read a JSON file, see `aam.contract.records.read_json`, and validate its content."""
    content: Any = records.read_json(path, Any, what, remedy)
    try:
        return parse(expected, content, "the content")
    except Mismatch as error:
        raise DataError(f"The {what} is damaged", f"'{path}', {error}", remedy) from error


def parse(expected: Any, value: Any, place: str) -> Any:
    """Validate a value and convert it to its declared type, with dataclasses and tuples.

    Args:
        value: dictionaries, lists, strings, numbers and tensors.
        place: its path, for messages ("aam.shape").

    Raises:
        Mismatch: the value is of another type, out of range or not finite, or a key is missing.
    """
    origin = typing.get_origin(expected)
    if expected is Any:
        return value
    if origin is typing.Annotated:
        return _in_range(typing.get_args(expected), value, place)
    if origin is Literal:
        choices = typing.get_args(expected)
        if not isinstance(value, str | int) or value not in choices:
            raise Mismatch(f"{place} is {_shown(value)}, not one of {', '.join(map(str, choices))}")
        return value
    if origin in (Union, types.UnionType):
        return _one_of(typing.get_args(expected), value, place)
    if isinstance(expected, tuple):
        return _one_of(expected, value, place)
    if isinstance(expected, list):
        items = enumerate(_typed(list, value, place))
        return [parse(expected[0], given, f"{place}[{i}]") for i, given in items]
    if isinstance(expected, dict):
        return _entries(expected, value, place)
    if dataclasses.is_dataclass(expected):
        return _instance(expected, value, place)
    if origin in (dict, Mapping):
        key, item = typing.get_args(expected)
        entries = _typed(dict, value, place)
        return {
            parse(key, name, f"a key of {place}"): parse(item, given, f"{place}.{name}")
            for name, given in entries.items()
        }
    if origin in (list, tuple):
        item, *others = typing.get_args(expected)
        items = _typed(list | tuple, value, place)
        if others and others != [...] and len(items) != len(others) + 1:
            raise Mismatch(f"{place} has {len(items)} entries, not {len(others) + 1}")
        return origin(parse(item, given, f"{place}[{i}]") for i, given in enumerate(items))
    if expected in (int, float):
        return _number(expected, value, place)
    return _typed(type(None) if expected is None else expected, value, place)


def like(own: Any, stored: Any, place: str) -> Any:
    """Return the state of a new object, with stored values in place of those of the same keys.

    Keys of one side alone are of another version: unknown stored keys are ignored.
    """
    if isinstance(own, dict):
        entries = _typed(dict, stored, place)
        return {
            key: like(value, entries[key], f"{place}.{key}") if key in entries else value
            for key, value in own.items()
        }
    if isinstance(own, list | tuple):
        items = _typed(list | tuple, stored, place)
        if len(items) != len(own):
            raise Mismatch(f"{place} has {len(items)} entries, not {len(own)}")
        pairs = enumerate(zip(own, items, strict=True))
        return type(own)(like(mine, item, f"{place}[{i}]") for i, (mine, item) in pairs)
    if own is None or isinstance(own, bool):  # flags that are off are None in some versions
        return _typed(bool | int | float | None, stored, place)
    if isinstance(own, str):
        return _typed(str, stored, place)
    if isinstance(stored, bool) or not isinstance(stored, int | float) or math.isnan(stored):
        raise Mismatch(f"{place} is {_shown(stored)}, not a number")
    return stored


def _in_range(arguments: tuple[Any, ...], value: Any, place: str) -> Any:
    expected, *limits = arguments
    found = parse(expected, value, place)
    for limit in limits:
        if isinstance(limit, Range) and not limit.holds(found):
            raise Mismatch(f"{place} is {_shown(found)}, not {limit.description}")
    return found


def _one_of(accepted_types: tuple[Any, ...], value: Any, place: str) -> Any:
    """Return the value converted to the first type that accepts it."""
    if value is None and (type(None) in accepted_types or None in accepted_types):
        return None
    first, *others = (t for t in accepted_types if t not in (None, type(None)))
    try:
        return parse(first, value, place)
    except Mismatch:
        if not others:
            raise
    return _one_of(tuple(others), value, place)


def _entries(declared: dict[Any, Any], value: Any, place: str) -> dict[str, Any]:
    """Validate the declared entries of a dictionary, which may have further ones."""
    entries = _typed(dict, value, place)
    others = declared.get(str, Any)
    named = {key: expected for key, expected in declared.items() if key is not str}
    hints = {key.removesuffix("?"): expected for key, expected in named.items()}
    missing = sorted(key for key in named if not key.endswith("?") and key not in entries)
    if missing:
        raise Mismatch(f"{place} has no '{missing[0]}'")
    return {
        key: parse(hints.get(key, others), given, f"{place}.{key}")
        for key, given in entries.items()
    }


def _instance(cls: Any, value: Any, place: str) -> Any:
    """Return a dataclass made from a dictionary, which may have no other entries."""
    known = {key.removesuffix("?") for key in _hints_of(cls)}
    unknown = [key for key in _typed(dict, value, place) if key not in known]
    if unknown:
        raise Mismatch(f"{place} has an unknown key {_shown(unknown[0])}")
    return cls(**_entries(_hints_of(cls), value, place))


@cache
def _hints_of(cls: Any) -> dict[str, Any]:
    """Return the types of a dataclass by field name, "?" after those with a default."""
    hints = typing.get_type_hints(cls, include_extras=True)
    optional = {
        f.name for f in dataclasses.fields(cls)
        if f.default is not dataclasses.MISSING or f.default_factory is not dataclasses.MISSING
    }  # fmt: skip
    return {f"{name}?" if name in optional else name: hint for name, hint in hints.items()}


def _number(expected: Any, value: Any, place: str) -> float | int:
    accepted = int if expected is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, accepted):
        raise Mismatch(f"{place} is {_shown(value)}, not a {'whole ' * (expected is int)}number")
    if (isinstance(value, int) and value.bit_length() > 63) or not math.isfinite(value):
        raise Mismatch(f"{place} is {_shown(value)}, beyond any range")
    number: float | int = expected(value)
    return number


def _typed(expected: Any, value: Any, place: str) -> Any:
    if not isinstance(value, expected):
        raise Mismatch(f"{place} is {_shown(value)}, not {getattr(expected, '__name__', expected)}")
    return value


def _shown(value: Any) -> str:
    """Format a value for a message: numbers and short strings in full, other objects by type."""
    if value is None or isinstance(value, bool | int | float | str):
        if isinstance(value, int) and value.bit_length() > 100:
            return "a number of more than 100 bits"  # too long to print
        text = repr(value)
        return text if len(text) <= 40 else f"{text[:37]}..."
    return f"of type {type(value).__name__}"
