"""What the user asks for: the words of the command line, held against the options of `aam`.

A typo is found here, where the user sits, not after an hour in a queue. Whether a value suits its
option (a number, a choice) is left to `aam` itself.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aam.options import OptionSpec, find, names, specs
from launcher.errors import UsageError

OWN_FLAGS = {
    "--dry-run": "Print the command line that would run, and stop.",
    "--help": "Show this page, or the options of a command.",
    "--version": "Print the version.",
}
"""The launcher's own options; no option of `aam` may bear one of these names."""

HELP = ("-h", "--help")
NUMBER = re.compile(r"-\.?\d")


@dataclass(frozen=True)
class Request:
    """A checked command line.

    Attributes:
        command: a command of `aam`.
        words: the options of that command as the user wrote them, in order.
        inputs: flag and path of every file or folder that will be read.
        outputs: flag and path of every file or folder that will be written.
        dry_run: show what would run instead of running it.
    """

    command: str
    words: tuple[str, ...]
    inputs: tuple[tuple[str, Path], ...]
    outputs: tuple[tuple[str, Path], ...]
    dry_run: bool = False


def parse(argv: Sequence[str]) -> Request:
    """Read the words after `aam-launch`; help and version are the caller's business.

    Raises:
        UsageError: an unknown command or option, an option without its value, a value without an
            option, or a required option that is not given. Unknown names bring the nearest known.
    """
    words = [word for word in argv if word != "--dry-run"]
    command, rest = command_of(words), words[1:]
    known = options_of(command)
    given = _pairs(rest, known, command)
    absent = [spec.flag for spec in known.values() if spec.required and spec.flag not in given]
    if absent:
        remedy = f"give a value for {'each' if len(absent) > 1 else 'it'}"
        raise UsageError(f"`{command}` lacks required options", ", ".join(absent), remedy)
    return Request(
        command=command,
        words=tuple(rest),
        inputs=_paths(given, known, "input"),
        outputs=_paths(given, known, "output"),
        dry_run="--dry-run" in argv,
    )


def command_of(words: Sequence[str]) -> str:
    """Return the command that `words` begin with.

    Raises:
        UsageError: they begin with something else.
    """
    first = words[0] if words else ""
    if find(first) is None:
        known = (*names(), *OWN_FLAGS)
        raise UsageError("No such command", f"'{first}'", nearest(first, known, "aam-launch"))
    return first


def options_of(command: str) -> dict[str, OptionSpec]:
    """Return the options of a command of `aam`, by flag."""
    kind = find(command)
    assert kind is not None, command
    return {spec.flag: spec for spec in specs(kind)}


def nearest(word: str, known: Iterable[str], program: str) -> str:
    """Return the remedy for a misspelt `word`: the nearest of `known`, or where to look."""
    import difflib

    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean '{near[0]}'?" if near else f"see `{program} --help`"


def _pairs(
    words: Sequence[str], known: dict[str, OptionSpec], command: str
) -> dict[str, list[str]]:
    """Collect the values of each option; `--option value`, `--option=value` and switches."""
    given: dict[str, list[str]] = {}
    flag, wanted = "", 0.0  # the option that may still take values, and how many
    for word in words:
        if not _names_an_option(word):
            if wanted < 1:
                after = f"'{word}' after {flag}" if flag else f"'{word}'"
                raise UsageError("A value without an option", after, "quote values with spaces")
            given[flag].append(word)
            wanted -= 1
            continue
        _require_value(flag, given, wanted)
        name, equals, value = word.partition("=")
        flag = _flag(name, known, command)
        wanted = _room(known[flag])
        given[flag] = []
        if equals:
            given[flag].append(value)
            wanted = 0
    _require_value(flag, given, wanted)
    return given


def _names_an_option(word: str) -> bool:
    return word.startswith("-") and word != "-" and not NUMBER.match(word)


def _flag(name: str, known: dict[str, OptionSpec], command: str) -> str:
    """Return the flag that `name` stands for: underscores and `--no-` are other spellings."""
    flag = name.replace("_", "-")
    positive = "--" + flag.removeprefix("--no-")
    if flag in known:
        return flag
    if positive in known and known[positive].type is bool:
        return positive
    remedy = nearest(flag, known, f"aam-launch {command}")
    raise UsageError(f"`{command}` has no such option", f"'{name}'", remedy)


def _room(spec: OptionSpec) -> float:
    if spec.type is bool:
        return 0
    return float("inf") if typing.get_origin(spec.type) is tuple else 1


def _require_value(flag: str, given: dict[str, list[str]], wanted: float) -> None:
    if wanted >= 1 and not given[flag]:
        raise UsageError("An option without its value", flag, "write the value after it")


def _paths(
    given: dict[str, list[str]], known: dict[str, OptionSpec], role: str
) -> tuple[tuple[str, Path], ...]:
    found = []
    for flag, values in given.items():
        optional = type(None) in typing.get_args(known[flag].type)
        for value in values:
            if known[flag].role == role and not (optional and value == "None"):
                found.append((flag, Path(value)))
    return tuple(found)
