"""What will be executed: the outcome of every decision, ready to run or to show."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """A program to become.

    Attributes:
        argv: the program and its arguments; the first is an absolute path.
        variables: environment variables to set on top of those that are there.
    """

    argv: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]

    def environment(self, present: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the program, given the `present` one."""
        return {**present, **dict(self.variables)}

    def command_line(self) -> str:
        """Return a line that does the same when it is pasted into a shell."""
        settings = [f"{name}={value}" for name, value in self.variables]
        return shlex.join(["env", *settings, *self.argv] if settings else self.argv)
