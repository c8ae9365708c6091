"""Validation of the arguments of the Python interface, by the declarations of the options."""

from __future__ import annotations

import numbers
import typing
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from aam.contract.errors import DataError, UsageError, first_few
from aam.contract.options import SYNONYMS, fits, specs
from aam.contract.suggestions import nearest
from aam.data.formats.tables import check_ids


def argument(command: type, field: str, value: Any, name: str | None = None) -> Any:
    """Return the value of an argument as its option takes it.

    A string or a number stands for a tuple of one, a NumPy number for that of Python, `gpu` for
    `cuda`.

    >>> from aam.contract.options.device import DeviceOptions
    >>> argument(DeviceOptions, "device", "gpu")
    'cuda'
    """
    spec = next(spec for spec in specs(command) if spec.field == field)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str) and SYNONYMS.get(value) in spec.choices:
        value = SYNONYMS[value]
    one = isinstance(value, (str, numbers.Real))
    if one and typing.get_origin(spec.type) is tuple:
        value = (value,)
    cause, evidence = f"Invalid {name or field}", shown(value)
    if not fits(spec.type, value):
        remedy = f"it takes: {spec.help.rstrip('.')}"
        if choices := [choice for choice in spec.choices if isinstance(choice, str)]:
            wrong = next((one for one in _items(value) if one not in choices), "")
            remedy = nearest(str(wrong), choices, f"give one of {', '.join(choices)}")
        raise UsageError(cause, evidence, remedy)
    found = [one for one in _items(value) if isinstance(one, numbers.Real)]
    if spec.takes is not None and not all(spec.takes.holds(float(one)) for one in found):
        raise UsageError(cause, evidence, f"give {spec.takes.description}")
    return value


def path_argument(name: str, value: Any, instead: str) -> Path:
    """Return the path of an argument; `instead` names what it may be besides."""
    if not isinstance(value, (str, PathLike)):
        raise UsageError(f"Invalid {name}", shown(value), f"give a path or {instead}")
    return Path(value)


def checked_ids(names: Iterable[Any], what: str) -> list[str]:
    """Return the ids of samples or features as text.

    >>> checked_ids([1, "b"], "sample")
    ['1', 'b']
    """
    listed = list(names)
    known = (str, numbers.Real)
    # Only NaN, which pandas has for a missing id, differs from itself.
    wrong = [name for name in listed if not isinstance(name, known) or name != name]
    if wrong:
        raise DataError(
            f"{what.capitalize()} ids that are neither text nor numbers",
            first_few(wrong),
            f"give each {what} an id",
        )
    ids = [str(name) for name in listed]
    check_ids(ids, what)
    if blank := [repr(name) for name in ids if name != name.strip()]:
        raise DataError(
            f"{what.capitalize()} ids that begin or end with a blank",
            first_few(blank),
            "remove the blanks",
        )
    return ids


def metadata_ids(names: Iterable[Any]) -> list[str]:
    """Return the sample ids of metadata as text."""
    ids = checked_ids(names, "sample")
    if comments := [name for name in ids if name.startswith("#")]:
        raise DataError(
            "Sample ids that begin with '#', as comments do in metadata",
            first_few(comments),
            "rename them",
        )
    return ids


def aligned(values: Any, ids: list[str] | None, what: str) -> Any:
    """Return a Series or DataFrame in the order of the sample ids, other values as they are.

    >>> aligned(pd.Series([1, 2], ["b", "a"]), ["a", "b"], "y").tolist()
    [2, 1]
    """
    if ids is None or not isinstance(values, (pd.Series, pd.DataFrame)):
        return values
    place = {name: row for row, name in enumerate(checked_ids(values.index, "sample"))}
    absent = [name for name in ids if name not in place]
    if absent or len(place) > len(ids):
        parts = {"the table": absent, what: [name for name in place if name not in set(ids)]}
        only = [f"only {part} has {first_few(names)}" for part, names in parts.items() if names]
        raise DataError(
            f"{what} and the table have different sample ids",
            ", ".join(only),
            f"select the same samples of both, or give {what} as an array in the table's order",
        )
    return values.iloc[[place[name] for name in ids]]


def shown(value: Any) -> str:
    """Return the representation of a value on one line, shortened."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def _items(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)
