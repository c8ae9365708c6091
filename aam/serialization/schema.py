"""Validation of plain values (from JSON or a checkpoint) against declared types.

A type is a dataclass, a TypedDict, a class, `int`, `float`, `str`, `bool`, `None`, `Any`, or an
annotation: `dict[str, T]`, `list[T]`, `tuple[T, ...]`, `tuple[T, T]`, `Literal`, a union,
`Annotated[T, Range]`.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from functools import cache
from typing import Any, Literal, Union

from aam.contract.options.field import Range


class Mismatch(ValueError):
    """A value that is not of its declared type; the text names its place and both."""


def parse(kind: Any, value: Any, place: str) -> Any:
    """Return a value as its declared type, with dataclasses and tuples in place of plain values.

    Args:
        kind: the type.
        value: what dictionaries, lists, texts, numbers and tensors describe.
        place: its path, for messages ("aam.shape").

    Raises:
        Mismatch: the value is of another type, out of range or not finite, or a key is missing.
    """
    origin = typing.get_origin(kind)
    if kind is Any:
        return value
    if origin is typing.Annotated:
        return _in_range(typing.get_args(kind), value, place)
    if origin is Literal:
        choices = typing.get_args(kind)
        if not isinstance(value, str | int) or value not in choices:
            raise Mismatch(f"{place} is {_shown(value)}, not one of {', '.join(map(str, choices))}")
        return value
    if origin in (Union, types.UnionType):
        return _one_of(typing.get_args(kind), value, place)
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
        return _fields(kind, value, place)
    if origin is dict:
        key, item = typing.get_args(kind)
        entries = _typed(dict, value, place)
        return {
            parse(key, name, f"a key of {place}"): parse(item, given, f"{place}.{name}")
            for name, given in entries.items()
        }
    if origin in (list, tuple):
        item, *others = typing.get_args(kind)
        items = _typed(list | tuple, value, place)
        if others and others != [...] and len(items) != len(others) + 1:
            raise Mismatch(f"{place} has {len(items)} entries, not {len(others) + 1}")
        return origin(parse(item, given, f"{place}[{i}]") for i, given in enumerate(items))
    if kind in (int, float):
        return _number(kind, value, place)
    return _typed(type(None) if kind is None else kind, value, place)


def like(own: Any, stored: Any, place: str) -> Any:
    """Return the state of a fresh object with the stored values of the same keys in their places.

    What only one side has is of another version: stored keys without a place are left out.

    Raises:
        Mismatch: a value is of another type, a list of another length, or a number is NaN.
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
    kind, *limits = arguments
    found = parse(kind, value, place)
    for limit in limits:
        if isinstance(limit, Range) and not limit.holds(found):
            raise Mismatch(f"{place} is {_shown(found)}, not {limit.words}")
    return found


def _one_of(kinds: tuple[Any, ...], value: Any, place: str) -> Any:
    """Return the value as the first type that it is of."""
    if value is None and type(None) in kinds:
        return None
    first, *others = (kind for kind in kinds if kind is not type(None))
    try:
        return parse(first, value, place)
    except Mismatch:
        if not others:
            raise
    return _one_of(tuple(others), value, place)


def _fields(kind: Any, value: Any, place: str) -> Any:
    """Return a TypedDict, which may have other keys, or a dataclass, which may not."""
    declared = _declared(kind)
    entries = _typed(dict, value, place)
    is_class = dataclasses.is_dataclass(kind)
    if is_class:
        required = {f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING}
        unknown = [key for key in entries if key not in declared]
        if unknown:
            raise Mismatch(f"{place} has an unknown key {_shown(unknown[0])}")
    else:
        required = kind.__required_keys__
    missing = sorted(required - entries.keys())
    if missing:
        raise Mismatch(f"{place} has no '{missing[0]}'")
    found = {
        key: parse(declared[key], given, f"{place}.{key}") if key in declared else given
        for key, given in entries.items()
    }
    return kind(**found) if is_class else found


@cache
def _declared(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _number(kind: Any, value: Any, place: str) -> float | int:
    wanted = int if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, wanted):
        raise Mismatch(f"{place} is {_shown(value)}, not a {'whole ' * (kind is int)}number")
    if (isinstance(value, int) and value.bit_length() > 63) or not math.isfinite(value):
        raise Mismatch(f"{place} is {_shown(value)}, beyond any range")
    number: float | int = kind(value)
    return number


def _typed(kind: Any, value: Any, place: str) -> Any:
    if not isinstance(value, kind):
        raise Mismatch(f"{place} is {_shown(value)}, not {getattr(kind, '__name__', kind)}")
    return value


def _shown(value: Any) -> str:
    """Show a value briefly: a number or a short text as it is, anything else by its type."""
    if value is None or isinstance(value, bool | int | float | str):
        if isinstance(value, int) and value.bit_length() > 100:
            return "a number of more than 100 bits"  # too long to print
        text = repr(value)
        return text if len(text) <= 40 else f"{text[:37]}..."
    return f"of type {type(value).__name__}"
