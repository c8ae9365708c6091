"""Parsed command: a command of `aam` with the values of the options that are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from aam.contract.options.command_line import arguments as spelled
from aam.contract.options.commands import find, options_of
from aam.contract.options.device import uses_network
from aam.contract.options.field import OptionSpec, Role, build

Self = TypeVar("Self", bound="ParsedCommand")


@dataclass(frozen=True)
class ParsedCommand:
    """A command of `aam`, of one or two words, and its options that are given, flag -> value."""

    command: str
    given: Mapping[str, Any] = field(default_factory=dict)

    def option(self, flag: str) -> OptionSpec | None:
        """Return the declaration of an option; None if the command has no such option."""
        return next((spec for spec in options_of(self.command) if spec.flag == flag), None)

    def value(self, flag: str) -> Any:
        """Return the value of an option, its default included; None without such an option."""
        spec = self.option(flag)
        return self.given.get(flag, spec.default if spec else None)

    @property
    def uses_network(self) -> bool:
        """Whether it computes with the network, by the values that are given."""
        options_class = find(self.command)
        assert options_class is not None, self.command
        absent = {spec.flag: None for spec in options_of(self.command) if spec.required}
        return uses_network(build(options_class, {**absent, **self.given}))

    @property
    def computes_on_gpu(self) -> bool:
        """Whether it computes on a GPU where there is one."""
        return self.value("--device") not in (None, "cpu") and self.uses_network

    def paths(self, role: Role) -> tuple[tuple[OptionSpec, Path], ...]:
        """Return option and path of everything that is read ("input") or written ("output")."""
        of_role = (spec for spec in options_of(self.command) if spec.role == role)
        given = ((spec, self.given.get(spec.flag)) for spec in of_role)
        found = ((s, one) for s, v in given for one in (v if isinstance(v, tuple) else (v,)))
        return tuple((spec, path) for spec, path in found if isinstance(path, Path))

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments after the command that give these values."""
        return spelled(options_of(self.command), self.given)

    @property
    def argv(self) -> tuple[str, ...]:
        """The command line that gives these values."""
        return (*self.command.split(), *self.arguments)

    def with_paths(self: Self, change: Callable[[Path], Path]) -> Self:
        """Return the command with every path replaced by what `change` returns for it."""

        def changed(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(changed, value))
            return change(value) if isinstance(value, Path) else value

        return replace(self, given={k: changed(value) for k, value in self.given.items()})

    def with_values(self: Self, values: Mapping[str, Any]) -> Self:
        """Return the command with values of options added or replaced."""
        return replace(self, given={**self.given, **values})
