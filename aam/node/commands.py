"""Command line that a job runs: the paths in it, and what a restart of the job changes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aam.contract.errors import MissingInput
from aam.contract.options import ParsedCommand, parse


@dataclass(frozen=True)
class NodeCommand(ParsedCommand):
    """A command of `aam` with absolute paths."""

    @property
    def run_folder(self) -> Path | None:
        """The folder of a command that can be resumed, else None."""
        return self.given.get("--output-dir") if self.option("--resume-from") else None

    @property
    def writes_folder(self) -> bool:
        """Whether the output is a folder, not a file."""
        return self.option("--output-dir") is not None

    @property
    def in_place(self) -> bool:
        """Whether several jobs write to the run folder, which all nodes share."""
        return self.option("--trials-only") is not None


def read(argv: Sequence[str], folder: Path) -> NodeCommand:
    """Parse a command line and make the paths in it absolute.

    Args:
        argv: the command and its options.
        folder: what relative paths are relative to.

    Raises:
        UsageError: it is wrong.
    """
    found = parse(argv, incomplete=True)
    command = NodeCommand(found.command, found.given, wrapped=found.wrapped, program=found.program)
    return command.with_paths(lambda path: Path(os.path.normpath(folder / path)))


def require_inputs(command: NodeCommand) -> None:
    """Check that every input can be read.

    Raises:
        MissingInput: names the option and the path.
    """
    for spec, path in command.paths("input"):
        flag = spec.flag
        if not path.exists():
            evidence = f"'{path}' does not exist on {os.uname().nodename}"
            remedy = "check the path, or copy the file to a folder that all nodes see"
            raise MissingInput(f"No file for {flag}", evidence, remedy)
        if not os.access(path, os.R_OK):
            remedy = "ask its owner for permission to read it"
            raise MissingInput(f"No access for {flag}", f"'{path}' cannot be read", remedy)


def resumed(command: NodeCommand) -> NodeCommand:
    """Return the command of a job that starts again: it continues its own run."""
    return command.with_values({"--resume-from": "auto", "--overwrite": False})
