"""How an option is declared and listed; imports nothing beyond the standard library.

An option is a field of a frozen dataclass made with `option`. The command line (tyro reads the
`help` entry of the metadata), the checkpoint and the launcher all read the same field.
"""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

Role = Literal["value", "input", "output"]

T = TypeVar("T")


def option(help: str, *, default: Any = dataclasses.MISSING, role: Role = "value") -> Any:
    """Declare one option; without a default it is required.

    `role` says what a path is for: an `input` is read, an `output` is written, all else is `value`.
    """
    shown = help if role == "value" else f"{help} [{role}]"
    return dataclasses.field(default=default, metadata={"help": shown, "role": role}, kw_only=True)


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


def specs(command: type) -> tuple[OptionSpec, ...]:
    """List the options of a command class, those of its groups included, in declared order."""
    hints = typing.get_type_hints(command)
    found: list[OptionSpec] = []
    for field in dataclasses.fields(command):
        kind = hints[field.name]
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
            )
        )
    return tuple(found)


def to_plain(options: Any) -> dict[str, Any]:
    """Turn an options object into nested dictionaries of strings, numbers, lists and None."""
    return {f.name: _plain(getattr(options, f.name)) for f in dataclasses.fields(options)}


def from_plain(kind: type[T], values: dict[str, Any]) -> T:
    """Undo `to_plain`; fields that `values` lacks take their defaults, unknown ones are ignored."""
    hints = typing.get_type_hints(kind)
    known = [f.name for f in dataclasses.fields(typing.cast(Any, kind)) if f.name in values]
    return kind(**{name: _typed(hints[name], values[name]) for name in known})


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_plain(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _typed(kind: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(kind):
        return from_plain(typing.cast(type, kind), value)
    choices = typing.get_args(kind)
    if isinstance(value, str) and (kind is Path or Path in choices):
        return Path(value)
    if isinstance(value, list):
        return tuple(_typed(choices[0], item) for item in value)
    return value
