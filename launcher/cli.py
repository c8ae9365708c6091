"""Command line of `aam-launch`: dispatch to the module of a command, and report errors."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from aam import __version__
from aam.contract.errors import AamError, CannotCreate
from launcher.help import LAUNCHER_COMMANDS, command_help, launcher_help, overview
from launcher.plan.launcher_options import HELP, as_arguments, split_launcher_options
from launcher.plan.request import command_of

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run `aam-launch` with `argv` (the process's by default) and return the exit status.

    A launch replaces the process and does not return.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    # File names that the locale cannot decode are printed as their original bytes.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="surrogateescape")
    try:
        try:
            return _dispatch(arguments)
        finally:
            sys.stdout.flush()
    except AamError as error:
        print(f"aam-launch: {error}", file=sys.stderr)
        return error.status
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = f"'{error.filename}'" if error.filename else "standard output"
        full = CannotCreate("The disk is full", f"{where}, {error.strerror}", "free some space")
        print(f"aam-launch: {full}", file=sys.stderr)
        return full.status
    except KeyboardInterrupt:
        return INTERRUPTED


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in HELP:
        print(overview())
        return 0
    if arguments[0] == "--version":
        print(f"aam-launch {__version__}")
        return 0
    if arguments[:2] == ["completion", "--"]:  # from the shell; the line may be incomplete
        from launcher.completion import candidates

        print("\n".join(candidates(arguments[2:])))
        return 0
    if any(argument in HELP for argument in arguments):
        _, rest = split_launcher_options(
            [argument for argument in arguments if argument not in HELP]
        )
        command = command_of(rest, LAUNCHER_COMMANDS)
        print(
            launcher_help(command, rest[1:])
            if command in LAUNCHER_COMMANDS
            else command_help(command)
        )
        return 0
    launcher_options, rest = split_launcher_options(arguments)
    command = command_of(rest, LAUNCHER_COMMANDS)
    if command in LAUNCHER_COMMANDS:
        arguments = [*as_arguments(launcher_options), *rest[1:]]
    # Only the module of the command is imported: a start may take 100 ms.
    module = importlib.import_module(
        f"launcher.commands.{command if command in LAUNCHER_COMMANDS else 'start'}"
    )
    status: int = module.run(arguments)
    return status


def run() -> NoReturn:
    """Run `main` and exit with its status."""
    sys.exit(main())


if __name__ == "__main__":
    run()
