"""How an option is declared and listed; imports nothing beyond the standard library.

An option is a field of a frozen dataclass made with `option`. The command line (tyro reads the
`help` entry of the metadata), the checkpoint and the launcher all read the same field. Modules that
declare options let Python evaluate their annotations (no `from __future__ import annotations`), so
that a field has its type at once: evaluating all of them later costs every start.
"""

from __future__ import annotations

import dataclasses
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
    """The numbers that an option takes, as a person says it and as it is tested."""

    words: str
    lowest: float
    highest: float = sys.float_info.max
    open_below: bool = False
    open_above: bool = False

    def holds(self, number: float) -> bool:
        """Whether the number is one of them; NaN and infinity never are."""
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
    """Declare one option; without a default it is required.

    `role` says what a path is for: an `input` is read, an `output` is written, all else is `value`.
    `takes` is the range of a number, or of each number of a tuple; `check` looks at it.
    `alone` is the value that the flag means where none follows it.
    `first` lets the flag be left out where the value is the first word (see `spell_out`).
    `resumable` lets a run that is resumed have another value than before; the files of an `input`
    may lie elsewhere, but have to be the same.
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
    """One option of one command, as the launcher and the documentation see it."""

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


def spell_out(command: type, words: Sequence[str]) -> list[str]:
    """Write out what a person may leave out: the flag of the first word, the value of a flag.

    `golden compare DIR` becomes `--golden-dir DIR`, `--compile-model` becomes `--compile-model
    auto`, `--output-dir=~/x` gets the home; both command lines, of `aam` and of the launcher, are
    read from the result.

    Raises:
        UsageError: a path that is an address, or in the home of an unknown user.
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
    """Return a path with its `~` expanded, which the shell does not do behind a `=` or in quotes.

    Raises:
        UsageError: it is the address of a file, or the home of an unknown user.
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
    """Refuse numbers outside the range that their option takes, groups included.

    Raises:
        UsageError: names each of them and its range.
    """
    wrong = list(_out_of_range(options))
    if wrong:
        given = ", ".join(f"{flag} {value}" for flag, value, _ in wrong)
        ranges = ", ".join(f"{words} for {flag}" for flag, _, words in wrong)
        raise UsageError("Values that no run can have", given, f"give {ranges}")


def _out_of_range(options: Any) -> Iterator[tuple[str, str, str]]:
    """Yield flag, value and the range it should be in."""
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
    """Turn an options object into nested dictionaries of strings, numbers, lists and None."""
    return {f.name: _plain(getattr(options, f.name)) for f in dataclasses.fields(options)}


def from_plain(kind: type[T], values: dict[str, Any]) -> T:
    """Undo `to_plain`; fields that `values` lacks take their defaults, unknown ones are ignored."""
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


def words_of(kind: Any) -> tuple[str, ...]:
    """Return the words that an option takes beside values of other kinds.

    >>> words_of(Literal["auto"] | Path | None)
    ('auto',)
    """
    literals = (c for c in typing.get_args(kind) if typing.get_origin(c) is Literal)
    return tuple(word for literal in literals for word in typing.get_args(literal))


def _typed(kind: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(kind):
        return from_plain(typing.cast(type, kind), value)
    choices = typing.get_args(kind)
    if isinstance(value, str) and (kind is Path or Path in choices):
        return value if value in words_of(kind) else Path(value)
    if isinstance(value, list):
        return tuple(_typed(choices[0], item) for item in value)
    return value
