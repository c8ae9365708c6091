"""The `aam-launch` program: check what is asked, decide how to run it, become it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from aam import __version__
from aam.options import COMMANDS
from launcher.engines import native
from launcher.errors import LaunchError
from launcher.inputs import require_inputs
from launcher.plan.request import HELP, OWN_FLAGS, command_of, options_of, parse

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run `aam-launch` with `argv` (the process's by default).

    Returns only to report: an exit status after help, a dry run or an error.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _dispatch(words)
        sys.stdout.flush()
        return status
    except LaunchError as error:
        print(f"aam-launch: {error}", file=sys.stderr)
        return error.status
    except BrokenPipeError:  # the reader, `head` for one, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in HELP:
        print(overview())
        return 0
    if words[0] == "--version":
        print(f"aam-launch {__version__}")
        return 0
    if any(word in HELP for word in words):
        asked = [word for word in words if word != "--dry-run"]
        print(command_help(command_of(asked)))
        return 0
    request = parse(words)
    require_inputs(request)
    plan = native.plan_here(request)
    if request.dry_run:
        print(plan.command_line())
        return 0
    native.become(plan)
    raise AssertionError("unreachable")


def overview() -> str:
    """Return the help page: the commands by group and the launcher's own options."""
    lines = ["usage: aam-launch [--dry-run] COMMAND [OPTIONS]", ""]
    lines.append(f"Run `aam` in the environment that suits this host. aam-launch {__version__}")
    for group, commands in COMMANDS.items():
        lines += ["", group]
        for name, kind in commands.items():
            lines.append(f"  {name:<10} {(kind.__doc__ or '').splitlines()[0]}")
    lines += ["", "Options of the launcher"]
    lines += [f"  {flag:<10} {help}" for flag, help in OWN_FLAGS.items()]
    return "\n".join([*lines, "", "`aam-launch COMMAND --help` lists a command's options."])


def command_help(command: str) -> str:
    """Return the options of a command of `aam`, a line each."""
    lines = [f"usage: aam-launch [--dry-run] {command} [OPTIONS]"]
    group = None
    for spec in options_of(command).values():
        if spec.group != group:
            group = spec.group
            lines += ["", group.removesuffix("Options") or group]
        default = "required" if spec.required else f"default: {spec.default}"
        lines.append(f"  {spec.flag:<28} {spec.help} ({default})")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
