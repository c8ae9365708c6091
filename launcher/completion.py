"""Completions for bash, zsh and fish, made from the options themselves."""

from __future__ import annotations

import typing

from aam.options import COMMANDS
from launcher.errors import UsageError
from launcher.help import OWN
from launcher.plan.own import OWN_FLAGS
from launcher.plan.request import options_of
from launcher.plan.spelling import nearest

SHELLS = ("bash", "zsh", "fish")


def script(shell: str) -> str:
    """Return what a shell has to source.

    Raises:
        UsageError: an unknown shell.
    """
    if shell not in SHELLS:
        remedy = nearest(shell, SHELLS, f"known are {', '.join(SHELLS)}")
        raise UsageError("No such shell", f"'{shell}'", remedy)
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]()


def _commands() -> dict[str, str]:
    known = {n: (k.__doc__ or "").splitlines()[0] for g in COMMANDS.values() for n, k in g.items()}
    return known | OWN


def _second_words() -> dict[str, list[str]]:
    """List what may follow the first word of the commands of two words."""
    found: dict[str, list[str]] = {}
    for command in _commands():
        first, _, second = command.partition(" ")
        if second:
            found.setdefault(first, []).append(second)
    return found


def _flags(command: str) -> list[str]:
    own = [*OWN_FLAGS]
    if command in OWN:
        return own
    flags = []
    for spec in options_of(command).values():
        flags.append(spec.flag)
        if spec.type is bool:
            flags.append("--no-" + spec.flag[2:])
    return flags + own


def _choices(command: str) -> dict[str, list[str]]:
    found = {}
    if command not in OWN:
        for spec in options_of(command).values():
            if typing.get_origin(spec.type) is typing.Literal:
                found[spec.flag] = [str(word) for word in typing.get_args(spec.type)]
    return found


def _bash() -> str:
    cases, values = [], []
    for command in _commands():
        cases.append(f"    '{command}') words='{' '.join(_flags(command))}' ;;")
        for flag, choices in _choices(command).items():
            values.append(f"    '{command}:{flag}') words='{' '.join(choices)}' ;;")
    firsts = {command.split()[0]: None for command in _commands()}
    two = _second_words()
    openings = "".join(f" {first}) command={first} ;;" for first in two)
    seconds = [f"    {first}) words='{' '.join(words)}' ;;" for first, words in two.items()]
    return "\n".join(
        [
            "_aam_launch() {",
            "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=''",
            "  local candidate words=''",
            "  for candidate in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do",
            f"    case $candidate in explain|-*) ;;{openings}",
            "    *) command=\"${command:+$command }$candidate\"; break ;; esac",
            "  done",
            "  COMPREPLY=()",
            "  case $command:$before in",
            *values,
            "  esac",
            "  if [ -z \"$words\" ] && [[ $word == -* ]]; then",
            "    case $command in",
            *cases,
            f"    *) words='{' '.join(OWN_FLAGS)}' ;;",
            "    esac",
            "  elif [ -z \"$command\" ]; then",
            f"    words='{' '.join(firsts)}'",
            "  else",
            "    case $command in",
            *(seconds or ["    *) ;;"]),
            "    esac",
            "  fi",
            "  [ -n \"$words\" ] && COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))",
            "}",
            "complete -o default -F _aam_launch aam-launch",
            "",
        ]
    )  # fmt: skip


def _zsh() -> str:
    return "autoload -U +X bashcompinit && bashcompinit\n" + _bash()


def _fish() -> str:
    lines = ["complete -c aam-launch -n __fish_use_subcommand -f"]
    for command, summary in _commands().items():
        quoted = summary.replace("\\", "\\\\").replace("'", "\\'")
        first, _, second = command.partition(" ")
        seen = f"__fish_seen_subcommand_from {first}"
        if second:
            lines.append(f"complete -c aam-launch -n __fish_use_subcommand -a {first}")
            lines.append(f"complete -c aam-launch -n '{seen}' -a {second} -d '{quoted}'")
            seen += f"; and __fish_seen_subcommand_from {second}"
        else:
            lines.append(
                f"complete -c aam-launch -n __fish_use_subcommand -a {first} -d '{quoted}'"
            )
        choices = _choices(command)
        for flag in _flags(command):
            words = f" -x -a '{' '.join(choices[flag])}'" if flag in choices else ""
            lines.append(f"complete -c aam-launch -n '{seen}' -l {flag[2:]}{words}")
    return "\n".join(lines) + "\n"
