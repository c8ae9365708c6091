"""Declaration of options as dataclass fields, and functions over them.

An option is a field of a frozen dataclass made with `option`. The command line (tyro reads the
`help` entry of the metadata), the checkpoint and the launcher all read the same field. Modules that
declare options let Python evaluate their annotations (no `from __future__ import annotations`), so
that a field has its type at once: evaluating all of them later costs every start.
"""

from __future__ import annotations

import dataclasses
import numbers
import os
import re
import sys
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from aam.contract.errors import UsageError

Role = Literal["value", "input", "output"]

T = TypeVar("T")


@dataclass(frozen=True)
class Range:
    """Range of a numeric option, with its description for messages."""

    words: str
    lowest: float
    highest: float = sys.float_info.max
    open_below: bool = False
    open_above: bool = False

    def holds(self, number: float) -> bool:
        """Return whether a number is in the range; NaN and infinity are not."""
        above = number > self.lowest if self.open_below else number >= self.lowest
        return above and (number < self.highest if self.open_above else number <= self.highest)


ONE_OR_MORE = Range("1 or more", 1)
ZERO_OR_MORE = Range("0 or more", 0)
ABOVE_ZERO = Range("more than 0", 0, open_below=True)
UP_TO_ONE = Range("0 to 1", 0, 1)
BELOW_ONE = Range("0 to below 1", 0, 1, open_above=True)
INSIDE_ONE = Range("more than 0 and less than 1", 0, 1, open_below=True, open_above=True)
RATES = Range("more than 0 and at most 1000000", 0, 1e6, open_below=True)
WEIGHTS = Range("0 to 1000000", 0, 1e6)
WIDTHS = Range("1 to 65536", 1, 65_536)
LAYERS = Range("1 to 1000", 1, 1000)
FEATURES = Range("0 to 65536", 0, 65_536)
PROCESSES = Range("0 to 1024", 0, 1024)
SECONDS = Range("more than 0 and at most 1000000", 0, 1e6, open_below=True)
SEEDS = Range("0 to 4294967295", 0, 2**32 - 1)


def option(
    help: str,
    *,
    default: Any = dataclasses.MISSING,
    role: Role = "value",
    takes: Range | None = None,
    alone: str | None = None,
    first: bool = False,
    resumable: bool = False,
) -> Any:
    """Declare an option; without a default it is required.

    Args:
        help: text for the help page.
        default: its default value.
        role: `input` for a path that is read, `output` for one that is written, else `value`.
        takes: range of a number, or of each number of a tuple, tested by `check`.
        alone: value of the flag if no value follows it.
        first: `complete_arguments` adds the flag if its value is the first argument.
        resumable: a resumed run may have another value; the files of an `input` may be elsewhere
            but must have the same content.
    """
    shown = help if role == "value" else f"{help} [{role}]"
    metadata = {
        "help": shown,
        "role": role,
        "takes": takes,
        "alone": alone,
        "first": first,
        "resumable": resumable,
    }
    return dataclasses.field(default=default, metadata=metadata, kw_only=True)


@dataclass(frozen=True)
class OptionSpec:
    """Option of a command, for the launcher and the documentation."""

    flag: str
    field: str
    type: Any
    required: bool
    default: Any
    help: str
    role: Role
    group: str
    alone: str | None = None
    first: bool = False
    resumable: bool = False


def specs(command: type) -> tuple[OptionSpec, ...]:
    """List the options of a command class, those of its groups included, in declared order."""
    found: list[OptionSpec] = []
    for field in dataclasses.fields(command):
        kind = field.type
        if dataclasses.is_dataclass(kind):
            found.extend(specs(typing.cast(type, kind)))
            continue
        required = field.default is dataclasses.MISSING
        found.append(
            OptionSpec(
                flag="--" + field.name.replace("_", "-"),
                field=field.name,
                type=kind,
                required=required,
                default=None if required else field.default,
                help=field.metadata["help"],
                role=field.metadata["role"],
                group=command.__name__,
                alone=field.metadata["alone"],
                first=field.metadata["first"],
                resumable=field.metadata["resumable"],
            )
        )
    return tuple(found)


def complete_arguments(command: type, words: Sequence[str]) -> list[str]:
    """Add omitted parts to a command line: the flag of the first argument, the value of a flag.

    `golden compare DIR` becomes `--golden-dir DIR`, `--compile-model` becomes `--compile-model
    auto`, `--output-dir=~/x` gets the home folder; both `aam` and the launcher
    parse the result.

    Raises:
        UsageError: a path is a URL, or in the home folder of an unknown user.
    """
    options = specs(command)
    full = list(words)
    leading = next((spec.flag for spec in options if spec.first), None)
    if leading is not None and full and not full[0].startswith("-"):
        full.insert(0, leading)
    alone = {spec.flag: spec.alone for spec in options if spec.alone is not None}
    for place in range(len(full) - 1, -1, -1):
        value = alone.get(full[place].replace("_", "-"))
        followed = place + 1 < len(full) and not full[place + 1].startswith("-")
        if value is not None and not followed:
            full.insert(place + 1, value)
    paths = {s.flag for s in options if s.type is Path or Path in typing.get_args(s.type)}
    for place, word in enumerate(full):
        flag, equals, value = word.partition("=")
        if flag.replace("_", "-") not in paths:
            continue
        if equals:
            full[place] = f"{flag}={_local_path(flag, value)}"
        elif place + 1 < len(full):
            full[place + 1] = _local_path(flag, full[place + 1])
    return full


def _local_path(flag: str, value: str) -> str:
    """Return a path with its `~` expanded; the shell does not expand it after `=` or in quotes.

    Raises:
        UsageError: it is a URL, or in the home folder of an unknown user.
    """
    if re.match(r"(file|https?|ftp|sftp|s3|gs):", value, re.IGNORECASE):
        raise UsageError(
            "An address instead of a path", f"{flag} {value}", "copy the file here and name it"
        )
    whole = os.path.expanduser(value)
    if whole.startswith("~"):
        raise UsageError("No such user", f"{flag} {value}", f"write ./{value} for a file")
    return whole


def check(options: Any) -> None:
    """Check that all numbers are in the range of their option, groups included.

    Raises:
        UsageError: names each number out of range, and its range.
    """
    wrong = list(_out_of_range(options))
    if wrong:
        given = ", ".join(f"{flag} {value}" for flag, value, _ in wrong)
        ranges = ", ".join(f"{words} for {flag}" for flag, _, words in wrong)
        raise UsageError("Values that no run can have", given, f"give {ranges}")


def _out_of_range(options: Any) -> Iterator[tuple[str, str, str]]:
    """Yield flag, value and range of each number out of range."""
    for field in dataclasses.fields(options):
        value, takes = getattr(options, field.name), field.metadata.get("takes")
        if dataclasses.is_dataclass(value):
            yield from _out_of_range(value)
        elif takes is not None:
            numbers = value if isinstance(value, tuple) else (value,)
            if not all(takes.holds(n) for n in numbers if not isinstance(n, str)):
                flag = "--" + field.name.replace("_", "-")
                yield flag, " ".join(str(number) for number in numbers), takes.words


def to_plain(options: Any) -> dict[str, Any]:
    """Convert options to nested dictionaries of strings, numbers, lists and None."""
    return {f.name: _plain(getattr(options, f.name)) for f in dataclasses.fields(options)}


def from_plain(kind: type[T], values: dict[str, Any]) -> T:
    """Convert the result of `to_plain` back; missing fields get defaults, unknown are ignored."""
    known = [f for f in dataclasses.fields(typing.cast(Any, kind)) if f.name in values]
    return kind(**{f.name: _typed(f.type, values[f.name]) for f in known})


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_plain(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def literal_values(kind: Any) -> tuple[str, ...]:
    """Return the literal values of an option type.

    >>> literal_values(Literal["auto"] | Path | None)
    ('auto',)
    """
    literals = (c for c in typing.get_args(kind) if typing.get_origin(c) is Literal)
    return tuple(word for literal in literals for word in typing.get_args(literal))


def fits(kind: Any, value: Any) -> bool:
    """Return whether a value has the type of an option; a path may be a string.

    >>> fits(int | Literal["auto"], "auto"), fits(float, 1), fits(bool, 1)
    (True, True, False)
    """
    origin, choices = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return value in choices
    if origin is tuple:
        return isinstance(value, (tuple, list)) and all(fits(choices[0], v) for v in value)
    if choices:
        return any(fits(choice, value) for choice in choices)
    if kind in (int, float):
        number = numbers.Integral if kind is int else numbers.Real
        return isinstance(value, number) and not isinstance(value, bool)
    return isinstance(value, (str, os.PathLike) if kind is Path else kind)


def _typed(kind: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(kind):
        return from_plain(typing.cast(type, kind), value)
    choices = typing.get_args(kind)
    if isinstance(value, (str, os.PathLike)) and (kind is Path or Path in choices):
        return value if value in literal_values(kind) else Path(value)
    if isinstance(value, list):
        return tuple(_typed(choices[0], item) for item in value)
    return value
