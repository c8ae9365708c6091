"""Command line: parser of declared options, typed values, and their conversion to arguments.

Both programs parse with these functions, so that an option, a value and a mistake have one meaning.
The values of the options that are given are a mapping flag -> value, in the order of the arguments.
"""

from __future__ import annotations

import argparse
import numbers
import os
import re
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from aam.contract.errors import UsageError, nearest
from aam.contract.options.field import SYNONYMS, OptionSpec, members, specs, values_by_flag

ADDRESS = re.compile(r"(file|https?|ftp|sftp|s3|gs):", re.IGNORECASE)
NUMBER = re.compile(r"-\.?\d")
"""A negative number, which is a value; every other argument with a dash is an option."""


HELP_ALL = "--help-all"
HELP = ("-h", "--help", HELP_ALL)

CONFIG = OptionSpec(
    "--config",
    "config",
    Path,
    "File with values of options: YAML with `option: value` lines, or the run.json of an earlier "
    "run. Options of the command line replace them.",
    basic=True,
)
"""Option of every command of `aam`; it stands for the options in its file."""


class Parser(argparse.ArgumentParser):
    """Parser of arguments without abbreviations; `--table_x` is `--table-x`."""

    def __init__(self, **settings: Any) -> None:
        # argparse makes a formatter for each option, and looks up the terminal's width each time.
        settings |= {"formatter_class": partial(argparse.HelpFormatter, width=80)}
        super().__init__(add_help=False, allow_abbrev=False, exit_on_error=False, **settings)
        self._negative_number_matcher = NUMBER

    def add(self, spec: OptionSpec, **more: Any) -> argparse.Action:
        """Add an option; it is absent from the result where the command line does not give it."""
        settings: dict[str, Any] = {"dest": spec.flag, "default": argparse.SUPPRESS, **more}
        if spec.type is bool:
            return self.add_argument(spec.flag, action=argparse.BooleanOptionalAction, **settings)
        if spec.repeated:
            settings["action"] = "append"
        elif typing.get_origin(spec.type) is tuple:
            settings["nargs"] = "+"
        elif spec.alone is not None:
            settings |= {"nargs": "?", "const": spec.alone}
        settings |= {"type": lambda text: convert(spec, text), "metavar": metavar(spec)}
        return self.add_argument(spec.flag, **settings)


def parse_known(
    options: Iterable[OptionSpec], argv: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """Return flag -> value of the `options` that are given, and the other arguments in order."""
    parser = Parser()
    for spec in (options := tuple(options)):
        parser.add(spec)
    argv, program = (own := before_program(argv)), argv[len(own) :]
    try:
        found, others = parser.parse_known_args([with_dashes(argument) for argument in argv])
    except argparse.ArgumentError as error:
        flag = (error.argument_name or "").partition("/")[0]
        if "/" in (error.argument_name or ""):  # --stratify/--no-stratify
            raise UsageError("A switch takes no value", flag, f"write {flag} alone") from None
        raise UsageError("An option without its value", flag, "write the value after it") from None
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in vars(found).items()}
    _check_ranges(options, given)
    return given, [*others, *program]


def before_program(argv: Sequence[str]) -> Sequence[str]:
    """Return the arguments before `--`, which stands before the arguments of another program."""
    return argv[: argv.index("--")] if "--" in argv else argv


def parse_options(
    options: Iterable[OptionSpec],
    argv: Sequence[str],
    command: str,
    *,
    program: str = "aam",
    others: Collection[str] = (),
    incomplete: bool = False,
) -> dict[str, Any]:
    """Return flag -> value of the options that a command line gives to a command."""
    known = {spec.flag: spec for spec in options}
    given, rest = parse_known(known.values(), argv)
    unknown = next((argument for argument in rest if names_an_option(argument)), None)
    if unknown is not None:
        flag = unknown.partition("=")[0]
        remedy = nearest(flag, (*known, *others), f"see `{program} {command} --help`")
        raise UsageError(f"`{command}` has no such option", f"'{unknown}'", remedy)
    first = next((spec for spec in known.values() if spec.first), None)
    if rest and first is not None and first.flag not in given:
        several = typing.get_origin(first.type) is tuple
        values = tuple(convert(first, rest.pop(0)) for _ in (rest[:] if several else rest[:1]))
        given = {first.flag: values if several else values[0], **given}
    if rest:
        remedy = "write each value after its option, and quote values with spaces"
        raise UsageError("A value without an option", f"'{rest[0]}'", remedy)
    if not incomplete:
        require_all(known.values(), given, command)
    return given


def require_all(options: Iterable[OptionSpec], given: Collection[str], command: str) -> None:
    """Check that every required option is given."""
    if lacking := absent(options, given):
        remedy = f"give a value for {'each' if len(lacking) > 1 else 'it'}"
        raise UsageError(f"`{command}` lacks required options", ", ".join(lacking), remedy)


def absent(options: Iterable[OptionSpec], given: Collection[str]) -> list[str]:
    """Return the flags of the required options that are not given."""
    return [metavar(spec) if spec.first else spec.flag
            for spec in options if spec.required and spec.flag not in given]  # fmt: skip


def arguments(options: Iterable[OptionSpec], given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the arguments that give the options of flag -> value."""
    known = {spec.flag: spec for spec in options}
    found: list[str] = []
    for flag, value in given.items():
        if isinstance(value, bool):
            found.append(flag if value else f"--no-{flag[2:]}")
        elif known[flag].repeated:
            found += [f"{flag}={item}" for item in value]
        elif isinstance(value, tuple):
            found += [flag, *map(str, value)]
        elif str(value).startswith("-"):
            found.append(f"{flag}={value}")
        else:
            found += [flag, str(value)]
    return tuple(found)


def check(options: Any) -> None:
    """Check that all numbers of an options object are in the range of their option."""
    _check_ranges(specs(type(options)), values_by_flag(options))


def _check_ranges(options: Iterable[OptionSpec], values: Mapping[str, Any]) -> None:
    """Check that all numbers are in the range of their option."""
    wrong = []
    for spec in options:
        value = values.get(spec.flag)
        given = value if isinstance(value, tuple) else (value,)
        found = [one for one in given if isinstance(one, numbers.Real)]
        if spec.takes is not None and not all(spec.takes.holds(float(one)) for one in found):
            wrong.append((spec.flag, " ".join(map(str, found)), spec.takes.description))
    if wrong:
        evidence = ", ".join(f"{flag} {value}" for flag, value, _ in wrong)
        ranges = ", ".join(f"{allowed} for {flag}" for flag, _, allowed in wrong)
        raise UsageError("Value out of range", evidence, f"give {ranges}")


def convert(spec: OptionSpec, text: str) -> Any:
    """Return the value of an option that a text gives."""
    types = members(spec.type)
    choices = {str(value): value for value in spec.choices}
    choices |= {word: value for word, value in SYNONYMS.items() if value in choices}
    if type(None) in types:
        choices["None"] = None
    if text in choices:
        return choices[text]
    if Path in types:
        if ADDRESS.match(text):
            evidence, remedy = f"{spec.flag} {text}", "copy the file here and name it"
            raise UsageError("An address instead of a path", evidence, remedy)
        # The shell does not expand `~` after `=` or in quotes.
        expanded = os.path.expanduser(text)
        if expanded.startswith("~"):
            raise UsageError("No such user", f"{spec.flag} {text}", f"write ./{text} for a file")
        return Path(expanded)
    if str in types:
        return text
    for number in (int, float):
        if number in types:
            try:
                return number(text)
            except ValueError:
                continue
    expected = [*choices, *("a whole number" for each in types if each is int)]
    expected += ["a number" for each in types if each is float]
    remedy = nearest(text, choices, f"give {' or '.join(expected)}")
    raise UsageError(f"Invalid value for {spec.flag}", f"'{text}'", remedy)


def metavar(spec: OptionSpec) -> str:
    """Return the name of an option's value in help pages.

    >>> metavar(OptionSpec("--num-workers", "num_workers", int | typing.Literal["auto"], ""))
    'auto|N'
    """
    types = members(spec.type)
    names = {int: "N", float: "X", str: "TEXT"}
    names[Path] = "FOLDER" if spec.field.endswith("dir") else "PATH"
    named = [spec.metavar or names[each] for each in types if each in names]
    return "|".join([*map(str, spec.choices), *named])


def names_an_option(argument: str) -> bool:
    """Return whether an argument is an option; a negative number is a value."""
    return argument.startswith("-") and argument != "-" and not NUMBER.match(argument)


def with_dashes(argument: str) -> str:
    """Return an argument with its flag written with dashes; `--table_x` is `--table-x`."""
    flag, equals, value = argument.partition("=")
    return flag.replace("_", "-") + equals + value if flag.startswith("--") else argument
