"""Parsed command: a command of `aam` with the values of the options that are given.

A command may wrap another one, which stands after its own options: `aam tune --rounds 5 pretrain
--table table.biom`. The wrapped command is taken as it is; where it would write, and whether it
would replace or continue a run, has no effect.
"""

from __future__ import annotations

import os
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from aam.contract.errors import UsageError, nearest
from aam.contract.options.command_line import (
    CONFIG,
    absent,
    names_an_option,
    require_all,
    with_dashes,
)
from aam.contract.options.command_line import arguments as spelled
from aam.contract.options.commands import (
    WRAPPERS,
    find,
    options_of,
    parse_command,
    split_command,
    wrapped_options,
)
from aam.contract.options.contradictions import require_consistent
from aam.contract.options.device import uses_network
from aam.contract.options.field import OptionSpec, Role, build

Self = TypeVar("Self", bound="ParsedCommand")

PROGRAM = "--"
"""Stands before a program that is no command of `aam`."""

PROGRAMS = ("tune",)
"""Commands that take such a program."""


@dataclass(frozen=True)
class ParsedCommand:
    """A command of `aam`, of one or two words, and its options that are given, flag -> value.

    Attributes:
        command: its name.
        given: the values; also those of the wrapped command.
        wrapped: the command that it wraps, "" without one.
        program: the arguments of another program that it wraps.
    """

    command: str
    given: Mapping[str, Any] = field(default_factory=dict)
    wrapped: str = field(default="", kw_only=True)
    program: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def options(self) -> tuple[OptionSpec, ...]:
        """The declarations of its options and of those of the command that it wraps."""
        return options_of(self.command) + self._of_wrapped

    @property
    def _of_wrapped(self) -> tuple[OptionSpec, ...]:
        return wrapped_options(self.command, self.wrapped) if self.wrapped else ()

    def option(self, flag: str) -> OptionSpec | None:
        """Return the declaration of an option; None if the command has no such option."""
        return next((spec for spec in self.options if spec.flag == flag), None)

    def value(self, flag: str) -> Any:
        """Return the value of an option, its default included; None without such an option."""
        spec = self.option(flag)
        return self.given.get(flag, spec.default if spec else None)

    def build(self) -> Any:
        """Return the options of the command itself."""
        return _built(self.command, self.given)

    def build_wrapped(self) -> Any:
        """Return the options of the command that it wraps, or the arguments of a program."""
        if not self.wrapped:
            return self.program
        return _built(self.wrapped, self._values(self._of_wrapped))

    @property
    def uses_network(self) -> bool:
        """Whether it computes with the network, by the values that are given."""
        return bool(self.wrapped) or uses_network(self.build())

    @property
    def computes_on_gpu(self) -> bool:
        """Whether it computes on a GPU where there is one."""
        return self.value("--device") not in (None, "cpu") and self.uses_network

    @property
    def starts_ranks(self) -> bool:
        """Whether one process starts those of all GPUs of its node.

        Its options class declares it. Of a job of several nodes it is a rank for each GPU.
        """
        return bool(getattr(find(self.command), "starts_ranks", False))

    def paths(self, role: Role) -> tuple[tuple[OptionSpec, Path], ...]:
        """Return option and path of everything that is read ("input") or written ("output")."""
        of_role = (spec for spec in self.options if spec.role == role)
        given = ((spec, self.given.get(spec.flag)) for spec in of_role)
        found = ((s, one) for s, v in given for one in (v if isinstance(v, tuple) else (v,)))
        return tuple((spec, path) for spec, path in found if isinstance(path, Path))

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments after the command that give these values."""
        own = options_of(self.command)
        found = spelled(own, self._values(own))
        if self.wrapped:
            of_wrapped = self._of_wrapped
            return (*found, self.wrapped, *spelled(of_wrapped, self._values(of_wrapped)))
        return (*found, PROGRAM, *self.program) if self.program else found

    @property
    def argv(self) -> tuple[str, ...]:
        """The command line that gives these values."""
        return (*self.command.split(), *self.arguments)

    def _values(self, options: Iterable[OptionSpec]) -> dict[str, Any]:
        flags = {spec.flag for spec in options}
        return {flag: value for flag, value in self.given.items() if flag in flags}

    def with_values(self: Self, values: Mapping[str, Any]) -> Self:
        """Return the command with values of options added or replaced."""
        return replace(self, given={**self.given, **values})


def parse(
    argv: Sequence[str],
    *,
    program: str = "aam",
    others: Collection[str] = (),
    incomplete: bool = False,
) -> ParsedCommand:
    """Parse a command line of `aam`."""
    name, rest = split_command(argv, program=program)
    if name not in WRAPPERS:
        given = parse_command(name, rest, program=program, others=others, incomplete=incomplete)
        return ParsedCommand(name, given)
    options = options_of(name)
    takes_word = any(spec.first for spec in options)
    # The place of the command that this one wraps, or of the `--` before a program.
    known = {spec.flag: spec for spec in (*options, CONFIG)}
    end, several, wraps = 0, False, ", ".join(WRAPPERS[name])
    while end < len(rest) and rest[end] not in WRAPPERS[name]:
        word = rest[end]
        if word == PROGRAM:
            if name in PROGRAMS:
                break
            raise UsageError(f"`{name}` runs no other program", "--", f"`{name}` takes {wraps}")
        if names_an_option(word):
            # The value of an option is no command, though it may have the name of one.
            spec = known.get(with_dashes(word).partition("=")[0])
            several = spec is None or typing.get_origin(spec.type) is tuple
            end += not (spec is None or several or spec.type is bool or "=" in word)
        elif not (several or takes_word):
            remedy = nearest(word, WRAPPERS[name], f"`{name}` takes {wraps}")
            if name in PROGRAMS:
                remedy += f", or `{PROGRAM} PROGRAM ...`"
            raise UsageError(f"Not a command that `{name}` takes", f"'{word}'", remedy)
        end += 1
    end = min(end, len(rest))
    given = parse_command(name, rest[:end], program=program, others=others, incomplete=True)
    wrapped = rest[end] if end < len(rest) and rest[end] != PROGRAM else ""
    words = tuple(rest[end + 1 :]) if not wrapped else ()
    form = " ".join([program, name, "[OPTIONS]", wrapped or "COMMAND", "..."])
    if not incomplete:
        if lacking := absent(options, given):
            remedy = f"give them before the command: `{form}`"
            raise UsageError(f"`{name}` lacks options of its own", ", ".join(lacking), remedy)
        require_consistent(_built(name, given))
        if not (wrapped or words or takes_word):
            remedy = f"give {' or '.join(WRAPPERS[name])}: `{form}`"
            raise UsageError(f"`{name}` lacks the command that it takes", "none was given", remedy)
    if not wrapped:
        return ParsedCommand(name, given, program=words)
    of_wrapped = rest[end + 1 :]
    own = {spec.flag for spec in options} - {spec.flag for spec in options_of(wrapped)}
    used = [with_dashes(word.partition("=")[0]) for word in of_wrapped if names_an_option(word)]
    if misplaced := [flag for flag in used if flag in own]:
        cause = f"Options of `{name}` after the command that it takes"
        raise UsageError(cause, ", ".join(misplaced), f"write `{form}`")
    values = parse_command(wrapped, of_wrapped, program=program, others=others, incomplete=True)
    effective = wrapped_options(name, wrapped)
    if not incomplete:
        require_all(effective, values, wrapped)
        require_consistent(_built(wrapped, values))
    given |= {spec.flag: values[spec.flag] for spec in effective if spec.flag in values}
    return ParsedCommand(name, given, wrapped=wrapped)


def _built(command: str, given: Mapping[str, Any]) -> Any:
    """Return the options of a command; what is absent is None, an output the null device."""
    values: dict[str, Any] = {
        spec.flag: Path(os.devnull) if spec.role == "output" else None
        for spec in options_of(command)
        if spec.required
    }
    return build(typing.cast(type, find(command)), {**values, **given})
