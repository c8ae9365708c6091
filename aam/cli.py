"""The `aam` program: choose a command, read its options, run it, turn errors into exit statuses.

Nothing heavy is imported before a command is known to be wanted and its options are right, so
that help answers at once.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence
from typing import Any

from aam import __version__
from aam.errors import AamError, CannotCreate, UsageError
from aam.options import COMMANDS, find, names

INTERRUPTED = 130
DISK_FULL = (28, 122)  # ENOSPC, EDQUOT


def main(argv: Sequence[str] | None = None) -> int:
    """Run `aam` with `argv` (the process's by default) and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except AamError as error:
        _complain(str(error))
        return error.status
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        place = f" while writing {error.filename}" if error.filename else ""
        _complain(f"The disk is full{place}; free some space or choose another folder.")
        return CannotCreate.status
    except KeyboardInterrupt:
        _complain("Interrupted.")
        return INTERRUPTED


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(overview())
        return 0
    if words[0] == "--version":
        print(f"aam {__version__}")
        return 0
    options = parse(words[0], words[1:])
    command = importlib.import_module(f"aam.commands.{words[0]}")
    command.run(options)
    return 0


def parse(name: str, words: Sequence[str]) -> Any:
    """Read `words` as the options of the command `name`.

    Raises:
        UsageError: there is no such command.
        SystemExit: 0 after printing help, 64 after printing what is wrong with an option.
    """
    kind = find(name)
    if kind is None:
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean '{near[0]}'?" if near else "see `aam --help`"
        raise UsageError("No such command", f"'{name}'", hint)
    import tyro

    flags = (tyro.conf.OmitArgPrefixes, tyro.conf.ConsolidateSubcommandArgs)
    try:
        return tyro.cli(kind, args=list(words), prog=f"aam {name}", config=flags)
    except SystemExit as stop:
        raise SystemExit(UsageError.status if stop.code else 0) from None


def overview() -> str:
    """Return the help page: the commands by group, a line each."""
    lines = ["usage: aam COMMAND [OPTIONS]", "", "Attention All Microbes " + __version__]
    for group, commands in COMMANDS.items():
        lines += ["", group]
        for name, kind in commands.items():
            lines.append(f"  {name:<10} {(kind.__doc__ or '').splitlines()[0]}")
    return "\n".join([*lines, "", "`aam COMMAND --help` lists a command's options."])


def _complain(sentence: str) -> None:
    print(f"aam: {sentence}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
