"""Shell completion for bash, zsh and fish, computed by `aam-launch completion -- WORD...`.

The last word is the one being typed. Without candidates the shell offers file names.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence

from aam.contract.errors import AamError, UsageError
from aam.contract.options import names, split
from aam.contract.suggestions import nearest
from launcher.help import LAUNCHER_COMMANDS
from launcher.plan.launcher_options import LAUNCHER_FLAGS, takes_value
from launcher.plan.request import options_of
from launcher.slurm.submit_options import FLAGS as OF_JOBS
from launcher.slurm.submit_options import SWITCHES as SWITCHES_OF_JOBS

ASK = "--"
"""Separator before the command line that a shell completes."""

BEFORE_A_COMMAND = ("explain", "submit")

SCRIPTS = {
    "bash": """\
_aam_launch() {
  local IFS=$'\\n'
  COMPREPLY=($(aam-launch completion -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _aam_launch aam-launch
""",
    "zsh": """\
#compdef aam-launch
_aam_launch() {
  local -a found
  found=(${(f)"$(aam-launch completion -- "${(@)words[2,CURRENT]}" 2>/dev/null)"})
  if (( $#found )); then compadd -- $found; else _files; fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
compdef _aam_launch aam-launch
""",
    "fish": """\
function __aam_launch
  set -l words (commandline -opc)
  set -l word (commandline -ct | string collect --allow-empty)
  aam-launch completion -- $words[2..-1] $word 2>/dev/null
end
complete -c aam-launch -a '(__aam_launch)'
""",
}
SHELLS = tuple(SCRIPTS)


def script(shell: str) -> str:
    """Return the completion script of a shell.

    Raises:
        UsageError: an unknown shell.
    """
    if shell not in SHELLS:
        remedy = nearest(shell, SHELLS, f"known are {', '.join(SHELLS)}")
        raise UsageError("No such shell", f"'{shell}'", remedy)
    return SCRIPTS[shell]


def candidates(line: Sequence[str]) -> list[str]:
    """Return the candidates for the last argument of a command line (after `aam-launch`).

    >>> candidates(["explain", "pret"])
    ['pretrain']
    """
    *before, argument = (
        [one for one in line if one != "="] if line[-1:] != ["="] else [*line[:-1], ""]
    )
    offered = dict.fromkeys(_offered(before, argument))
    return [one for one in offered if one.startswith(argument)]


def _offered(before: Sequence[str], argument: str) -> Iterator[str]:
    last = before[-1] if before else ""
    if takes_value(last):
        yield from _launcher_option_values(last)
        return
    rest = _without_launcher_options(before)
    opening = rest[0] if rest and rest[0] in BEFORE_A_COMMAND else None
    rest = rest[1:] if opening else rest
    command, _ = split(rest)
    if command in names():
        spec = options_of(command).get(last)
        if spec and typing.get_origin(spec.type) is typing.Literal:
            yield from map(str, typing.get_args(spec.type))
        elif argument.startswith("-"):
            yield from _flags(command, opening)
    elif command == "completion":
        yield from SHELLS
    elif command in LAUNCHER_COMMANDS:
        yield from LAUNCHER_FLAGS if argument.startswith("-") else ()
    elif argument.startswith("-"):
        yield from LAUNCHER_FLAGS
    elif command:
        yield from (name.split()[1] for name in names() if name.startswith(f"{command} "))
    else:
        yield from (name.split()[0] for name in names())
        yield from () if opening else LAUNCHER_COMMANDS


def _without_launcher_options(argv: Sequence[str]) -> list[str]:
    """Leave out the launcher's own options and their values."""
    rest, value = [], False
    for argument in argv:
        if value:
            value = False
        elif argument.partition("=")[0] in LAUNCHER_FLAGS:
            value = takes_value(argument)
        else:
            rest.append(argument)
    return rest


def _flags(command: str, opening: str | None) -> Iterator[str]:
    for spec in options_of(command).values():
        yield spec.flag
        if spec.type is bool:
            yield "--no-" + spec.flag[2:]
    if opening == "submit":
        yield from (*OF_JOBS, *SWITCHES_OF_JOBS)
    yield from LAUNCHER_FLAGS


def _launcher_option_values(flag: str) -> Iterator[str]:
    """Yield the values of an option of the launcher; none where only a file would do."""
    from launcher import config

    if flag == "--runtime":
        yield from config.runtimes()
    elif flag == "--site":
        yield from config.sites()
    elif flag == "--image":
        try:
            yield from (image.name for image in config.configured({})[1].images)
        except AamError:  # a broken configuration gives no candidates
            return
