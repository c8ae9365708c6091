"""Request: the command line, checked against the options of `aam`.

A typo is an error on the login node, not after an hour in a queue. Values are checked against the
type of their option (a number, one of several choices).
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from aam.contract.errors import UsageError
from aam.contract.options import OptionSpec, complete_arguments, find, names, specs, split
from aam.contract.suggestions import nearest
from launcher.plan.launcher_options import LAUNCHER_FLAGS, names_an_option, split_launcher_options

JSON = "--json"
"""The option of both programs: of `explain` and similar commands, else of the command."""


@dataclass(frozen=True)
class PathArgument:
    """A path on the command line.

    Attributes:
        flag: its option.
        path: as the user wrote it.
        role: "input" or "output".
        folder: the option stands for a folder (its name ends in "dir").
        place: index of the argument in `Request.argv` that ends with it.
    """

    flag: str
    path: Path
    role: str
    folder: bool
    place: int


@dataclass(frozen=True)
class Request:
    """A checked command line.

    Attributes:
        command: a command of `aam`, of one or two words.
        argv: the options of that command in order, as written, abbreviations spelled out.
        paths: every file or folder that is named.
        values: the options of `aam` that are given, in their usual spelling, and their values.
        launcher_options: the launcher's own options and their values.
        absent: required options that are not given; only where that was allowed.
    """

    command: str
    argv: tuple[str, ...] = ()
    paths: tuple[PathArgument, ...] = ()
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    launcher_options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    absent: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[tuple[str, Path], ...]:
        """Flag and path of everything that will be read."""
        return tuple(
            (argument.flag, argument.path) for argument in self.paths if argument.role == "input"
        )

    @property
    def outputs(self) -> tuple[tuple[str, Path], ...]:
        """Flag and path of everything that will be written."""
        return tuple(
            (argument.flag, argument.path) for argument in self.paths if argument.role == "output"
        )

    def value(self, flag: str) -> str | None:
        """Return the last value given for an option; None if there is none."""
        return next(reversed(self.values.get(flag, ())), None)

    @property
    def dry_run(self) -> bool:
        """Print the command line instead of running it."""
        return "--dry-run" in self.launcher_options

    def with_paths(self, paths: Mapping[int, str]) -> tuple[str, ...]:
        """Return the arguments with replaced paths, by index."""
        argv = list(self.argv)
        for argument in self.paths:
            if argument.place in paths:
                flag, equals, _ = argv[argument.place].partition("=")
                inline = flag + equals if names_an_option(flag) and equals else ""
                argv[argument.place] = inline + paths[argument.place]
        return tuple(argv)


def parse(argv: Sequence[str], *, incomplete: bool = False) -> Request:
    """Parse the arguments after `aam-launch`; the caller handles help and version.

    Args:
        argv: the arguments.
        incomplete: allow required options to be absent (for `explain`).

    Raises:
        UsageError: an unknown command or option, an option without its value, a value of the wrong
            type or without an option, or a required option that is not given. Unknown names bring
            the nearest known.
    """
    launcher_options, rest = split_launcher_options(argv)
    command = command_of(rest)
    kind = find(command)
    assert kind is not None
    rest = complete_arguments(kind, split(rest)[1])
    known = options_of(command)
    if JSON in launcher_options and JSON in known and not incomplete:
        launcher_options = {flag: given for flag, given in launcher_options.items() if flag != JSON}
        rest.append(JSON)
    given = _values(rest, known, command)
    absent = tuple(s.flag for s in known.values() if s.required and s.flag not in given)
    if absent and not incomplete:
        remedy = f"give a value for {'each' if len(absent) > 1 else 'it'}"
        raise UsageError(f"`{command}` lacks required options", ", ".join(absent), remedy)
    for flag, values in given.items():
        for value, _ in values:
            _check(known[flag], value)
    return Request(
        command=command,
        argv=tuple(rest),
        paths=_paths(given, known),
        values={flag: tuple(value for value, _ in found) for flag, found in given.items()},
        launcher_options=launcher_options,
        absent=absent,
    )


def command_of(argv: Sequence[str], more: Iterable[str] = ()) -> str:
    """Return the command that `argv` begin with; `more` are commands of the launcher itself.

    Raises:
        UsageError: they begin with something else.
    """
    first, _ = split(argv)
    if find(first) is None and first not in more:
        known = (*names(), *more, *LAUNCHER_FLAGS)
        remedy = nearest(first, known, "see `aam-launch --help`")
        raise UsageError("No such command", f"'{first}'", remedy)
    return first


@cache
def options_of(command: str) -> dict[str, OptionSpec]:
    """Return the options of a command of `aam`, by flag."""
    kind = find(command)
    assert kind is not None, command
    return {spec.flag: spec for spec in specs(kind)}


Given = dict[str, list[tuple[str, int]]]


def _values(argv: Sequence[str], known: dict[str, OptionSpec], command: str) -> Given:
    """Collect the values of each option, each with the index of its argument.

    `--option value`, `--option=value` and switches.
    """
    given: Given = {}
    flag, wanted = "", 0.0  # the option that may still take values, and how many
    for place, argument in enumerate(argv):
        if not names_an_option(argument):
            if wanted < 1:
                after = f"'{argument}' after {flag}" if flag else f"'{argument}'"
                raise UsageError("A value without an option", after, "quote values with spaces")
            given[flag].append((argument, place))
            wanted -= 1
            continue
        _require_value(flag, given, wanted)
        name, equals, value = argument.partition("=")
        flag = _flag(name, known, command)
        wanted = _value_limit(known[flag])
        given[flag] = []
        if equals:
            given[flag].append((value, place))
            wanted = 0
    _require_value(flag, given, wanted)
    return given


def _flag(name: str, known: dict[str, OptionSpec], command: str) -> str:
    """Return the flag that `name` stands for: underscores and `--no-` are other spellings."""
    flag = name.replace("_", "-")
    positive = "--" + flag.removeprefix("--no-")
    if flag in known:
        return flag
    if positive in known and known[positive].type is bool:
        return positive
    remedy = nearest(flag, (*known, *LAUNCHER_FLAGS), f"see `aam-launch {command} --help`")
    raise UsageError(f"`{command}` has no such option", f"'{name}'", remedy)


def _value_limit(spec: OptionSpec) -> float:
    if spec.type is bool:
        return 0
    return float("inf") if typing.get_origin(spec.type) is tuple else 1


def _require_value(flag: str, given: Given, wanted: float) -> None:
    if wanted >= 1 and not given[flag]:
        raise UsageError("An option without its value", flag, "write the value after it")


def _check(spec: OptionSpec, value: str) -> None:
    """Check a value whose option takes a number or one of several choices."""
    choices, numbers = _kinds(spec.type)
    if not choices and not numbers:
        return
    if value in choices or any(_is(kind, value) for kind in numbers):
        return
    wanted = [*choices, *("a whole number" if kind is int else "a number" for kind in numbers)]
    remedy = nearest(value, choices, f"give {' or '.join(wanted)}")
    raise UsageError("A value that does not suit its option", f"{spec.flag} '{value}'", remedy)


def _kinds(kind: typing.Any) -> tuple[list[str], list[type]]:
    """Return the choices and number types that a type allows; empty for any text."""
    if kind in (int, float):
        return [], [kind]
    if typing.get_origin(kind) is typing.Literal:
        return [str(text) for text in typing.get_args(kind)], []
    members = [member for member in typing.get_args(kind) if member is not Ellipsis]
    choices: list[str] = []
    numbers: list[type] = []
    for member in members:
        texts, found = (["None"], []) if member is type(None) else _kinds(member)
        if not texts and not found:
            return [], []
        choices += texts
        numbers += found
    return choices, numbers


def _is(kind: type, value: str) -> bool:
    try:
        kind(value)
    except ValueError:
        return False
    return True


def _paths(given: Given, known: dict[str, OptionSpec]) -> tuple[PathArgument, ...]:
    found = []
    for flag, values in given.items():
        spec = known[flag]
        choices = [text for part in typing.get_args(spec.type) for text in _kinds(part)[0]]
        choices += ["None"] if type(None) in typing.get_args(spec.type) else []
        for value, place in values:
            if spec.role != "value" and value not in choices:
                folder = spec.field.endswith("dir")
                found.append(PathArgument(flag, Path(value), spec.role, folder, place))
    return tuple(found)
