"""Command line of `aam-launch`: dispatch to the module of a command, and report errors."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from aam import __version__
from aam.contract import program
from aam.contract.completion import REQUESTED
from aam.contract.errors import UsageError
from aam.contract.options import HELP, before_program, parse_known, split_command
from launcher.commands import HOST, NAMES, OWN_STARTS, READ
from launcher.plan.settings import LAUNCHER_OPTIONS


def main(argv: Sequence[str] | None = None) -> int:
    """Run `aam-launch` with `argv` (the process's by default) and return the exit status.

    A launch replaces the process and does not return.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    return program.run("aam-launch", lambda: _dispatch(arguments))


def _dispatch(argv: list[str]) -> int:
    if REQUESTED in os.environ:
        from launcher.commands.completion import complete_command_line

        complete_command_line()
    if argv[:1] in (["--version"], ["-V"]):
        print(f"aam-launch {__version__}")
        return 0
    if argv[:1] == ["help"]:
        argv = [*argv[1:], "--help"]
    launcher_options, rest = parse_known(LAUNCHER_OPTIONS.values(), argv)
    if not argv or any(argument in HELP for argument in before_program(rest)):
        from launcher.help import help_of  # with shutil and textwrap: 5 ms

        print(help_of(rest))
        return 0
    command, arguments = split_command(rest, NAMES, "aam-launch")
    # Only the module of the command is imported: a start may take 100 ms.
    name, *action = command.split()
    of_launcher = command in NAMES
    module_name = name if of_launcher or command in OWN_STARTS else "start"
    module = importlib.import_module(f"launcher.commands.{module_name}")
    _require_host_read(launcher_options, command)
    status: int = module.run(launcher_options, [*action, *arguments] if of_launcher else rest)
    return status


def _require_host_read(given: Mapping[str, Any], command: str) -> None:
    """Refuse --host before a command that would run on this host, whatever the capture holds."""
    reads = HOST in READ.get(command, ()) if command in NAMES else "--dry-run" in given
    if HOST in given and not reads:
        others = ", ".join(f"`{name}`" for name, flags in READ.items() if HOST in flags)
        evidence = f"--host {given[HOST]} and `{command}`, which runs on this host"
        remedy = f"leave it out; {others} and --dry-run decide for a captured host"
        raise UsageError("A captured host runs nothing", evidence, remedy)


def run() -> NoReturn:
    """Run `main` and exit with its status."""
    sys.exit(main())


if __name__ == "__main__":
    run()
