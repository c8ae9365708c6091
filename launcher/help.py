"""Help pages of `aam-launch`."""

from __future__ import annotations

from collections.abc import Sequence

from aam.contract.options import (
    CONFIG,
    HELP,
    HELP_ALL,
    find,
    help_page,
    options_of,
    specs,
    split_command,
)
from launcher import commands
from launcher.commands import COMMANDS, FORWARDING, NAMES, READ
from launcher.plan.settings import LAUNCHER_OPTIONS
from launcher.slurm.script import SubmitOptions

TITLE = "Options of the launcher, anywhere on the command line"


def help_of(argv: Sequence[str]) -> str:
    """Return the help page that a command line with --help or --help-all names."""
    everything = HELP_ALL in argv
    rest = [argument for argument in argv if argument not in HELP]
    if not rest:
        groups = {group: {n: commands.find(n) for n in names} for group, names in COMMANDS.items()}
        section = help_page.section(TITLE, LAUNCHER_OPTIONS.values())
        overview = help_page.overview("aam-launch", groups, everything=everything)
        return "\n".join([overview, "", *section])
    command, rest = split_command(rest, NAMES, "aam-launch")
    if command in FORWARDING and rest:
        forwarded, _ = split_command(rest, program=f"aam-launch {command}")
        return _aam_page(f"aam-launch {command}", forwarded, everything)
    if command not in NAMES:
        return _aam_page("aam-launch", command, everything)
    read = [(TITLE, [LAUNCHER_OPTIONS[flag] for flag in READ.get(command, ())])]
    name = f"{command} COMMAND" if command in FORWARDING else command
    own = commands.find(command)
    return help_page.page("aam-launch", name, own, specs(own), read, everything=True)


def _aam_page(program: str, command: str, everything: bool) -> str:
    options_class = find(command)
    assert options_class is not None, command
    submits = program.endswith("submit")
    more = [("Options of the job", specs(SubmitOptions))] if submits else []
    own = [s for s in LAUNCHER_OPTIONS.values() if not (submits and s.flag == "--gpus")]
    return help_page.page(
        program,
        command,
        options_class,
        (*options_of(command), CONFIG),
        [*more, (TITLE, own)],
        everything=everything,
    )
