"""Arguments of the Python interface: checks by the declarations of the options, names in messages.

Errors, warnings and messages are those of the commands. `library_call` names parameters in them
instead of options, in one place.
"""

from __future__ import annotations

import numbers
import re
import tempfile
import typing
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from aam.console import as_library
from aam.contract.errors import AamError, DataError, UsageError, first_few, nearest
from aam.contract.options import SYNONYMS, fits, specs
from aam.data.formats.tables import check_ids

_FLAG = re.compile(r"(?<![\w-])--(no-)?([a-z][a-z0-9]*(?:-[a-z0-9]+)*)")
_NAMES = {
    "metadata_column": "y",
    "group_column": "groups",
    "classifier": "AAMClassifier",
    "run_dir": "run",
    "unifrac_metric": "metric",
}
"""Options whose parameter has another name."""

_COMMAND_LINE = {"config", "fsdp", "loss-config", "max-memory-gb", "processes", "resume-from",
                 "where"}  # fmt: skip
"""Options that no function has as a parameter; messages name them as options."""


@contextmanager
def library_call(unnamed: str = "") -> Iterator[Path]:
    """Yield a temporary folder for what is in memory, and show messages as a library does.

    Messages go to the logger and to `warnings`. In them and in errors, options are parameters,
    files of the folder have no path, and `unnamed`, which begins the ids of samples that have none,
    is left out.
    """
    with tempfile.TemporaryDirectory(prefix="aam-") as folder:

        def rendered(text: str) -> str:
            text = text.replace(f"'{folder}/table.biom'", "the table").replace(f"'{folder}/", "'")
            return as_parameters(text.replace(unnamed, ""))

        with as_library(rendered):
            try:
                yield Path(folder)
            except AamError as error:
                error.args = tuple(map(rendered, error.args))
                error.cause, error.evidence, error.remedy = error.args
                raise


def as_parameters(text: str) -> str:
    """Return a text with the parameters of Python in place of the options of a command.

    >>> as_parameters("--freeze-base with --no-check; leave out --where")
    'freeze_base with check=False; leave out --where'
    """

    def name(found: re.Match[str]) -> str:
        off, flag = found.groups()
        if flag in _COMMAND_LINE:
            return found[0]
        field = flag.replace("-", "_")
        return _NAMES.get(field, field) + "=False" * bool(off)

    return _FLAG.sub(name, text)


def arguments(
    command: type, given: Mapping[str, Any], names: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the values of arguments, by field, as the options of a command take them.

    A string or a number stands for a tuple of one, a NumPy number for that of Python, `gpu` for
    `cuda`, a string for a path.

    >>> from aam.contract.options.device import DeviceOptions
    >>> arguments(DeviceOptions, {"device": "gpu"})
    {'device': 'cuda'}

    `names` are those of arguments that differ from their field. A value that is not of the type or
    range of its option is a UsageError.
    """
    values = {}
    for spec in specs(command):
        if spec.field not in given:
            continue
        value = given[spec.field]
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, str) and SYNONYMS.get(value) in spec.choices:
            value = SYNONYMS[value]
        if isinstance(value, (str, numbers.Real)) and typing.get_origin(spec.type) is tuple:
            value = (value,)
        cause = f"Invalid {(names or {}).get(spec.field, spec.field)}"
        items = tuple(value) if isinstance(value, (tuple, list)) else (value,)
        if not fits(spec.type, value):
            remedy = f"it takes: {spec.help.rstrip('.')}"
            if choices := [choice for choice in spec.choices if isinstance(choice, str)]:
                wrong = next((item for item in items if item not in choices), "")
                remedy = nearest(str(wrong), choices, f"give one of {', '.join(choices)}")
            raise UsageError(cause, shown(value), as_parameters(remedy))
        found = (float(item) for item in items if isinstance(item, numbers.Real))
        if spec.takes is not None and not all(map(spec.takes.holds, found)):
            raise UsageError(cause, shown(value), f"give {spec.takes.description}")
        if isinstance(value, (str, PathLike)) and value not in spec.choices:
            value = Path(value) if fits(spec.type, Path()) else value
        values[spec.field] = items if isinstance(value, list) else value
    return values


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
