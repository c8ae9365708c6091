"""Command line of `aam-launch`: dispatch to the module of a command, and report errors."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from aam.contract import program
from aam.contract.completion import REQUESTED, complete
from aam.contract.errors import UsageError
from aam.contract.options import specs
from aam.contract.options.command_line import (
    CONFIG,
    HELP,
    HELP_ALL,
    before_program,
    parse_known,
    split_command,
)
from aam.contract.options.commands import find as command_of_aam
from aam.contract.options.commands import options_of
from aam.contract.version import __version__
from launcher.commands import COMMANDS, FORWARDING, HOST, NAMES, find
from launcher.plan.settings import LAUNCHER_OPTIONS

TITLE = "Options of the launcher, anywhere on the command line"
OWN_STARTS = ("acceptance",)
"""Commands of `aam` that a module of this name starts; `start` starts all others."""
READ = {
    "explain": ("--json", HOST, "--image", "--runtime", "--site"),
    "doctor": ("--json", HOST, "--image-dir", "--site"), "images": ("--json", HOST, "--image-dir"),
    "jobs": ("--json",), "submit": ("--dry-run", "--site", "--image", "--force"),
}  # fmt: skip
"""Options of the launcher that the help page of a command names, besides --image-dir for images."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `aam-launch` and return the exit status; a launch replaces the process."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return program.run("aam-launch", lambda: _dispatch(arguments))


def _dispatch(argv: list[str]) -> int:
    if REQUESTED in os.environ:
        from launcher.commands.completion import launcher_parser

        complete(launcher_parser())
    if argv[:1] in (["--version"], ["-V"]):
        print(f"aam-launch {__version__}")
        return 0
    if argv[:1] == ["help"]:
        argv = [*argv[1:], "--help"]
    launcher_options, words = parse_known(LAUNCHER_OPTIONS.values(), argv)
    if not argv or any(argument in HELP for argument in before_program(words)):
        print(help_of(words))
        return 0
    own_names = (*NAMES, "job")  # of job scripts, on no help page
    command, arguments = split_command(words, own_names, "aam-launch")
    # Only the module of the command is imported: a start may take 100 ms.
    name, *action = command.split()
    of_launcher = command in own_names
    module_name = name if of_launcher or command in OWN_STARTS else "start"
    module = importlib.import_module(f"launcher.commands.{module_name}")
    # --host is refused before a command that would run on this host, whatever the capture holds.
    reads = HOST in READ.get(command, ()) if of_launcher else "--dry-run" in launcher_options
    if HOST in launcher_options and not reads:
        deciding = ", ".join(f"`{word}`" for word, flags in READ.items() if HOST in flags)
        evidence = f"--host {launcher_options[HOST]} and `{command}`: it runs on this host"
        remedy = f"leave it out; {deciding} and --dry-run decide for a captured host"
        raise UsageError("A captured host runs nothing", evidence, remedy)
    status: int = module.run(launcher_options, [*action, *arguments] if of_launcher else words)
    return status


def help_of(argv: Sequence[str]) -> str:
    """Return the help page that a command line with --help or --help-all names."""
    from aam.contract.options import help_page  # with shutil and textwrap: 5 ms

    everything = HELP_ALL in argv
    words = [argument for argument in argv if argument not in HELP]
    if not words:
        groups = {group: {name: find(name) for name in names} for group, names in COMMANDS.items()}
        overview = help_page.overview("aam-launch", groups, everything=everything)
        return "\n".join([overview, "", *help_page.section(TITLE, LAUNCHER_OPTIONS.values())])
    (command, words), program = split_command(words, NAMES, "aam-launch"), "aam-launch"
    if command in FORWARDING and words:
        program = f"aam-launch {command}"
        command, _ = split_command(words, program=program)
    elif command in NAMES:
        read = [(TITLE, [LAUNCHER_OPTIONS[flag] for flag in READ.get(command, ())])]
        name = f"{command} COMMAND" if command in FORWARDING else command
        return help_page.page(program, name, find(command), specs(find(command)), read,
                              everything=True)  # fmt: skip
    # The page of a command of `aam`, with the options of the launcher.
    options_class = command_of_aam(command)
    assert options_class is not None, command
    submits = program.endswith("submit")
    more = [("Options of the job", specs(find("submit")))] if submits else []
    of_launcher = [s for s in LAUNCHER_OPTIONS.values() if not (submits and s.flag == "--gpus")]
    options = (*options_of(command), CONFIG)
    return help_page.page(program, command, options_class, options, [*more, (TITLE, of_launcher)],
                          everything=everything)  # fmt: skip


def run() -> NoReturn:
    """Run `main` and exit with its status."""
    sys.exit(main())


if __name__ == "__main__":
    run()
